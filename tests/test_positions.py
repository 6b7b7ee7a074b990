"""Every position method against its formula, and the contract of the hooks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.attention import Attention
from selfattn.positions import POSITIONS, Position

WIDTH, HEADS = 14, 7
POSITIONS_BL = np.array([[0, 1, 5, 2, 11]])


def sinusoid(params, positions):
  rates = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
  angles = positions[..., None] * rates
  table = np.zeros((*positions.shape, WIDTH))
  table[..., 0::2], table[..., 1::2] = np.sin(angles), np.cos(angles)
  return table


# One row a method: what it adds to the tokens, from its parameters, in float64.
ROWS = {
  'none': lambda params, positions: None,
  'sinusoidal': sinusoid,
  'learned': lambda params, positions: np.asarray(params['table'])[positions],
}


def test_every_method_has_a_row():
  assert set(ROWS) == set(POSITIONS)


def make(name, **options):
  method = POSITIONS[name](WIDTH, HEADS, **options)
  return method, method.init(jax.random.key(0))


@pytest.mark.parametrize('name', ROWS)
def test_embed_equals_its_formula(name):
  method, params = make(name)
  want = ROWS[name](params, POSITIONS_BL)
  embed = jax.jit(method.embed)
  for found in (
    method.embed(params, POSITIONS_BL),
    embed(params, jnp.asarray(POSITIONS_BL)),
  ):
    if want is None:
      assert found is None
    else:
      assert found.dtype == jnp.float32
      np.testing.assert_allclose(found, want, atol=2e-6)


@pytest.mark.parametrize('name', ROWS)
def test_methods_are_hashable_and_say_whether_they_have_parameters(name):
  method, params = make(name)
  assert hash(method) == hash(make(name)[0])
  assert method.has_parameters == bool(params)


@pytest.mark.parametrize('name', ROWS)
def test_options_have_defaults_that_a_config_can_hold(name):
  for field in dataclasses.fields(POSITIONS[name]):
    if field.name not in ('embed_dim', 'num_heads'):
      assert isinstance(field.default, str | int | float | bool | tuple)


def test_learned_refuses_known_positions_past_its_table():
  method, params = make('learned', max_len=6)
  assert method.max_length() == 6
  with pytest.raises(ValueError, match='max_len = 6'):
    method.embed(params, np.arange(7)[None])
  with pytest.raises(ValueError, match='max_len = 6'):
    method.embed(params, np.array([[-1]]))


def test_learned_marks_traced_positions_past_its_table_as_nan():
  method, params = make('learned', max_len=6)
  rows = jax.jit(method.embed)(params, jnp.array([[-1, 0, 5, 6]]))
  assert np.isnan(rows).all(axis=-1).tolist() == [[True, False, False, True]]


def test_sinusoid_keeps_far_positions_apart():
  method, _ = make('sinusoidal')
  far = np.array([[100_000, 100_001]])
  rates = 10_000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
  exact = np.sin(far[..., None] * rates)
  np.testing.assert_allclose(method.embed({}, far)[..., 0::2], exact, atol=1e-7)


@dataclasses.dataclass(frozen=True)
class EveryHook(Position):
  """Fills each hook with something simple, for a reference to repeat."""

  def init(self, key):
    return {'scale': jnp.asarray(0.3)}

  def rotate(self, params, x_BLHK, positions_BL):
    angle = jnp.asarray(positions_BL, jnp.float32)[..., None, None]
    a, b = jnp.split(x_BLHK, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

  def bias(self, params, query_BL, key_BM):
    distance = abs(query_BL[:, :, None] - key_BM[:, None, :])
    heads = jnp.arange(self.num_heads)[None, :, None, None]
    return -params['scale'] * heads * jnp.asarray(distance)[:, None]

  def content(self, params, q_BLHK, k_BMHK, query_BL, key_BM):
    ahead = key_BM[:, None, :] > query_BL[:, :, None]
    return q_BLHK.sum(-1).swapaxes(1, 2)[..., None] * ahead[:, None]

  def value(self, params, weights_BHLM, query_BL, key_BM):
    signed = jnp.asarray(key_BM, jnp.float32)[:, None, None]
    term = (weights_BHLM * signed).sum(-1).swapaxes(1, 2)
    return term[..., None] * params['scale']


def test_attention_applies_every_hook():
  """One method with all five, against float64 loops over heads."""
  method = EveryHook(WIDTH, HEADS)
  layer = Attention(WIDTH, HEADS, position=method)
  x_BLD = jax.random.normal(jax.random.key(0), (2, 5, WIDTH))
  mask = (
    jnp.arange(5)[None, None, None] < jnp.array([5, 3])[:, None, None, None]
  )
  more = {
    'mask': mask,
    'query_positions': POSITIONS_BL,
    'key_positions': POSITIONS_BL,
    'position_params': method.init(None),
  }
  variables = layer.init(jax.random.key(1), x_BLD, x_BLD, x_BLD, **more)
  output, _ = layer.apply(variables, x_BLD, x_BLD, x_BLD, **more)

  params = jax.tree.map(lambda x: np.asarray(x, float), variables['params'])
  x, positions = np.asarray(x_BLD, float), POSITIONS_BL[0]
  q, k, v = (
    (x @ params[n]['kernel'] + params[n]['bias']).reshape(2, 5, HEADS, 2)
    for n in ('query', 'key', 'value')
  )
  want = np.zeros((2, 5, HEADS, 2))
  for b in range(2):
    for h in range(HEADS):
      turned = []
      for rows in (q[b, :, h], k[b, :, h]):
        cos, sin = np.cos(positions), np.sin(positions)
        first = rows[:, 0] * cos - rows[:, 1] * sin
        second = rows[:, 0] * sin + rows[:, 1] * cos
        turned.append(np.stack([first, second], axis=-1))
      ahead = positions[None] > positions[:, None]
      scores = turned[0] @ turned[1].T + turned[0].sum(-1)[:, None] * ahead
      scores = scores / np.sqrt(2)
      scores = scores - 0.3 * h * abs(positions[:, None] - positions[None])
      scores = np.where(np.asarray(mask)[b, 0, 0], scores, -np.inf)
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      weights /= weights.sum(-1, keepdims=True)
      want[b, :, h] = weights @ v[b, :, h]
      want[b, :, h] += 0.3 * (weights @ positions)[:, None]
  want = want.reshape(2, 5, WIDTH) @ params['out']['kernel']
  want = want + params['out']['bias']
  np.testing.assert_allclose(output, want, rtol=1e-5, atol=1e-5)
