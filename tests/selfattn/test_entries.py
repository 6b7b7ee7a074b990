"""Every method and normaliser, by itself and as one of a group of a sweep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.encoders import AttentionEncoder
from selfattn.masks import Tokens
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from tests.conftest import draw, is_causal_only

B, L, H, K, V, F, GROUP = 2, 5, 2, 6, 7, 9, 3
D = H * K
X = jax.random.normal(jax.random.key(0), (B, L, D))
IDS = jnp.array([[1, 2, 3, 2, 6], [4, 5, 3, 0, 0]])
TOKENS = Tokens(IDS > 0, ids=IDS)
# Steps in units of a direction, and the weights of a central difference of
# fourth order; below 0.02, rounding to float32 dominates.
STEPS = 0.02 * jnp.array([-2.0, -1.0, 1.0, 2.0])
WEIGHTS = np.array([1, -8, 8, -1]) / (12 * 0.02)

pytestmark = [
  pytest.mark.matrix,
  pytest.mark.parametrize(
    ('position', 'name'),
    [(name, 'softmax') for name in POSITIONS]
    + [('none', name) for name in NORMALISERS if name != 'softmax'],
  ),
]


def made(position, name):
  """A function from parameters and vectors to outputs, and parameters."""
  normaliser = NORMALISERS[name](H, head_dim=K)
  causal = is_causal_only(position) or normaliser.causal_only
  method = POSITIONS[position](D, H, causal, vocab_size=V)
  encoder = AttentionEncoder(
    1, H, F, method, jnp.float32, causal=causal, normaliser=normaliser
  )

  def output(params, x_BLD):
    y_BLD = encoder.apply({'params': params}, x_BLD, TOKENS)
    return jnp.where((IDS > 0)[..., None], y_BLD, 0)

  return output, draw(encoder.init, jax.random.key(2), X, TOKENS)['params']


def test_a_group_equals_its_models_alone(position, name):
  """Outputs; gradients where a derivative is not that of the formula."""
  output, params = made(position, name)
  factors = jnp.array([1.0, 0.5, -0.7])
  stacked = jax.tree.map(lambda p: jnp.multiply.outer(factors, p), params)

  def values(params):
    return output(params, X)

  def slope(params):
    return jax.grad(lambda params: (values(params) ** 2).sum())(params)

  # Others have no derivatives of their own.
  has_rule = position == 'path' or name in ('sparsemax', 'entmax')
  function = slope if has_rule else values

  @jax.jit
  def both(stacked):
    return jax.vmap(function)(stacked), jax.lax.map(function, stacked)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
    *both(stacked),
  )


def test_gradients_equal_finite_differences(position, name):
  output, params = made(position, name)
  probe = jax.random.normal(jax.random.key(3), X.shape)
  leaves, structure = jax.tree.flatten((params, X))
  keys = jax.random.split(jax.random.key(4), len(leaves))
  along = jax.tree.unflatten(
    structure,
    [
      0.1 * jax.random.normal(key, leaf.shape)
      for key, leaf in zip(keys, leaves, strict=True)
    ],
  )

  def total(step):
    params_now, x = jax.tree.map(
      lambda leaf, d: leaf + step * d, (params, X), along
    )
    return (output(params_now, x) * probe).sum()

  @jax.jit
  def both():
    return jax.lax.map(total, STEPS), jax.grad(total)(0.0)

  values, slope = both()
  want = WEIGHTS @ np.asarray(values, float)
  np.testing.assert_allclose(slope, want, rtol=2e-3, atol=2e-3)
