"""Imports go down only, room by room."""

import ast
import functools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# What each floor may import of the project.
FLOORS = {
  'selfattn': {'selfattn'},
  'experiments': {'selfattn', 'experiments'},
  'configs': {'selfattn', 'experiments', 'configs'},
}
# What selfattn may import of others, beside the standard library: figures and
# published models have extras of their own.
DEPENDENCIES = {'jax', 'flax', 'numpy'}
OF_EXTRAS = {
  'selfattn.plots': {'matplotlib'},
  'selfattn.pretrained': {'safetensors', 'tokenizers'},
  'selfattn.pretrained.folder': {'safetensors'},
}
# Each may import itself and those before it. Commands may import all of them.
ROOMS = (
  'command', 'workdir', 'data', 'learning', 'settings', 'training', 'sweeps',
  'inspection', 'benchmarks',
)  # fmt: skip
# Folders of tests that are of no room: of whole commands, and of selfattn.
OTHERS = {'commands', 'selfattn'}


@functools.cache
def modules(folder):
  """Syntax trees by dotted name."""
  found = {}
  for path in sorted((ROOT / folder).rglob('*.py')):
    name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    found[name.removesuffix('.__init__')] = ast.parse(path.read_text())
  assert found
  return found


def imports(tree, known=()):
  """Dotted names of what is imported anywhere in a module.

  Args:
    known: modules; what is imported from their packages may be one of them.
  """
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, 'imports name the whole module'
      for alias in node.names:
        name = f'{node.module}.{alias.name}'
        yield name if name in known else node.module


def room(module):
  """The room of a module of experiments; None of a command."""
  _, *parts = module.split('.')
  return parts[0] if parts and parts[0] in ROOMS else None


def upward(trees):
  """Imports of a room above, or of a command."""
  found = set()
  for name, tree in trees.items():
    allowed = ROOMS[: ROOMS.index(room(name)) + 1] if room(name) else ROOMS
    for other in imports(tree, trees):
      if other in trees and room(other) not in allowed:
        found.add((name, other))
  return found


def circle(trees):
  """Modules that import each other, in their order; () if there is none."""
  edges = {
    name: sorted({o for o in imports(tree, trees) if o in trees and o != name})
    for name, tree in trees.items()
  }
  done = set()

  def visit(name, path):
    if name in path:
      return path[path.index(name) :]
    if name in done:
      return ()
    done.add(name)
    return next(
      filter(None, (visit(o, (*path, name)) for o in edges[name])), ()
    )

  return next(filter(None, (visit(name, ()) for name in edges)), ())


@pytest.mark.parametrize('floor', FLOORS)
def test_imports_go_down_only(floor):
  own = {'selfattn', 'experiments', 'configs', 'tests', 'scripts'}
  for name, tree in modules(floor).items():
    roots = {module.partition('.')[0] for module in imports(tree)}
    assert not (roots & own) - FLOORS[floor], name


def test_selfattn_imports_jax_flax_and_numpy_alone():
  """Also inside functions."""
  for name, tree in modules('selfattn').items():
    roots = {module.partition('.')[0] for module in imports(tree)}
    others = roots - sys.stdlib_module_names - FLOORS['selfattn']
    assert not others - DEPENDENCIES - OF_EXTRAS.get(name, set()), name


def test_configs_import_no_jax():
  for name, tree in modules('configs').items():
    roots = {module.partition('.')[0] for module in imports(tree)}
    assert not roots & {'jax', 'flax'}, name


def test_rooms_import_from_rooms_below_them_and_nothing_imports_a_command():
  assert not upward(modules('experiments'))


@pytest.mark.parametrize('floor', ['experiments', 'selfattn'])
def test_modules_import_each_other_in_no_circle(floor):
  assert not circle(modules(floor))


def test_the_top_of_experiments_holds_commands_only():
  folder = ROOT / 'experiments'
  paths = list(folder.glob('*.py'))
  assert 0 < len(paths) <= 12
  for path in paths:
    is_command = "__name__ == '__main__'" in path.read_text()
    assert is_command or path.name == '__init__.py', path
  rooms = {p.name for p in folder.iterdir() if p.is_dir()} - {'__pycache__'}
  assert rooms == set(ROOMS)


def test_tests_mirror_the_rooms():
  folders = {path.parent for path in (ROOT / 'tests').rglob('test_*.py')}
  names = {path.name for path in folders if path != ROOT / 'tests'}
  assert names == {*ROOMS, *OTHERS, 'pretrained'}
