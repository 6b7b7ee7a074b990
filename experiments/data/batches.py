"""Batches: a pure function of the step, padded to a few bucket lengths.

The order of examples is not part of a checkpoint: each epoch is shuffled by
seeds and its number, so a run can be resumed at any step, on any number of
devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.data.vocabularies import PAD


class Batch(NamedTuple):
  """Arrays of one step; rows of weight 0 are padding.

  Attributes:
    tokens: int32 (batch, length), token ids, padded with PAD; of examples with
      several texts, a row for each text, and those of an example adjacent.
    lengths: int32 (batch,), number of tokens of each row without padding.
    labels: (examples, ...), as the reader of labels has them; int32 of classes.
    weights: float32 (examples,), 1 for an example, 0 for padding.
  """

  tokens: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray
  weights: np.ndarray


class Share(NamedTuple):
  """The rows of a global batch that this process computes.

  Attributes:
    index: process index.
    count: number of processes; each computes an equal block of rows, in order.
    multiple: the number of rows is padded to a multiple of this.
  """

  index: int = 0
  count: int = 1
  multiple: int = 1


ALL_ROWS = Share()


@dataclasses.dataclass(frozen=True)
class Examples:
  """Tokenised examples of one split, concatenated in one array.

  Attributes:
    tokens: token ids of all texts, and at least one more; of any integer type,
      and maybe memory-mapped.
    starts: int64 (examples,), index of the first token of each text; see
      `offsets`. Of examples with several texts (examples, texts).
    lengths: int32, of the shape of starts, number of tokens of each text.
    labels: (examples, ...).
  """

  tokens: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  @property
  def longest(self) -> np.ndarray:
    """Int32 (examples,), number of tokens of the longest text of each."""
    return self.lengths.reshape(len(self), -1).max(axis=1)

  def apart(self) -> Examples:
    """Each text as an example of its own, with the label of its example."""
    labels = np.repeat(self.labels, self.lengths.size // len(self), axis=0)
    return Examples(
      self.tokens, self.starts.ravel(), self.lengths.ravel(), labels
    )

  def take(self, rows: np.ndarray) -> Examples:
    """The examples with these indices, in this order."""
    return Examples(
      self.tokens, self.starts[rows], self.lengths[rows], self.labels[rows]
    )

  def shifted(self, tokens: int) -> Examples:
    """Examples that begin so many tokens later; the last ones are shorter."""
    starts = np.minimum(self.starts + tokens, len(self.tokens))
    left = (len(self.tokens) - starts).astype(np.int32)
    lengths = np.minimum(self.lengths, left)
    return dataclasses.replace(self, starts=starts, lengths=lengths)

  def batch(
    self, rows: np.ndarray, size: int, length: int, share: Share = ALL_ROWS
  ) -> Batch:
    """The examples `rows`, padded to `size` examples of `length` tokens.

    Returns only those of `share`, after padding to its multiple.
    """
    size = -(-size // share.multiple) * share.multiple // share.count
    rows = rows[share.index * size : (share.index + 1) * size]
    lengths = np.zeros((size, *self.lengths.shape[1:]), np.int32)
    labels = np.zeros((size, *self.labels.shape[1:]), self.labels.dtype)
    starts = np.zeros(lengths.shape, np.int64)
    lengths[: len(rows)] = self.lengths[rows]
    starts[: len(rows)] = self.starts[rows]
    labels[: len(rows)] = self.labels[rows]
    lengths, starts, column = lengths.ravel(), starts.ravel(), np.arange(length)
    padding_mask = column < lengths[:, None]
    index = np.where(padding_mask, starts[:, None] + column, 0)
    tokens = np.where(padding_mask, self.tokens[index], PAD).astype(np.int32)
    weights = (np.arange(size) < len(rows)).astype(np.float32)
    return Batch(tokens, lengths, labels, weights)


def offsets(lengths: np.ndarray) -> np.ndarray:
  """Start index of each text in their concatenation: int64, no overflow."""
  return np.cumsum(lengths, dtype=np.int64) - lengths


def bucket_lengths(
  lengths: np.ndarray, num_buckets: int, longest: int
) -> tuple[int, ...]:
  """At most num_buckets bucket lengths that minimise padding.

  Exact, by dynamic programming over candidates: all distinct lengths, or
  quantiles if there are many. The last is `longest`, or that of `lengths`.
  """
  lengths = np.maximum(lengths, 1)  # an empty text takes one column, too
  quantiles = np.quantile(lengths, np.linspace(0, 1, 257), method='higher')
  longest = max(longest, int(lengths.max()))
  ends = np.unique([0, *quantiles, longest]).astype(int)
  ordered = np.sort(lengths)
  count = np.searchsorted(ordered, ends, side='right')
  tokens = np.concatenate([[0], np.cumsum(ordered)])[count]
  # padding[i, j]: tokens of padding of lengths in (ends[i], ends[j]].
  padding = ends * (count - count[:, None]) - (tokens - tokens[:, None])
  padding = np.where(ends > ends[:, None], padding, np.inf)

  best, choices = padding[0], []
  for _ in range(1, min(num_buckets, len(ends) - 1)):
    total = best[:, None] + padding
    choices.append(total.argmin(axis=0))
    best = total.min(axis=0)
  chosen = [len(ends) - 1]
  for choice in reversed(choices):
    chosen.append(int(choice[chosen[-1]]))
  return tuple(int(ends[index]) for index in reversed(chosen))


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """An infinite sequence of training batches, indexed by step from 0.

  Every epoch holds each example once; one of its batches may be smaller. A
  batch holds texts of one bucket, to minimise padding; only the remainders of
  the buckets are mixed.

  Attributes:
    examples: those of train.
    batch_size: examples per batch.
    seed: of the shapes of the batches, one after another, and of the order of
      examples.
    bucket_lengths: lengths that batches are padded to, ascending.
    share: rows of each batch that this process makes.
    order_seed: of another order of examples, in batches of the same shapes;
      None: that of `seed`.
    max_shift: in each epoch, all examples begin the same number of tokens
      later, which is below this; 0: none.
  """

  examples: Examples
  batch_size: int
  seed: int
  bucket_lengths: tuple[int, ...]
  share: Share = ALL_ROWS
  order_seed: int | None = None
  max_shift: int = 0
  _orders: dict = dataclasses.field(
    default_factory=dict, init=False, repr=False
  )

  @property
  def steps_per_epoch(self) -> int:
    """Number of batches per epoch, including the smaller one."""
    return -(-len(self.examples) // self.batch_size)

  def __call__(self, step: int) -> Batch:
    """The batch that takes the state from `step` to `step` + 1."""
    epoch, index = divmod(step, self.steps_per_epoch)
    if epoch not in self._orders:
      self._orders.clear()
      self._orders[epoch] = self._order(epoch)
    examples, order, sequence = self._orders[epoch]
    start = sequence[index] * self.batch_size
    rows = order[start : start + self.batch_size]
    length = fit(int(examples.lengths[rows].max()), self.bucket_lengths)
    return examples.batch(rows, self.batch_size, length, self.share)

  def _order(self, epoch: int) -> tuple[Examples, np.ndarray, np.ndarray]:
    """(examples, rows of the batches in turn, the sequence of batches)."""
    count = len(self.examples)
    rng = np.random.default_rng((self.seed, epoch, 0))
    shuffled = rng.permutation(count)
    sequence = rng.permutation(self.steps_per_epoch)
    if self.order_seed is not None:
      rng = np.random.default_rng((self.seed, epoch, 1 + self.order_seed))
      shuffled = rng.permutation(count)
    order = self._by_bucket(shuffled).astype(np.min_scalar_type(count))
    examples = self.examples
    if self.max_shift:
      examples = examples.shifted(int(rng.integers(self.max_shift)))
    return examples, order, sequence

  def _by_bucket(self, shuffled: np.ndarray) -> np.ndarray:
    """Full batches, then the remainders, both from the shortest bucket on."""
    lengths = self.examples.longest[shuffled]
    buckets = len(self.bucket_lengths)
    bucket = np.searchsorted(self.bucket_lengths, lengths)
    bucket = bucket.astype(np.min_scalar_type(2 * buckets))
    order = np.argsort(bucket, kind='stable')
    counts = np.bincount(bucket, minlength=buckets)
    for number, end in enumerate(np.cumsum(counts)):
      rest = counts[number] % self.batch_size
      bucket[order[end - rest : end]] += buckets
    return shuffled[np.argsort(bucket, kind='stable')]


def eval_batches(
  examples: Examples,
  batch_size: int,
  lengths: tuple[int, ...],
  share: Share = ALL_ROWS,
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Yields (indices in the split, batch), every example once, short ones first.

  Indices are of the global batch; the batch holds the rows of `share`.
  """
  order = np.argsort(examples.longest, kind='stable')
  for start in range(0, len(order), batch_size):
    rows = order[start : start + batch_size]
    length = fit(int(examples.lengths[rows].max()), lengths)
    yield rows, examples.batch(rows, batch_size, length, share)


def fit(length: int, lengths: tuple[int, ...]) -> int:
  """The smallest bucket length of at least `length` tokens."""
  return next(bucket for bucket in lengths if bucket >= length)
