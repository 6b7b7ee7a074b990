"""What README and docs name exists: links, files, tests, command lines."""

import ast
import html.parser
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.parse

import pytest
import yaml
from conftest import CONFIG_COMMANDS, ROOT, last_json

from experiments.command import command_line
from experiments.settings import reference
from experiments.settings.settings import from_config

PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
NOTEBOOKS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))
# With the docstrings that --help prints, and the headers of configs.
SOURCES = [
  *PAGES,
  *sorted((ROOT / 'experiments').glob('[a-z]*.py')),
  *sorted((ROOT / 'configs').glob('[a-z]*.py')),
]
IDS = [str(path.relative_to(ROOT)) for path in SOURCES]
RUN = 'bash scripts/run.sh '


def page(name):
  return (ROOT / 'docs' / name).read_text()


def prose(path):
  """A page without its code, or the Markdown of a notebook."""
  text = path.read_text()
  if path.suffix == '.ipynb':
    cells = json.loads(text)['cells']
    kept = [cell['source'] for cell in cells if cell['cell_type'] != 'code']
    text = '\n\n'.join(map(''.join, kept))
  return re.sub(r'```.*?```|`[^`\n]*`', '', text, flags=re.DOTALL)


def anchors(path):
  """Those of the headings of a page, as GitHub makes them."""
  text = re.sub(r'```.*?```', '', path.read_text(), flags=re.DOTALL)
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')
    for heading in re.findall(r'^#+ (.*)$', text, flags=re.MULTILINE)
  }


@pytest.mark.parametrize(
  'path', [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_lead_to_a_file_and_a_heading(path):
  for link in re.findall(r'\]\(([^)\s]+)\)', prose(path)):
    if '://' in link:
      continue
    name, _, anchor = link.partition('#')
    target = path.parent / name if name else path
    assert target.exists(), link
    assert not anchor or anchor in anchors(target), link


def test_files_tests_and_modules_that_pages_name_exist():
  tests = {
    node.name
    for path in (ROOT / 'tests').rglob('test_*.py')
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
  }
  for path in PAGES:
    text = path.read_text()
    # test_texts is a column of a table.
    named = set(re.findall(r'`(test_\w+)`', text)) - {'test_texts'}
    assert not named - tests, path
    for name in set(re.findall(r'\bexperiments\.([a-z_]+)', text)):
      module = ROOT / 'experiments' / name
      assert module.is_dir() or module.with_suffix('.py').exists(), name
    folders = 'tests|scripts|configs|selfattn|experiments|docs'
    for name in re.findall(rf'`((?:{folders})/[\w/.]+)`', text):
      # A file that the reader writes.
      assert (ROOT / name).exists() or name == 'configs/reviews.py', name


def test_every_page_is_in_the_navigation_of_the_site():
  site = yaml.safe_load((ROOT / 'mkdocs.yml').read_text())
  shown = set(re.findall(r"'([\w./]+\.md)'", str(site['nav'])))
  pages = {path.name for path in (ROOT / 'docs').glob('*.md')}
  pages |= {f'notebooks/{path.stem}.md' for path in NOTEBOOKS}
  beside = {'index.md', 'contributing.md', 'changelog.md'}
  assert shown == pages | beside


class Links(html.parser.HTMLParser):
  """Where a page leads, and the anchors in it."""

  def __init__(self, path):
    super().__init__()
    self.links, self.ids = set(), set()
    self.feed(path.read_text())

  def handle_starttag(self, tag, attrs):
    named = dict(attrs)
    self.ids.add(named.get('id'))
    self.links |= {named.get('href'), named.get('src')} - {None, ''}


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_to_a_file_and_a_heading(tmp_path):
  pytest.importorskip('material', reason='needs the extra docs')
  build = [sys.executable, '-m', 'mkdocs', 'build', '--strict', '-d', tmp_path]
  done = subprocess.run(
    build,
    cwd=ROOT,
    capture_output=True,
    text=True,
    env=os.environ | {'GITHUB_REPOSITORY': 'someone/fork'},
  )
  assert done.returncode == 0, done.stderr
  notebook = (tmp_path / 'notebooks/text_classifier/index.html').read_text()
  place = 'someone/fork/blob/main/docs/notebooks/text_classifier.ipynb'
  assert f'https://colab.research.google.com/github/{place}' in notebook
  assert '`make_importable()`' in notebook
  pages = {path: Links(path) for path in tmp_path.rglob('*.html')}
  assert tmp_path / 'positions/index.html' in pages
  for path, page in pages.items():
    # Its addresses begin at the root of a server.
    for link in page.links if path.name != '404.html' else ():
      address = urllib.parse.urlsplit(link)
      if address.scheme or address.netloc:
        continue
      target = path.parent / urllib.parse.unquote(address.path)
      target = (target if address.path else path).resolve()
      target = target / 'index.html' if target.is_dir() else target
      assert target.exists(), (path, link)
      anchor = urllib.parse.unquote(address.fragment)
      if anchor and target in pages:
        assert anchor in pages[target].ids, (path, link)


def commands(path):
  """The words of each command line, in blocks and within sentences."""
  text = path.read_text()
  if path.suffix == '.py':
    # Not as `__doc__`, where a backslash may have joined lines.
    text = text.split('"""')[1].replace('\\\\\n', '\\\n')
  text = re.sub(r'\s*\\\n\s*', ' ', text)
  blocks = re.findall(rf'^ +{RUN}(.*)$', text, flags=re.MULTILINE)
  inline = re.findall(rf'(?<!`)`(?:{RUN})?([a-z][^`]*)`', text)
  for line in (*blocks, *(line for line in inline if ' ' in line)):
    words = shlex.split(re.sub(r' [<>|] .*| & .*|\s\.\.\.', '', line))
    if words[0] in ('pytest', 'python') or is_command(words[0]):
      yield words


def is_command(name):
  room, _, command = name.partition('.')
  path = ROOT / room / f'{command}.py'
  return room == 'experiments' and path.exists()


_FILES_OF_READERS = ('--config=mine.py', '--config=configs/reviews.py')


def parsed(words, monkeypatch):
  """The flags of a command of experiments, and its config if it has one."""
  name = words[0].removeprefix('experiments.')
  command = importlib.import_module(words[0])
  arguments = [word for word in words[1:] if word not in _FILES_OF_READERS]
  arguments = [re.sub(r'\$\w+', '0', word) for word in arguments]
  arguments = [word for word in arguments if word != '--help']
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, 'argv', [name, *arguments])
  describe = reference.described if name in CONFIG_COMMANDS else None
  return command_line.parse(
    sys.argv, command._define, command.__doc__, describe
  )


@pytest.mark.parametrize('path', SOURCES, ids=IDS)
def test_command_lines_parse_and_their_configs_are_valid(path, monkeypatch):
  for words in commands(path):
    line = ' '.join(words)
    if words[0] == 'python':
      # Its flags are those of its own file.
      assert exists(words[1]), line
    elif words[0] == 'pytest':
      own = [word for word in words[1:] if not word.startswith('--method=')]
      assert all(map(exists, own)), line
    elif not re.search('NAME|KEY|ideas:', line):
      values = parsed(words, monkeypatch)
      if 'config' in values and '--help' not in words:
        assert from_config(values.config), line


def exists(word):
  """Whether an argument of pytest or python names a file, or a marker."""
  markers = (ROOT / 'pyproject.toml').read_text()
  return word == '-m' or (ROOT / word).exists() or f'"{word}: ' in markers


SMALL = (
  '--config.train.steps=4', '--config.train.eval_every=2',
  '--config.model.num_layers=1', '--config.model.embed_dim=12',
)  # fmt: skip


@pytest.fixture(scope='module')
def from_csv(tmp_path_factory):
  """Blocks of the section from a CSV to predictions, and a folder with it."""
  section = page('data.md').split('## From a CSV')[1].split('\n## ')[0]
  found = dict(re.findall(r'```(csv)\n(.*?)```', section, re.DOTALL))
  blocks = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
  folder = tmp_path_factory.mktemp('reader')
  (folder / 'reviews').mkdir()
  header, *rows = found['csv'].splitlines()
  rows = [row.replace('.', f' {n}.', 1) for n in range(20) for row in rows]
  (folder / 'reviews/reviews.csv').write_text('\n'.join([header, *rows]) + '\n')
  (folder / 'new.csv').write_text('id,review\n7,"Fine, touching."\n8,Dull.\n')
  (folder / 'configs').mkdir()
  (folder / 'configs/reviews.py').write_text(blocks[1])
  return folder, blocks


@pytest.mark.slow
def test_the_way_from_a_csv_to_predictions_can_be_gone(
  from_csv, call_command, monkeypatch, capfd
):
  folder, (snippet, _) = from_csv
  lines = list(commands(ROOT / 'docs/data.md'))
  train = next(words for words in lines if '--workdir=runs/reviews' in words)
  code, stdout, stderr = call_command('train', *train[1:], *SMALL, cwd=folder)
  assert code == 0, stderr
  assert '32 train, 4 validation, 4 test; 2 labels' in stderr
  assert 'WARNING: classes' not in stderr
  assert last_json(stdout)['split'] == 'test'
  for words in lines[1:5]:
    assert '--workdir=runs/reviews' in words
    name = words[0].removeprefix('experiments.')
    few = ['--num_examples=2'] * (name == 'inspect')
    code, stdout, stderr = call_command(name, *words[1:], *few, cwd=folder)
    assert code == 0, stderr
  monkeypatch.chdir(folder)
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  exec(snippet, {})
  printed = capfd.readouterr().out.splitlines()
  assert len(printed) == 2
  assert all(line.startswith(('negative {', 'positive {')) for line in printed)
