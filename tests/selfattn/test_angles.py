"""Angles of far positions are right, whether positions are known or traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.encoders import AttentionEncoder
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import at

D, H = 24, 3
FAR = np.array([[0, 1, 32_768, 131_071, 131_072, 10**6, 2**31 - 1, -70_000]])
METHODS = [
  ('rotary', {}),
  ('rotary', {'scaling': 'linear', 'factor': 3.0}),
  ('rotary', {'scaling': 'ntk', 'factor': 4.0}),
  ('rotary', {'scaling': 'yarn', 'factor': 4.0}),
  ('rotary', {'base': 500_000.0}),
  ('sinusoidal', {}),
  ('sinusoidal', {'layout': 'tensor2tensor', 'base': 77.0}),
]


def label(variant):
  return '-'.join(map(str, [variant[0], *variant[1].values()]))


@pytest.mark.parametrize('variant', METHODS, ids=label)
def test_traced_positions_have_the_angles_of_known_ones(variant):
  name, options = variant
  method = POSITIONS[name](D, H, False, **options)
  known = method.encoding({}, at(FAR))
  traced = jax.jit(method.encoding)({}, at(jnp.asarray(FAR, jnp.int32)))
  assert traced.dtype == jnp.float32
  np.testing.assert_allclose(traced, known, rtol=0, atol=1e-6)


@pytest.mark.parametrize('variant', METHODS[::5], ids=label)
def test_positions_may_be_real_numbers(variant):
  name, options = variant
  method = POSITIONS[name](D, H, False, **options)
  where = np.array([[0.5, -3.25, 70.125, 4_095.0, 30_000.75]])
  known = method.encoding({}, at(where))
  traced = jax.jit(method.encoding)({}, at(jnp.asarray(where, jnp.float32)))
  np.testing.assert_allclose(traced, known, rtol=0, atol=1e-6)
  between = (
    method.encoding({}, at(np.floor(where))),
    method.encoding({}, at(np.ceil(where))),
  )
  assert abs(known - between[0]).max() > 1e-2
  assert abs(known - between[1]).max() > 1e-2


def lowered(tokens, **fields):
  """Text of the program of an encoder."""
  method = POSITIONS['rotary'](D, H, False)
  encoder = AttentionEncoder(2, H, 7, method, jnp.float32, **fields)
  x_BLD = jax.ShapeDtypeStruct((2, FAR.size, D), jnp.float32)
  variables = jax.eval_shape(
    lambda x: encoder.init(jax.random.key(0), x, tokens), x_BLD
  )
  apply = jax.jit(lambda variables, x: encoder.apply(variables, x, tokens))
  return apply.lower(variables, x_BLD).as_text()


def test_counted_positions_are_known_under_scan_and_remat():
  """Then a table of float64 is in the program, and no sine is left to do."""
  assert 'stablehlo.sine' not in lowered(Tokens(), scan=True, remat=True)
  assert 'stablehlo.sine' in lowered(Tokens(positions=jnp.asarray(FAR)))
