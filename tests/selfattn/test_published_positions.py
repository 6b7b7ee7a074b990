"""Options of positions that published models have."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.positions import POSITIONS
from tests.conftest import at

D, H, K = 24, 2, 12
Rotary, Learned = POSITIONS['rotary'], POSITIONS['learned']


def tokens(*positions):
  return at(np.array([positions])).with_defaults(len(positions), 1)


def halves(rotary, *positions):
  return np.split(np.asarray(rotary.encoding({}, tokens(*positions))), 2, -1)


def test_reverse_turns_the_other_way():
  cos, sin = halves(Rotary(D, H, True), 0, 3, 70)
  same, other = halves(Rotary(D, H, True, reverse=True), 0, 3, 70)
  np.testing.assert_array_equal(same, cos)
  np.testing.assert_array_equal(other, -sin)


def test_an_amplitude_replaces_that_of_the_scaling():
  yarn = Rotary(D, H, True, scaling='yarn', factor=4.0)
  cos, _ = halves(yarn, 5)
  other, _ = halves(dataclasses.replace(yarn, amplitude=2.0), 5)
  usual = 0.1 * math.log(4) + 1
  np.testing.assert_allclose(other, cos * 2 / usual, rtol=1e-6)


def test_yarn_interpolates_between_pairs_that_are_not_rounded():
  """Peng et al. 2023, equations 17 to 20, with real bounds."""
  base, factor, original, R = 100.0, 4.0, 64, K
  yarn = Rotary(
    D, H, True, base=base, scaling='yarn', factor=factor, truncate=False,
    original_length=original, beta_fast=6.0,
  )  # fmt: skip

  def bound(turns):
    return R * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

  low, high = max(bound(6.0), 0), min(bound(1.0), R - 1)
  pair = np.arange(R // 2)
  share = np.clip((pair - low) / (high - low), 0, 1)
  rates = base ** (-2 * pair / R)
  want = rates * (1 - share) + rates / factor * share
  np.testing.assert_allclose(yarn.rates(), want, rtol=1e-12)
  rounded = dataclasses.replace(yarn, truncate=True)
  assert not np.allclose(rounded.rates(), want)


@pytest.mark.parametrize('is_traced', [False, True])
def test_short_factors_are_those_of_texts_up_to_the_original_length(is_traced):
  long = Rotary(
    D, H, True, scaling='longrope', factor=2.0, original_length=8,
    pair_factors=(2.0,) * 6,
  )  # fmt: skip
  short = dataclasses.replace(long, pair_factors=(1.5,) * 6)
  both = dataclasses.replace(long, short_factors=(1.5,) * 6)

  def encoding(rotary, *positions):
    run = lambda x: rotary.encoding({}, at(x).with_defaults(2, 1))  # noqa: E731
    run = jax.jit(run) if is_traced else run
    return np.asarray(run(np.array([positions])))

  np.testing.assert_array_equal(encoding(both, 3, 7), encoding(short, 3, 7))
  np.testing.assert_array_equal(encoding(both, 3, 8), encoding(long, 3, 8))


def test_rows_before_the_first_position_are_of_none():
  learned = Learned(D, H, False, max_len=7, offset=2)
  table = jnp.arange(7.0 * D).reshape(7, D)
  found = learned.encoding({'table': table}, tokens(0, 4))
  np.testing.assert_array_equal(found[0], table[jnp.array([2, 6])])
  assert learned.max_length() == 5
  with pytest.raises(ValueError, match=r'positions 0\.\.5 do not fit'):
    learned.encoding({'table': table}, tokens(0, 5))
  run = jax.jit(
    lambda x: learned.encoding({'table': table}, at(x).with_defaults(2, 1))
  )
  beyond = run(jnp.array([[-1, 5]]))
  assert np.isnan(beyond).all()


@pytest.mark.parametrize(
  ('method', 'option'),
  [
    (Rotary, {'short_factors': (1.0,) * 6}),
    (Rotary, {'amplitude': -1.0}),
    (Learned, {'offset': 512}),
  ],
)
def test_an_option_out_of_range_is_refused(method, option):
  (name,) = option
  with pytest.raises(ValueError, match=f'{name} = '):
    method(D, H, True, **option)
