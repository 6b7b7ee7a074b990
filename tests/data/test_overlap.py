"""A sample of hashes tells whether texts were in train of another run."""

import numpy as np
import pytest

from experiments.data import overlap


@pytest.mark.parametrize('count', [0, 1, 1_023, 1_024, 5_000])
def test_a_sample_is_of_the_least_hashes_in_any_order_and_number_of_parts(
  count, monkeypatch
):
  monkeypatch.setattr(overlap, '_CHUNK', 300)
  rng = np.random.default_rng(count)
  hashes = rng.integers(0, 2**64, 2 * count, dtype=np.uint64)
  rows = rng.permutation(2 * count)[:count]
  rows = np.concatenate([rows, rows[:7]])
  found = overlap.sample(hashes, rows[: count // 3], rows[count // 3 :])
  np.testing.assert_array_equal(found, np.unique(hashes[rows])[:1_024])
  again = overlap.from_json(overlap.to_json(found))
  np.testing.assert_array_equal(again, found)
  assert again.dtype == np.uint64


@pytest.mark.parametrize('count', [50, 40_000])
def test_what_is_seen_is_the_same_share_in_a_sample(count):
  rng = np.random.default_rng(count)
  train, own, test = np.split(
    rng.integers(0, 2**64, 3 * count, dtype=np.uint64), 3
  )
  sample = overlap.sample(train, np.arange(count))
  assert overlap.seen(sample, test, own)[0] == 0
  # A quarter is in train there, and a fifth of these here, too.
  leaked = train[: count // 4]
  test = np.concatenate([test[len(leaked) :], leaked, leaked])
  own = np.concatenate([own, leaked[: len(leaked) // 5]])
  found, of = overlap.seen(sample, test, own)
  share = len(leaked) - len(leaked) // 5
  share /= count - len(leaked) // 5
  if count <= 1_024:
    assert of == count - len(leaked) // 5
    assert found / of == share
  else:
    assert 500 < of < 1_500
    assert abs(found / of - share) < 0.06


def test_nothing_is_seen_where_nothing_is_held_out():
  none = np.zeros(0, np.uint64)
  assert overlap.seen(none, none, none) == (0, 0)
  assert overlap.sample(none).tolist() == []
