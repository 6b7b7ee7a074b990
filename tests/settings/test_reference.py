"""What keys of the config mean, and which values they may have."""

import ml_collections

from configs import default
from experiments.command.values import flat_keys
from experiments.settings import reference
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS, Position


def test_every_key_of_the_default_config_has_a_meaning():
  config = flat_keys(default.get_config())
  keys = {
    k for k, v in config.items() if not isinstance(v, ml_collections.ConfigDict)
  }
  meanings = reference.meanings()
  assert keys - meanings.keys() == set()
  assert [key for key in keys if not meanings[key]] == []


def test_allowed_values_are_those_that_the_checks_name():
  found = reference.allowed()
  for key, allowed in (
    ('data.dir', 'text'),
    ('data.text.quoted', 'True or False'),
    ('data.text.labels', 'a list, as a,b'),
    ('model.pool', f'one of {", ".join(sorted(POOLS))}'),
    ('model.position.alibi.variant', 'one of asymmetric, learned, symmetric'),
    ('model.position.path.rank', 'an integer, at least 1'),
    ('model.num_layers', 'an integer, at least 1'),
    ('optimizer.learning_rate', 'a number, greater than 0 and finite'),
    ('optimizer.muon.beta', 'a number, at least 0 and less than 1'),
    (
      'train.grad_accum_steps',
      'an integer, 0 or a divisor of config.train.batch_size',
    ),
  ):
    assert found[key] == allowed


class Documented(Position):
  """A method.

  Attributes:
    width: how far
      it looks.
  """

  width: int = 3


def test_an_attribute_of_two_lines_is_one_sentence():
  assert reference.attribute(Documented, 'width') == 'how far it looks'
  assert reference.attribute(Documented, 'causal').startswith('whether a token')
  assert reference.attribute(POSITIONS['rotary'], 'nothing') == ''
