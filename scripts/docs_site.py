"""Hooks of mkdocs.yml: pages beside docs/, notebooks, and an API reference.

A page of the reference has the public names of a package, the package and its
modules, from docstrings, which mkdocstrings reads without importing them. A
notebook is a page with its stored outputs and, where a workflow of GitHub
builds the site, with a link that opens it in Colab.
"""
# mkdocs need not be installed.
# pyright: reportMissingImports=false

import base64
import json
import os
import pathlib
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
sys.path.append(str(ROOT / 'scripts'))
import public_names  # noqa: E402

PACKAGES = ('selfattn', 'experiments')
# Pages beside docs/, and files that pages link to, by their names on the site.
BESIDE = {
  'index.md': 'README.md',
  'contributing.md': 'CONTRIBUTING.md',
  'changelog.md': 'CHANGELOG.md',
  'CITATION.cff': 'CITATION.cff',
}
LINKED = [*ROOT.glob('scripts/*_peer.py'), *ROOT.glob('findings/*.sh')]
BESIDE |= {
  name: name for name in (str(path.relative_to(ROOT)) for path in LINKED)
}


def on_config(config):
  """Adds the pages of the reference to the navigation."""
  pages = [{name: f'api/{name}.md'} for name in _packages()]
  config.nav.append({'API reference': pages})
  return config


def on_files(files, config):
  """Adds what is beside docs/, and the pages of the reference."""
  pages = {
    name: (ROOT / source).read_text(encoding='utf-8')
    for name, source in BESIDE.items()
  }
  for name, modules in _packages().items():
    body = '\n\n'.join(f'::: {module}' for module in modules)
    body = _with_public_names(name, body)
    pages[f'api/{name}.md'] = f'# {name}\n\n{body}\n'
  for path in sorted((ROOT / 'docs/notebooks').glob('*.ipynb')):
    pages |= _notebook(path)
  for name, text in pages.items():
    files.append(File.generated(config, name, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  """Links between docs/ and what is beside it, as links within the site."""
  del config, files
  name = page.file.src_uri
  if name.startswith('notebooks/'):
    return _colab(pathlib.PurePath(name).stem) + markdown
  text = re.sub(r'\]\((?:\.\./|docs/)', '](', markdown)
  text = text.replace('.ipynb)', '.md)')
  for name, source in BESIDE.items():
    text = re.sub(rf'\]\({re.escape(source)}', f']({name}', text)
  return text


def _colab(stem: str) -> str:
  """How to open a notebook in Colab; '' where no repository is known."""
  # GitHub names it, so a fork has its own.
  repository = os.environ.get('GITHUB_REPOSITORY')
  if not repository:
    return ''
  place = f'{repository}/blob/main/docs/notebooks/{stem}.ipynb'
  package = f'selfattn[train] @ git+https://github.com/{repository}'
  return (
    f'[Open in Colab](https://colab.research.google.com/github/{place}), and '
    f"first run `%pip install '{package}'` in a cell of its own, and in "
    'another `from selfattn_commands.experiments import make_importable` and '
    '`make_importable()`.\n\n'
  )


def _notebook(path: pathlib.Path) -> dict[str, str | bytes]:
  """The page of a notebook, and its figures, by name on the site."""
  text, figures = [], {}
  for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
    source = ''.join(cell['source'])
    is_code = cell['cell_type'] == 'code'
    text.append(f'```python\n{source}\n```' if is_code else source)
    for output in cell.get('outputs', ()):
      data = output.get('data', {})
      if 'image/png' in data:
        name = f'{path.stem}-{len(figures)}.png'
        figures[f'notebooks/{name}'] = base64.b64decode(data['image/png'])
        text.append(f'![{data["text/plain"][0]}]({name})')
      else:
        lines = output.get('text') or data['text/plain']
        text.append(f'```text\n{"".join(lines).rstrip()}\n```')
  return {f'notebooks/{path.stem}.md': '\n\n'.join(text)} | figures


def _with_public_names(package: str, body: str) -> str:
  """The body of a page after a table of the names that the package exports.

  The package shows those that it defines, and its modules the others.
  """
  if package not in public_names.MODULES:
    return body
  table, own = ['| public name | what it is |', '|---|---|'], []
  for path, text in public_names.docstrings(package).items():
    module, _, name = path.rpartition('.')
    what = text.partition('\n')[0]
    table.append(f'| [`{name}`][{path}] | {what} |')
    own += [name] * (module == package)
  options = f'    options:\n      members: {own or "false"}\n'
  body = body.removeprefix(f'::: {package}\n')
  return '\n'.join([*table, '', f'::: {package}', options, body])


def _packages() -> dict[str, list[str]]:
  """Names of a package and of its modules, by name of the package."""
  packages = {}
  for top in PACKAGES:
    for path in sorted((ROOT / top).rglob('*.py')):
      *parents, name = path.relative_to(ROOT).with_suffix('').parts
      package = '.'.join(parents)
      module = package if name == '__init__' else f'{package}.{name}'
      packages.setdefault(package, []).append(module)
  return packages
