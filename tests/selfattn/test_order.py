"""Sums over keys in the order of their index, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.order import cumulative_sum, later_sum


@pytest.mark.parametrize('count', [1, 31, 32, 33, 100])
@pytest.mark.parametrize('is_known', [True, False])
def test_sums_of_blocks_are_those_of_the_row(count, is_known):
  rng = np.random.default_rng(count)
  x = rng.normal(size=(2, 3, 4, count))
  index = np.arange(count)[None]
  order = np.arange(count)
  if not is_known:
    order = rng.permutation(count)
    index = jnp.asarray(np.argsort(order)[None])
  ordered = x[..., order]
  until = np.cumsum(ordered, axis=-1)
  back = np.argsort(order)
  found = jax.jit(lambda x: cumulative_sum(x, index))(jnp.float32(x))
  np.testing.assert_allclose(found, until[..., back], atol=1e-5)
  after = until[..., -1:] - until
  found = jax.jit(lambda x: later_sum(x, index))(jnp.float32(x))
  np.testing.assert_allclose(found, after[..., back], atol=1e-5)


@pytest.mark.parametrize('far', [3, 40])
def test_a_sum_has_no_trace_of_what_it_leaves_out(far):
  x = jnp.full((1, 1, 1, 100), 0.25).at[..., far].set(1e8)
  found = later_sum(x, np.arange(100)[None])[0, 0, 0]
  np.testing.assert_array_equal(found[far:], 0.25 * np.arange(99 - far, -1, -1))
