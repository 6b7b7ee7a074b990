"""Imports go down only, and every key of the config is read."""

import ast
import pathlib
import re

import pytest

from configs import default
from experiments.settings import registry, settings

ROOT = pathlib.Path(__file__).parent.parent
# What each floor may import of the project, and what it may not of others.
FLOORS = {
  'selfattn': ({'selfattn'}, {'absl', 'ml_collections', 'optax', 'orbax'}),
  'experiments': ({'selfattn', 'experiments'}, set()),
  'configs': ({'selfattn', 'experiments', 'configs'}, {'jax', 'flax'}),
}


def imports(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name.partition('.')[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield (node.module or '').partition('.')[0]


@pytest.mark.parametrize('floor', FLOORS)
def test_imports_go_down_only(floor):
  allowed, forbidden = FLOORS[floor]
  own = {'selfattn', 'experiments', 'configs', 'tests', 'scripts'}
  paths = list((ROOT / floor).rglob('*.py'))
  assert paths
  for path in paths:
    found = set(imports(path))
    assert not found & forbidden, path
    assert not (found & own) - allowed, path


def test_every_key_is_read():
  """Each leaf of Settings is an attribute that code outside settings reads."""
  read = set()
  for path in (ROOT / 'experiments').rglob('*.py'):
    tree = ast.parse(path.read_text())
    if path.name != 'settings.py':
      read |= {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
      }
  flat = settings.from_config(default.get_config()).flat()
  keys = {key for key in flat if not key.endswith('.name')}
  blocks = ('data.word_order', 'model.encoder', 'model.position')
  blocks += ('data.vocabulary', 'optimizer.adamw')
  # Options of a choice are fields of its class: nothing else can read them.
  keys = {key for key in keys if not key.startswith(blocks)}
  unread = {key for key in keys if key.rpartition('.')[2] not in read}
  assert not unread


def test_what_the_pages_name_exists():
  tests = {
    node.name
    for path in (ROOT / 'tests').rglob('test_*.py')
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
  }
  for page in (ROOT / 'README.md', ROOT / 'docs/chapters.md'):
    text = page.read_text()
    named = set(re.findall(r'`(test_\w+)`', text))
    assert not named - tests, page
    modules = set(re.findall(r'\bexperiments\.([a-z_]+)', text))
    for name in modules:
      path = ROOT / 'experiments' / name
      assert path.is_dir() or path.with_suffix('.py').exists(), name
    links = re.findall(r'\]\(([^)#:]+)[^)]*\)', text)
    assert links
    for link in links:
      assert (page.parent / link).exists(), (page.name, link)
    folders = 'tests|scripts|configs|selfattn'
    for path in re.findall(rf'`((?:{folders})/[\w/.]+)`', text):
      assert (ROOT / path).exists(), (page.name, path)


def test_every_option_is_read_by_its_class():
  for table, path in (
    (settings.POSITIONS, 'selfattn/positions/*.py'),
    (settings.SAMPLINGS, 'selfattn/positions/sampling.py'),
    (settings.ENCODERS, 'selfattn/*s.py'),
    (settings.DATASETS, 'experiments/data/*s.py'),
    (settings.VOCABULARIES, 'experiments/data/vocabularies.py'),
    (settings.OPTIMIZERS, 'experiments/learning/optimizers.py'),
  ):
    trees = [ast.parse(found.read_text()) for found in ROOT.glob(path)]
    read = {
      node.attr
      for tree in trees
      for node in ast.walk(tree)
      if isinstance(node, ast.Attribute)
    }
    for cls in table.values():
      missing = set(registry.options(cls)) - read
      assert not missing - {'validation', 'test'}, cls
