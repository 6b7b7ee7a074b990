"""What keys of the config mean, and which values they may have."""

import dataclasses

import pytest

from configs import default
from experiments.command import schema
from experiments.command.errors import UserError
from experiments.command.values import flat_keys
from experiments.settings import reference
from selfattn.positions import POSITIONS, Position


def test_every_key_of_the_default_config_has_a_meaning_and_is_described():
  config = flat_keys(default.get_config())
  meanings = reference.meanings()
  assert [key for key in meanings if not meanings[key]] == []
  assert meanings.keys() == reference.allowed().keys()
  assert [key for key in meanings if key not in config] == []
  assert len(reference.described('').splitlines()) == len(meanings)


@pytest.mark.parametrize(
  ('key', 'allowed'),
  [
    ('data.dir', 'text'),
    ('train.shuffle_by_seed', 'True or False'),
    ('data.text.labels', 'a list, as a,b or (1, 2)'),
    ('model.head', 'linear, mlp'),
    ('model.num_layers', 'an integer, at least 1'),
    ('model.dtype', "one of 'float32', 'bfloat16'"),
    ('optimizer.learning_rate', 'a number, greater than 0 and finite'),
  ],
)
def test_allowed_values_are_those_of_the_limits_and_tables(key, allowed):
  assert reference.allowed()[key] == allowed


def test_help_of_a_choice_lists_its_entries_and_their_options():
  text = reference.described('position')
  assert all(f'{name}: ' in text for name in POSITIONS)
  assert text == reference.described('model.position')
  assert text == reference.described('config.model.position')
  alone = reference.described('rotary')
  assert alone in text
  assert alone == reference.described('rope')
  assert '  base=10000: base of the angles' in alone
  assert '  window=(): ' in reference.described('attention')


def test_help_of_a_name_with_two_meanings_has_both():
  head, schedule = reference.described('linear').split('\n\n')
  assert 'pooled vector' in head
  assert 'last update' in schedule


def test_help_of_a_key_or_a_section_says_what_is_allowed():
  (line,) = reference.described('num_layers').splitlines()
  assert line.startswith('  --config.model.num_layers=2: ')
  assert line.endswith('(an integer, at least 1)')
  assert line in reference.described('model').splitlines()
  assert len(reference.described('seed').splitlines()) == 2


# An option of every position method.
HEADS = schema.meaning(Position, 'heads')


def test_help_of_a_class_of_ones_own_lists_its_options():
  name = f'{__name__}:Documented'
  assert reference.described(name).splitlines() == [
    f'{name}: A method.',
    f'  heads=0: {HEADS}',
    '  width=3: how far it looks',
    '  side=None: text or None',
  ]


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('rotry', 'did you mean rotary'),
    ('modle', 'did you mean model'),
    ('nowhere:Class', 'there is no module nowhere'),
    (f'{__name__}:POSITIONS', 'a subclass of none of .*Position'),
  ],
)
def test_help_of_what_there_is_not_is_one_line(name, message):
  with pytest.raises(UserError, match=message) as error:
    reference.described(name)
  assert f'--help={name}' in str(error.value) or '--help: ' in str(error.value)
  assert '\n' not in str(error.value)


@dataclasses.dataclass(frozen=True)
class Documented(Position):
  """A method.

  Attributes:
    width: how far
      it looks.
  """

  width: int = 3
  side: str | None = None
