"""The hash behaves like independent fair coins wherever one looks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.dropout import MAX_RATE, Bits, Dropout

SHAPE = (37, 29, 31)
SIZE = 37 * 29 * 31


def keep(seed=0, rate=0.5, shape=SHAPE, **more):
  return np.asarray(
    Dropout.create(jax.random.key(seed), rate, **more).keep(shape)
  )


@pytest.mark.parametrize('rate', [0.01, 0.9])
def test_rate_over_many_keys_is_within_four_sigma(rate):
  masks = [keep(seed, rate) for seed in range(50)]
  dropped = 1 - np.mean(masks)
  sigma = np.sqrt(rate * (1 - rate) / (50 * SIZE))
  assert abs(dropped - rate) < 4 * sigma
  # Each key on its own, too; five sigma, as there are fifty of them.
  assert max(abs(1 - m.mean() - rate) for m in masks) < 5 * sigma * 50**0.5


@pytest.mark.parametrize('shape', [(2,), (2, 3), (2, 3, 4)])
def test_bits_of_a_text_do_not_depend_on_its_row(shape):
  tokens, mask = np.array([[1, 2], [3, 4]]), np.ones((2, 2), bool)
  key = jax.random.key(0)
  bits = Bits.of_texts(key, tokens, mask).bits(shape)
  assert bits.shape == shape
  swapped = Bits.of_texts(key, tokens[::-1], mask).bits(shape)
  np.testing.assert_array_equal(bits[::-1], swapped)


def test_every_bit_is_balanced():
  bits = np.asarray(Dropout.create(jax.random.key(7), 0.5).bits(SHAPE))
  for bit in range(32):
    ones = ((bits >> bit) & 1).mean()
    assert abs(ones - 0.5) < 4.5 * 0.5 / np.sqrt(SIZE), bit


@pytest.mark.parametrize('axis', [0, 1, 2])
@pytest.mark.parametrize('distance', [1, 8])
def test_neighbours_are_uncorrelated(axis, distance):
  mask = keep(3).astype(float) * 2 - 1
  rolled = np.roll(mask, distance, axis)
  assert abs((mask * rolled).mean()) < 4.5 / np.sqrt(SIZE)


def test_keys_sites_and_steps_are_uncorrelated():
  base = Dropout.create(jax.random.key(0), 0.5)
  key = jax.random.key(0)
  streams = [Dropout.create(jax.random.key(s), 0.5) for s in range(8)]
  streams += [base.at(site) for site in range(8)]
  streams += [base.at(site).at(0) for site in range(8)]
  streams += [
    Dropout.create(jax.random.fold_in(key, step), 0.5) for step in range(8)
  ]
  masks = np.stack([np.asarray(s.keep(SHAPE)).ravel() for s in streams])
  signs = masks * 2.0 - 1
  correlation = signs @ signs.T / SIZE
  off_diagonal = correlation[~np.eye(len(signs), dtype=bool)]
  assert np.abs(off_diagonal).max() < 5 / np.sqrt(SIZE)


def test_micro_batches_draw_what_the_whole_batch_draws():
  whole = keep(5)
  parts = [
    keep(5, shape=(size, 29, 31), first_row=first)
    for first, size in ((0, 10), (10, 20), (30, 7))
  ]
  np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_rate_may_be_traced_and_batched():
  x = jnp.ones((5, 7))
  dropout = Dropout.create(jax.random.key(1), 0.0)
  rates = jnp.array([0.0, 0.25, 0.5])
  batched = jax.vmap(lambda rate: dropout.replace(rate=rate)(x))(rates)
  for rate, row in zip(rates, batched, strict=True):
    alone = dropout.replace(rate=float(rate))(x)
    np.testing.assert_allclose(row, alone, rtol=1e-6)
  np.testing.assert_array_equal(batched[0], x)


def test_mean_is_kept_and_dtype_too():
  x = jnp.full((64, 64), 3, jnp.bfloat16)
  y = Dropout.create(jax.random.key(0), 0.5)(x)
  assert y.dtype == jnp.bfloat16
  assert abs(float(y.astype(jnp.float32).mean()) - 3) < 0.2
  assert set(np.unique(y.astype(np.float32))) == {0.0, 6.0}


def test_raw_typed_and_wide_keys_are_taken():
  typed = Dropout.create(jax.random.key(4), 0.5).bits((4, 4))
  raw = Dropout.create(jax.random.PRNGKey(4), 0.5).bits((4, 4))
  np.testing.assert_array_equal(typed, raw)
  rbg = [
    Dropout.create(jax.random.key(seed, impl='rbg'), 0.5).bits((4, 4))
    for seed in (0, 1)
  ]
  assert (np.asarray(rbg[0]) != np.asarray(rbg[1])).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  'full_shape',
  [(2, 8, 32_768, 32_768), (2, 8, 2**31), (2, 3, 2**16, 2**17, 5)],
)
def test_nothing_repeats_past_two_to_the_32_elements_a_row(full_shape):
  """Rows are told apart exactly: only a hash of 32 bits may fall on another."""
  dropout = Dropout.create(jax.random.key(0), 0.5)
  corner = tuple(min(size, 8) for size in full_shape)
  bits = np.asarray(dropout.bits(corner, full_shape=full_shape))
  assert len(np.unique(bits)) > bits.size - 4
  # A part has the bits that it has in the whole.
  origin = tuple(size // 2 for size in corner)
  inner = tuple(slice(n, 2 * n) for n in origin)
  part = dropout.bits(origin, full_shape=full_shape, origin=origin)
  np.testing.assert_array_equal(part, bits[inner])


def test_bits_of_smaller_arrays_stay_what_they_were():
  """Numbers that runs were trained with."""
  dropout = Dropout.create(jax.random.key(3), 0.5, first_row=5)
  part = {'full_shape': (9, 4, 2**15, 2**15), 'origin': (2, 1, 7, 2**14)}
  first = [3545297861, 4281962518, 1411162740, 2974989792]
  second = [2771841313, 3417525491, 2098146159, 3182746329]
  found = dropout.bits((2, 1, 2, 2), **part)
  np.testing.assert_array_equal(found.ravel(), first + second)


@pytest.mark.parametrize('rate', [0.99999999, 1.0, -0.1, float('nan')])
def test_a_rate_that_leaves_nothing_to_scale_up_is_refused(rate):
  dropout = Dropout.create(jax.random.key(0), rate)
  with pytest.raises(ValueError, match=f'rate = {rate} must be'):
    dropout(jnp.ones(3))
  with pytest.raises(ValueError, match=f'rate = {rate} must be'):
    dropout.keep((3,))


def test_the_largest_rate_scales_by_what_is_finite():
  x = Dropout.create(jax.random.key(0), MAX_RATE)(jnp.ones((2**10, 2**10)))
  assert set(np.unique(x)) <= {0.0, 2.0**24}
