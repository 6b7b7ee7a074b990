"""Hooks of mkdocs.yml: README as the first page, and an API reference.

A page of the reference has the modules of one package, from their docstrings,
which mkdocstrings reads without importing them.
"""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ('selfattn', 'experiments')


def on_config(config):
  """Adds the pages of the reference to the navigation."""
  pages = [{name: f'api/{name}.md'} for name in _packages()]
  config.nav.append({'API reference': pages})
  return config


def on_files(files, config):
  """Adds README and the pages of the reference."""
  readme = (ROOT / 'README.md').read_text(encoding='utf-8')
  # Links of README are to files below docs/, those of pages to README.
  text = readme.replace('](docs/', '](')
  files.append(File.generated(config, 'index.md', content=text))
  for name, modules in _packages().items():
    body = '\n\n'.join(f'::: {module}' for module in modules)
    page = File.generated(
      config, f'api/{name}.md', content=f'# {name}\n\n{body}\n'
    )
    files.append(page)
  return files


def on_page_markdown(markdown, page, config, files):
  """Links to README as links to the first page."""
  del page, config, files
  return re.sub(r'\]\(\.\./README\.md', '](index.md', markdown)


def _packages() -> dict[str, list[str]]:
  """Names of modules by name of their package."""
  found = {}
  for top in PACKAGES:
    for path in sorted((ROOT / top).rglob('*.py')):
      parts = path.relative_to(ROOT).with_suffix('').parts
      if parts[-1] != '__init__':
        found.setdefault('.'.join(parts[:-1]), []).append('.'.join(parts))
  return found
