"""Classes of one's own, as module:Class."""

import pytest

from experiments.command import modules
from experiments.command.errors import UserError
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
  monkeypatch.setattr(modules, '_loaded', {})
  (tmp_path / 'work').mkdir()
  monkeypatch.chdir(tmp_path / 'work')
  (tmp_path / 'helper_of_ideas.py').write_text(HELPER)
  (tmp_path / 'ideas_of_tests.py').write_text(IDEAS)
  return tmp_path


def named(name, base=Position):
  return modules.named(name, base, 'config.model.position')


def test_a_class_is_found_in_a_searched_folder_with_a_module_beside_it(folder):
  with pytest.raises(UserError, match='there is no module ideas_of_tests in'):
    named('ideas_of_tests:Grape')
  modules.search(str(folder))
  assert named('ideas_of_tests:Grape').scale == 2.0
  assert named('ideas_of_tests:Grape') is named('ideas_of_tests:Grape')


def test_a_class_is_found_in_the_working_folder_and_on_the_path(folder):
  (folder / 'work/here.py').write_text(
    'from selfattn.positions import Position'
  )
  assert named('here:Position') is Position
  assert named('selfattn.positions.rotary:Rotary').__name__ == 'Rotary'


def test_two_versions_of_a_file_are_two_classes(folder):
  modules.search(str(folder))
  first, source = (
    named('ideas_of_tests:Grape'),
    modules.source('ideas_of_tests:'),
  )
  (folder / 'helper_of_ideas.py').write_text('SCALE = 3.0\n')
  (folder / 'ideas_of_tests.py').write_text(IDEAS + '\n')
  second = named('ideas_of_tests:Grape')
  assert (first.scale, second.scale) == (2.0, 3.0)
  file, digest = modules.source('ideas_of_tests:')
  assert source[0] == file == str(folder / 'ideas_of_tests.py')
  assert source[1] != digest


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'has no Grape'),
    ('Grape = 3', 'must be a subclass of selfattn.positions.contract.Position'),
    ('class Grape: pass', 'must be a subclass of'),
    ('Grap = 3', 'has no Grape; did you mean Grap?'),
    ('import no_such_module', 'line 1: ModuleNotFoundError'),
    ('\n(', 'SyntaxError'),
    (IDEAS.replace('def bias', 'def biass'), 'did you mean bias?'),
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


def test_a_helper_of_a_class_may_have_any_other_name(folder):
  text = (
    IDEAS + '\n  def bias_table(self): return 3\n  def _bia(self): return 4'
  )
  (folder / 'ideas_of_tests.py').write_text(text)
  modules.search(str(folder))
  assert named('ideas_of_tests:Grape').groups == 4
