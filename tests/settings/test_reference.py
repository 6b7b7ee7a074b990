"""What keys of the config mean, and which values they may have."""

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
    ('data.text.quoted', 'True or False'),
    ('data.text.labels', 'a list, as a,b'),
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
  alone = reference.described('rotary')
  assert alone in text
  assert alone == reference.described('rope')
  assert '  base=10000.0: base of the angles' in alone
  with pytest.raises(UserError, match=r'--help=rotry .* did you mean rotary'):
    reference.described('rotry')


class Documented(Position):
  """A method.

  Attributes:
    width: how far
      it looks.
  """

  width: int = 3


def test_an_attribute_of_two_lines_is_one_sentence():
  assert schema.meaning(Documented, 'width') == 'how far it looks'
  assert schema.meaning(Documented, 'causal').startswith('whether a token')
  assert schema.meaning(POSITIONS['rotary'], 'nothing') == ''
