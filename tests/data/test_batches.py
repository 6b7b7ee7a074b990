"""A batch is a pure function of the step; every example counts once."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.data import batches as batches_lib


def examples(count, longest=9, seed=0):
  """Examples whose first token is their index plus one."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, longest + 1, count).astype(np.int32)
  lengths = np.maximum(lengths, 1) if longest else lengths
  starts = batches_lib.offsets(lengths)
  tokens = np.zeros(lengths.sum() + 1, np.int32)
  tokens[starts] = np.arange(count) + 1
  return batches_lib.Examples(tokens, starts, lengths, np.arange(count) % 3)


def batches_of(count, batch_size, seed=0, order_seed=None):
  split = examples(count)
  lengths = batches_lib.bucket_lengths(split.lengths, 3, 0)
  return batches_lib.TrainBatches(
    split, batch_size, seed, lengths, order_seed=order_seed
  )


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 4))
def test_an_epoch_holds_every_example_once(count, batch_size, epoch):
  batches = batches_of(count, batch_size)
  first = epoch * batches.steps_per_epoch
  seen = []
  for step in range(first, first + batches.steps_per_epoch):
    batch = batches(step)
    assert batch.tokens.shape[0] == batch_size
    assert batch.tokens.shape[1] in batches.bucket_lengths
    real = batch.weights == 1
    assert (batch.lengths[~real] == 0).all()
    seen += (batch.tokens[real, 0] - 1).tolist()
    inside = np.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    assert (batch.tokens[~inside] == batches_lib.PAD).all()
    np.testing.assert_array_equal(
      batch.labels[real], (batch.tokens[real, 0] - 1) % 3
    )
  assert sorted(seen) == list(range(count))


def orders_by_lists(batches, epoch):
  """The rows of each batch of an epoch, by lists of batches."""
  rng = np.random.default_rng((batches.seed, epoch, 0))
  shuffled = rng.permutation(len(batches.examples))
  sequence = rng.permutation(batches.steps_per_epoch)
  lengths = batches.examples.lengths[shuffled]
  bucket = np.searchsorted(batches.bucket_lengths, lengths)
  full, rest = [], []
  for number in range(len(batches.bucket_lengths)):
    rows = shuffled[bucket == number].tolist()
    end = len(rows) - len(rows) % batches.batch_size
    full += rows[:end]
    rest += rows[end:]
  rows, size = full + rest, batches.batch_size
  return [rows[n * size : (n + 1) * size] for n in sequence]


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 3))
def test_the_order_of_an_epoch(count, batch_size, epoch):
  """Full batches of a bucket, then the rest, in a sequence of their own."""
  batches = batches_of(count, batch_size, 5)
  for index, rows in enumerate(orders_by_lists(batches, epoch)):
    batch = batches(epoch * batches.steps_per_epoch + index)
    assert (batch.tokens[batch.weights == 1, 0] - 1).tolist() == rows


def test_a_batch_depends_on_seed_and_step_alone():
  one, other = batches_of(100, 7), batches_of(100, 7)
  order = [3, 40, 41, 2, 15, 3]
  taken = {step: one(step) for step in order}
  for step in sorted(order):
    for a, b in zip(other(step), taken[step], strict=True):
      np.testing.assert_array_equal(a, b)
  changed = batches_of(100, 7, seed=1)
  assert any(
    (changed(step).labels != one(step).labels).any() for step in range(5)
  )
  next_epoch = one(3 + one.steps_per_epoch)
  assert (next_epoch.labels != one(3).labels).any()


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 9))
def test_another_order_of_examples_has_batches_of_the_same_shapes(
  count, batch_size, order_seed
):
  both = (
    batches_of(count, batch_size),
    batches_of(count, batch_size, order_seed=order_seed),
  )
  seen = [], []
  for step in range(2 * both[0].steps_per_epoch):
    one, other = (batches(step) for batches in both)
    assert one.tokens.shape == other.tokens.shape
    np.testing.assert_array_equal(one.weights, other.weights)
    for batch, firsts in zip((one, other), seen, strict=True):
      firsts += batch.tokens[batch.weights == 1, 0].tolist()
  for firsts in seen:
    epochs = firsts[:count], firsts[count:]
    assert all(sorted(epoch) == list(range(1, count + 1)) for epoch in epochs)
    assert count < 20 or epochs[0] != epochs[1]
  assert count < 20 or seen[0] != seen[1]


def test_a_batch_reaches_tokens_past_32_bits(tmp_path):
  """A sparse file needs no space; a start that overflows is elsewhere."""
  end = 2**31 + 2**29
  tokens = np.memmap(tmp_path / 'tokens', np.uint8, 'w+', shape=end)
  tokens[:4] = 5, 6, 7, 8
  tokens[end - 4 :] = 10, 20, 30, 40
  lengths = np.array([4, 2, 3, 1])
  starts = np.array([0, end - 4, end - 3, end - 1])
  split = batches_lib.Examples(tokens, starts, lengths, np.arange(4))
  padded = [[5, 6, 7, 8], [10, 20, 0, 0], [20, 30, 40, 0], [40, 0, 0, 0]]
  rows = np.array([0, 1, 2, 3])
  batch = split.batch(rows, 4, 4)
  assert batch.tokens.tolist() == padded
  assert batch.tokens.dtype == np.int32
  batch = split.take(rows[::-1]).batch(rows, 4, 4)
  assert batch.tokens.tolist() == padded[::-1]
  trained = batches_lib.TrainBatches(split, 4, 0, (4,))(0)
  order = trained.labels.tolist()
  assert trained.tokens.tolist() == [padded[label] for label in order]


def padding(lengths, buckets):
  return sum(min(b for b in buckets if b >= n) - n for n in lengths)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  st.lists(st.integers(0, 12), min_size=1, max_size=30), st.integers(1, 4)
)
def test_buckets_minimise_padding(lengths, num_buckets):
  buckets = batches_lib.bucket_lengths(np.array(lengths), num_buckets, 0)
  longest = max(1, *lengths)
  assert buckets[-1] == longest
  assert len(buckets) <= num_buckets
  assert list(buckets) == sorted(set(buckets))
  best = min(
    padding(lengths, (*cuts, longest))
    for size in range(num_buckets)
    for cuts in itertools.combinations(range(1, longest), size)
  )
  assert padding(lengths, buckets) == best


def test_buckets_hold_the_longest_text_of_any_split():
  assert batches_lib.bucket_lengths(np.array([3, 4, 5]), 2, 40)[-1] == 40


@pytest.mark.parametrize('batch_size', [1, 7, 64])
def test_evaluation_batches_hold_every_example_once(batch_size):
  split = examples(50)
  lengths = batches_lib.bucket_lengths(split.lengths, 3, 0)
  seen = []
  for rows, batch in batches_lib.eval_batches(split, batch_size, lengths):
    assert batch.weights.sum() == len(rows)
    np.testing.assert_array_equal(batch.tokens[: len(rows), 0], rows + 1)
    seen += rows.tolist()
  assert sorted(seen) == list(range(50))
