"""A stranger's encoder or method: one class, and every command knows it."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from conftest import make_small_config

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.inspection import head_analysis
from experiments.settings import settings as settings_lib
from experiments.training import build
from selfattn.attention import Attention
from selfattn.contract import Encoder
from selfattn.encoders import ENCODERS
from selfattn.masks import Tokens
from selfattn.normalisers import Softmax
from selfattn.positions import Position

pytestmark = pytest.mark.usefixtures('shared_programs')


class Parallel(Encoder):
  """Attention and a network side by side, with a gate between them."""

  num_layers: int
  num_heads: int
  mlp_dim: int
  position: Position
  vocab_size: int
  normaliser: Softmax | None = None
  gate: float = 0.5

  def check(self, embed_dim, *, drops_weights, platform):
    if not 0 <= self.gate <= 1:
      raise ValueError(f'gate = {self.gate} must be between 0 and 1')
    if drops_weights and self.num_heads > 2:
      raise ValueError(f'num_heads = {self.num_heads} must be at most 2')

  def unsupported_cls(self, num_tokens):
    return None

  @nn.compact
  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    tokens, width = Tokens.of(tokens), x_BLD.shape[-1]
    for layer in range(self.num_layers):
      attended, _ = Attention(
        width,
        self.num_heads,
        position=self.position,
        normaliser=self.normaliser,
        name=f'mix_{layer}',
      )(x_BLD, query_tokens=tokens, dropout=attention_dropout)
      h_BLF = nn.relu(nn.Dense(self.mlp_dim, name=f'in_{layer}')(x_BLD))
      h_BLD = nn.Dense(width, name=f'out_{layer}')(h_BLF)
      x_BLD = x_BLD + self.gate * attended + (1 - self.gate) * h_BLD
    return x_BLD


@pytest.fixture(autouse=True)
def registered(monkeypatch):
  monkeypatch.setitem(ENCODERS, 'parallel', Parallel)


def make_config(**changes):
  config = make_small_config()
  config.model.encoder = 'parallel'
  config.model.position = 't5(shared=False)'
  config.model.normaliser = 'sinks'
  config.model.num_layers = 2
  config.update_from_flattened_dict(
    {f'model.{key}': value for key, value in changes.items()}
  )
  return config


def test_it_is_handed_what_it_declares():
  settings = settings_lib.from_config(make_config())
  encoder = build.model(settings, 31, 2).encoder
  assert (encoder.num_layers, encoder.num_heads, encoder.mlp_dim) == (2, 2, 20)
  assert encoder.vocab_size == encoder.position.vocab_size == 31
  assert type(encoder.normaliser).__name__ == 'Sinks'
  assert not encoder.position.causal


def test_it_checks_itself_and_the_keys_are_those_of_the_config():
  with pytest.raises(UserError) as error:
    settings_lib.from_config(make_config(encoder='parallel(gate=1.5)'))
  assert str(error.value) == (
    'config.model.encoder = parallel(gate=1.5): gate = 1.5 must be between 0 '
    'and 1'
  )
  wide = {'num_heads': 3, 'attention_dropout_rate': 0.1}
  with pytest.raises(UserError, match=r'^config\.model\.num_heads = 3 must be'):
    settings_lib.from_config(make_config(**wide))
  settings_lib.from_config(make_config(pool='cls'))


def test_one_that_declares_no_size_is_handed_none(monkeypatch):
  class Bare(Encoder):
    """Nothing but what is called."""

    def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
      return x_BLD

  monkeypatch.setitem(ENCODERS, 'parallel', Bare)
  settings = settings_lib.from_config(make_config())
  model = build.model(settings, 31, 2)
  with pytest.raises(UserError, match="encoder must be 'attention'"):
    head_analysis.require_heads(model)
  shapes = jax.eval_shape(
    model.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), bool)
  )
  assert set(shapes['params']) == {'embed', 'head'}


METHOD = """
import dataclasses
import jax.numpy as jnp
from selfattn.positions import Position

@dataclasses.dataclass(frozen=True)
class Mine(Position):
  def bias(self, params, query, key):
    return {}
"""


@pytest.mark.parametrize(
  ('returned', 'line'),
  [
    ('jnp.zeros(len(key.positions[0]))', r'Mine.bias returned .* shape \(9,\)'),
    # Right for texts of one token alone.
    ('jnp.zeros((1, self.num_heads, 1, 1))', r'must be \(1 or 2, 2, 9, 9\)'),
    ('key.positions @ query.positions', 'ideas_of_shapes.py line 9: ValueErr'),
    ('params["slope"]', "ideas_of_shapes.py line 9: KeyError: 'slope'"),
  ],
)
def test_a_hook_that_does_not_fit_is_one_line(
  returned, line, tmp_path, monkeypatch
):
  monkeypatch.setattr(modules, '_folders', [str(tmp_path)])
  (tmp_path / 'ideas_of_shapes.py').write_text(METHOD.format(returned))
  config = make_config(encoder='attention', position='ideas_of_shapes:Mine')
  config.data.max_length = 9
  with pytest.raises(UserError, match=line) as error:
    build.model(settings_lib.from_config(config), 31, 2)
  start = 'config.model.position = ideas_of_shapes:Mine: '
  assert str(error.value).startswith(start)


NORMALISER = """

from selfattn.normalisers import Softmax

@dataclasses.dataclass(frozen=True)
class Mean(Softmax):
  def __call__(self, params, scores, mask, query, key):
    return {}
"""


@pytest.mark.parametrize(
  ('returned', 'line'),
  [
    ('scores[..., :1]', r'Mean.__call__ returned .* shape \(2, 2, 9, 1\)'),
    ('params["slope"]', "ideas_of_means.py line 17: KeyError: 'slope'"),
  ],
)
def test_the_class_that_fails_is_named_beside_one_of_the_same_file(
  returned, line, tmp_path, monkeypatch
):
  monkeypatch.setattr(modules, '_folders', [str(tmp_path)])
  text = METHOD.format('None') + NORMALISER.format(returned)
  (tmp_path / 'ideas_of_means.py').write_text(text)
  config = make_config(encoder='attention', position='ideas_of_means:Mine')
  config.model.normaliser = 'ideas_of_means:Mean'
  config.data.max_length = 9
  with pytest.raises(UserError, match=line) as error:
    build.model(settings_lib.from_config(config), 31, 2)
  start = 'config.model.normaliser = ideas_of_means:Mean: '
  assert str(error.value).startswith(start)
