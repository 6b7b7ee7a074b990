"""Angles of far positions are right, whether positions are known or traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.encoders import AttentionEncoder
from selfattn.positions import POSITIONS, make
from selfattn.tokens import Tokens
from tests.conftest import at, normal

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


@pytest.mark.slow
@pytest.mark.parametrize('shift', [100_000, 2**24 + 1])
@pytest.mark.parametrize('name', ['repo', 'grape_ap', 'rotary'])
def test_far_positions_are_as_exact_as_near_ones(name, shift):
  """In float32, positions 2^24 + 1 and 2^24 would be equal."""
  encoder = AttentionEncoder(
    num_layers=4,
    num_heads=2,
    mlp_dim=16,
    position=make({name: {}}, 8, 2, True),
    causal=True,
    dtype=jnp.float32,
  )
  x, positions = normal(0, (1, 6, 8)), np.arange(6)[None]
  variables = encoder.init(jax.random.key(0), x)

  def outputs(positions):
    return encoder.apply(variables, x, Tokens(positions=positions))

  near, known = outputs(positions), outputs(positions + shift)
  traced = jax.jit(outputs)(jnp.asarray(positions + shift))
  np.testing.assert_allclose(traced, known, atol=2e-5)
  if name != 'grape_ap':  # It turns keys alone.
    np.testing.assert_allclose(known, near, atol=2e-5)


@pytest.mark.parametrize('is_real', [False, True])
def test_learned_rates_turn_far_positions_as_exactly_as_near_ones(is_real):
  """Values, and gradients by the rates, which grow with the position."""
  method = POSITIONS['complex_order'](D, H, False, shared='words')
  rates = np.random.default_rng(0).uniform(0, 2, D // 2).astype(np.float32)
  where = FAR.astype(np.float32) / 4 if is_real else FAR.astype(np.int32)
  x = np.asarray(normal(1, (1, FAR.size, D)))

  @jax.jit
  def turned(rates, positions):
    return method.embed({'rates': rates[None]}, x, Tokens(positions=positions))

  angle = where[0, :, None].astype(float) * rates.astype(float)
  wave = (x[0, :, : D // 2] + 1j * x[0, :, D // 2 :]) * np.exp(1j * angle)
  want = np.concatenate([wave.real, wave.imag], axis=-1)
  np.testing.assert_allclose(turned(rates, where)[0], want, atol=3e-6)
  by_rate = jax.grad(lambda r: turned(r, where)[0, :, 0].sum())(rates)
  slopes = -where[0, :].astype(float) * wave.imag[:, 0]
  np.testing.assert_allclose(by_rate[0], slopes.sum(), rtol=1e-5)


def test_negative_positions_of_lie_re_are_nan_where_they_are_traced():
  method = POSITIONS['lie_re'](8, 2, True)
  params, q = method.init(jax.random.key(0)), jnp.ones((1, 3, 2, 4))

  @jax.jit
  def turned(positions):
    tokens = Tokens(positions=positions).with_defaults(3, 1)
    return method.rotate(params, q, q, tokens, tokens)[0]

  is_number = np.isfinite(turned(jnp.array([[-1, 0, 1]]))).all(axis=(0, 2, 3))
  np.testing.assert_array_equal(is_number, [False, True, True])
