"""Models trained as one program, as groups of a sweep are, equal each alone."""

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
IDS = jnp.array([[1, 2, 3, 2, 6], [4, 5, 0, 0, 0]])


@pytest.mark.matrix
@pytest.mark.parametrize(
  ('position', 'name'),
  [(name, 'softmax') for name in POSITIONS]
  + [('none', name) for name in NORMALISERS if name != 'softmax'],
)
def test_a_group_equals_its_models_alone(position, name):
  """Outputs; gradients where a derivative is not that of the formula."""
  normaliser = NORMALISERS[name](H, head_dim=K)
  causal = is_causal_only(position) or normaliser.causal_only
  method = POSITIONS[position](D, H, causal, vocab_size=V)
  encoder = AttentionEncoder(
    1, H, F, method, jnp.float32, causal=causal, normaliser=normaliser
  )
  tokens = Tokens(IDS > 0, ids=IDS)
  params = draw(encoder.init, jax.random.key(0), X, tokens)['params']
  factors = jnp.array([1.0, 0.5, -0.7])
  stacked = jax.tree.map(lambda p: jnp.multiply.outer(factors, p), params)

  def output(params):
    y_BLD = encoder.apply({'params': params}, X, tokens)
    return jnp.where((IDS > 0)[..., None], y_BLD, 0)

  def slope(params):
    return jax.grad(lambda params: (output(params) ** 2).sum())(params)

  # Others have no derivatives of their own.
  has_rule = position == 'path' or name in ('sparsemax', 'entmax')
  function = slope if has_rule else output

  @jax.jit
  def both(stacked):
    return jax.vmap(function)(stacked), jax.lax.map(function, stacked)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
    *both(stacked),
  )
