"""Classes of one's own, as module:Class."""

import re
import sys

import flax.linen as nn
import pytest
from conftest import ROOT

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.data.contract import Dataset
from experiments.learning.schedules import Schedule
from selfattn.pools import Pool
from selfattn.positions import Position

HELPER = 'SCALE = 2.0\n'
IDEAS = """
import dataclasses

from helper_of_ideas import SCALE
from selfattn.positions import Position


@dataclasses.dataclass(frozen=True)
class Grape(Position):
  groups: int = 4
  scale: float = SCALE

  def bias(self, params, query, key):
    return None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder of modules; another one is the working folder."""
  monkeypatch.setattr(modules, '_folders', [])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.setattr(modules, '_versions', {})
  # An import inside of a function leaves it.
  monkeypatch.delitem(sys.modules, 'helper_of_ideas', raising=False)
  (tmp_path / 'work').mkdir()
  monkeypatch.chdir(tmp_path / 'work')
  (tmp_path / 'helper_of_ideas.py').write_text(HELPER)
  (tmp_path / 'ideas_of_tests.py').write_text(IDEAS)
  before = set(sys.modules)
  yield tmp_path
  for name in set(sys.modules) - before:
    if name.startswith('pack_of_tests'):
      del sys.modules[name]


def named(name, base=Position):
  return modules.named(name, base, 'config.model.position')


def test_a_class_is_found_in_a_searched_folder_with_a_module_beside_it(folder):
  with pytest.raises(UserError, match='there is no module ideas_of_tests in'):
    named('ideas_of_tests:Grape')
  modules.search(str(folder))
  assert named('ideas_of_tests:Grape').scale == 2.0
  assert named('ideas_of_tests:Grape') is named('ideas_of_tests:Grape')


def test_a_class_is_found_in_the_working_folder_and_on_the_path(folder):
  (folder / 'work/here.py').write_text(IDEAS)
  (folder / 'work/helper_of_ideas.py').write_text(HELPER)
  assert named('here:Grape').groups == 4
  assert named('selfattn.positions.rotary:Rotary').__name__ == 'Rotary'
  (folder / 'work/pack_of_tests').mkdir()
  text = IDEAS.replace('from helper_of_ideas import SCALE', 'SCALE = 1.0')
  (folder / 'work/pack_of_tests/ideas.py').write_text(text)
  assert named('pack_of_tests.ideas:Grape').groups == 4


@pytest.fixture
def package(folder):
  """A package whose __init__ imports another of its modules."""
  package = folder / 'pack_of_tests'
  (package / 'inner').mkdir(parents=True)
  (package / '__init__.py').write_text('from .base import Grape\n')
  text = IDEAS.replace('from helper', 'from .helper')
  (package / 'base.py').write_text(text)
  (package / 'helper_of_ideas.py').write_text(HELPER)
  text = IDEAS.replace('from helper_of_ideas', 'from pack_of_tests.base')
  (package / 'inner/__init__.py').write_text(text)
  modules.search(str(folder))
  return package


def test_modules_of_a_package_are_those_of_python(package):
  names = ('pack_of_tests', 'pack_of_tests.base', 'pack_of_tests.inner')
  for name in names:
    assert named(f'{name}:Grape') is sys.modules[name].Grape
  outer, base, _ = (named(f'{name}:Grape') for name in names)
  assert outer is base
  assert named('flax.linen:Dense', None) is nn.Dense


def test_the_digest_of_a_package_is_of_all_its_files(package, monkeypatch):
  name = 'pack_of_tests:Grape'
  path, digest = modules.source(name)
  assert path == str(package / '__init__.py')
  (package / 'helper_of_ideas.py').write_text('SCALE = 3.0  # changed\n')
  # As imported, in this process; a new one has what the files are then.
  assert modules.source(name) == (path, digest)
  monkeypatch.setattr(modules, '_versions', {})
  assert modules.source(name)[1] != digest


def test_a_package_may_be_found_by_a_link(package, folder, monkeypatch):
  first = named('pack_of_tests:Grape')
  (folder / 'work/link').symlink_to(folder)
  monkeypatch.setattr(modules, '_folders', [])
  modules.search('link')
  assert named('pack_of_tests:Grape') is first


def test_a_package_is_not_another_one_of_its_name(package, folder, monkeypatch):
  named('pack_of_tests:Grape')
  (folder / 'work/pack_of_tests').mkdir()
  (folder / 'work/pack_of_tests/__init__.py').write_text(IDEAS)
  with pytest.raises(UserError, match='is hidden by'):
    named('pack_of_tests:Grape')


@pytest.mark.parametrize('name', ['experiments', 'configs'])
def test_a_package_of_a_user_does_not_replace_one_of_this_project(
  folder, monkeypatch, name
):
  monkeypatch.delitem(sys.modules, 'configs', raising=False)
  package = folder / name
  package.mkdir()
  (package / '__init__.py').write_text(IDEAS)
  (package / 'ideas.py').write_text(IDEAS)
  text = f'from {name} import Grape as _\n{IDEAS}'
  (folder / 'ideas_of_tests.py').write_text(text)
  modules.search(str(folder))
  ours = re.escape(str(ROOT / name / '__init__.py'))
  for path in (f'{name}:Grape', f'{name}.ideas:Grape'):
    with pytest.raises(UserError, match=f'is hidden by {ours}; rename one'):
      named(path)
  with pytest.raises(UserError, match=rf"import name 'Grape' .*{ours}"):
    named('ideas_of_tests:Grape')


def test_libraries_are_imported_once(folder, monkeypatch):
  monkeypatch.setattr(modules.sysconfig, 'get_path', lambda _: str(folder))
  modules.search(str(folder))
  assert modules.source('ideas_of_tests:')[0].startswith(str(folder))
  assert 'helper_of_ideas' in sys.modules


@pytest.mark.parametrize('changed', ['helper_of_ideas.py', 'ideas_of_tests.py'])
def test_two_versions_of_a_file_or_of_one_beside_it_are_two_classes(
  folder, changed
):
  modules.search(str(folder))
  first, source = (
    named('ideas_of_tests:Grape'),
    modules.source('ideas_of_tests:'),
  )
  text = (folder / changed).read_text()
  (folder / changed).write_text(text.replace('2.0', '3.0') + '\n# changed\n')
  second = named('ideas_of_tests:Grape')
  assert second is not first
  scale = 3.0 if changed == 'helper_of_ideas.py' else 2.0
  assert (first.scale, second.scale) == (2.0, scale)
  file, digest = modules.source('ideas_of_tests:')
  assert source[0] == file == str(folder / 'ideas_of_tests.py')
  assert source[1] != digest


def test_a_module_may_import_one_beside_it_later(folder):
  text = IDEAS.replace(
    'return None', 'import late_of_ideas\n    return late_of_ideas'
  )
  (folder / 'late_of_ideas.py').write_text('')
  (folder / 'ideas_of_tests.py').write_text(text)
  modules.search(str(folder))
  method = named('ideas_of_tests:Grape')(8, 2, False)
  assert method.bias({}, None, None).__name__ == 'late_of_ideas'


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'has no Grape'),
    ('Grape = 3', 'must be a subclass of selfattn.positions.contract.Position'),
    ('class Grape: pass', 'must be a subclass of'),
    ('Grap = 3', 'has no Grape; did you mean Grap?'),
    ('import no_such_module', 'line 1: ModuleNotFoundError'),
    ('\n(', 'SyntaxError'),
    ('import sys; sys.exit(0)', 'SystemExit'),
    (IDEAS.replace('def bias', 'def biass'), 'did you mean bias?'),
    (IDEAS + '\n  is_relativ = True', 'is not in .* did you mean is_rel'),
    ('from selfattn.positions import Position as Grape', 'must be a subclass'),
    (
      IDEAS.replace('(self, params, query, key)', '(self, params, query)'),
      r'Grape\.bias\(self, params, query\) must take \(self, params, query, k',
    ),
  ],
)
def test_what_is_wrong_in_a_file_is_one_line(folder, text, message):
  (folder / 'ideas_of_tests.py').write_text(text)
  modules.search(str(folder))
  with pytest.raises(UserError, match=message) as error:
    named('ideas_of_tests:Grape')
  assert str(error.value).startswith('config.model.position: ideas_of_tests')
  assert '\n' not in str(error.value)


CONTRACTS = """
from experiments.data.text_files import Text
from experiments.learning.schedules import Schedule
from selfattn.pools import Pool

class Short(Schedule):
  def __call__(self, progress):
    return progress

class Without(Schedule):
  pass

class Flat(Pool):
  width: int = 3

class Careless(Text):
  def label_of(self):
    return 'x'

class Misspelt(Text):
  def lable_of(self, cells):
    return 'x'
"""


@pytest.mark.parametrize(
  ('name', 'base', 'message'),
  [
    ('Short', Schedule, '__call__.* must take'),
    ('Without', Schedule, r'Without needs __call__'),
    ('Flat', Pool, r'Flat needs __call__'),
    # Of the class that is extended, rather than of all data sets.
    ('Careless', Dataset, r'label_of\(self\) must take \(self, cells\)'),
    ('Misspelt', Dataset, 'Misspelt.lable_of is not .* mean label_of'),
  ],
)
def test_what_a_contract_needs_is_there(folder, name, base, message):
  (folder / 'ideas_of_tests.py').write_text(CONTRACTS)
  modules.search(str(folder))
  with pytest.raises(UserError, match=message):
    named(f'ideas_of_tests:{name}', base)


def test_of_modules_of_one_name_that_of_the_run_comes_first(folder):
  other = folder / 'other/ideas_of_tests.py'
  other.parent.mkdir()
  other.write_text(IDEAS.replace('int = 4', 'int = 5'))
  modules.search(str(folder))
  assert named('ideas_of_tests:Grape').groups == 4
  with modules.found_first({'ideas_of_tests': str(other)}):
    assert named('ideas_of_tests:Grape').groups == 5
  assert named('ideas_of_tests:Grape').groups == 4
