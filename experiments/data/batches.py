"""Batches: a pure function of the step, padded to a few lengths.

Nothing about the order of the examples is ever saved: an epoch is shuffled by
(seed, epoch), so a run resumes by arithmetic, on any number of devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.data.vocabularies import PAD


class Batch(NamedTuple):
  """Arrays of one step; a row of weight 0 is padding.

  Attributes:
    tokens: int32 (batch, length).
    lengths: int32 (batch,), tokens of each row that are real.
    labels: int32 (batch,).
    weights: float32 (batch,), 1 for an example, 0 for padding.
  """

  tokens: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray
  weights: np.ndarray


class Share(NamedTuple):
  """Which rows of a batch this process computes.

  Attributes:
    index: of the process.
    count: of processes, which take equal parts in their order.
    multiple: of rows, to which a batch is filled up with padding.
  """

  index: int = 0
  count: int = 1
  multiple: int = 1


WHOLE = Share()


@dataclasses.dataclass(frozen=True)
class Examples:
  """Tokenised examples of one split, end to end in one array.

  Attributes:
    tokens: ids of all texts, and at least one more.
    starts: int64, where each text begins; see `offsets`.
    lengths: int32, tokens of each.
    labels: int32.
  """

  tokens: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def take(self, rows: np.ndarray) -> Examples:
    """These examples alone, in this order."""
    return Examples(
      self.tokens, self.starts[rows], self.lengths[rows], self.labels[rows]
    )

  def batch(
    self, rows: np.ndarray, size: int, length: int, share: Share = WHOLE
  ) -> Batch:
    """The examples `rows`, padded to `size` rows of `length` tokens.

    Of them only those of `share`, after padding to its multiple.
    """
    size = -(-size // share.multiple) * share.multiple // share.count
    rows = rows[share.index * size : (share.index + 1) * size]
    lengths, labels = np.zeros((2, size), np.int32)
    starts = np.zeros(size, np.int64)
    lengths[: len(rows)] = self.lengths[rows]
    starts[: len(rows)] = self.starts[rows]
    labels[: len(rows)] = self.labels[rows]
    column = np.arange(length)
    is_token = column < lengths[:, None]
    index = np.where(is_token, starts[:, None] + column, 0)
    tokens = np.where(is_token, self.tokens[index], PAD).astype(np.int32)
    weights = (np.arange(size) < len(rows)).astype(np.float32)
    return Batch(tokens, lengths, labels, weights)


def offsets(lengths: np.ndarray) -> np.ndarray:
  """Where texts of these lengths begin, end to end: int64, for any number."""
  return np.cumsum(lengths, dtype=np.int64) - lengths


def bucket_lengths(
  lengths: np.ndarray, num_buckets: int, longest: int
) -> tuple[int, ...]:
  """At most num_buckets lengths that pad the given ones least.

  Exact, by dynamic programming over candidate lengths: all of them, or
  quantiles where there are many. The last one is `longest`, or the greatest
  of `lengths` if that is more.
  """
  lengths = np.maximum(lengths, 1)  # an empty text needs a column, too
  quantiles = np.quantile(lengths, np.linspace(0, 1, 257), method='higher')
  longest = max(longest, int(lengths.max()))
  ends = np.unique([0, *quantiles, longest]).astype(int)
  ordered = np.sort(lengths)
  count = np.searchsorted(ordered, ends, side='right')
  tokens = np.concatenate([[0], np.cumsum(ordered)])[count]
  # padding[i, j]: what lengths in (ends[i], ends[j]] need to reach ends[j].
  padding = ends * (count - count[:, None]) - (tokens - tokens[:, None])
  padding = np.where(ends > ends[:, None], padding, np.inf)

  best, choices = padding[0], []
  for _ in range(1, min(num_buckets, len(ends) - 1)):
    total = best[:, None] + padding
    choices.append(total.argmin(axis=0))
    best = total.min(axis=0)
  cuts = [len(ends) - 1]
  for choice in reversed(choices):
    cuts.append(int(choice[cuts[-1]]))
  return tuple(int(ends[cut]) for cut in reversed(cuts))


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """Batches of the training split by step, from 0, without end.

  Every epoch holds each example once; one of its batches may be short. Texts
  of one bucket share a batch, so that little but the bucket pads them; only
  what is left of each bucket is mixed.

  With members, each has an order of its own. A batch then has `batch_size` rows
  of every one: its first row of each, then its second, and so on.
  """

  examples: Examples
  batch_size: int
  seed: int
  bucket_lengths: tuple[int, ...]
  share: Share = WHOLE
  num_members: int = 1
  _orders: dict = dataclasses.field(default_factory=dict, repr=False)

  @property
  def steps_per_epoch(self) -> int:
    """Batches of an epoch, the short one included."""
    return -(-len(self.examples) // self.batch_size)

  def __call__(self, step: int) -> Batch:
    """The batch of update `step` + 1."""
    epoch, index = divmod(step, self.steps_per_epoch)
    if epoch not in self._orders:
      self._orders.clear()
      self._orders[epoch] = self._order(epoch)
    rows = self._orders[epoch][index]
    length = fit(int(self.examples.lengths[rows].max()), self.bucket_lengths)
    # Padded for every member alike.
    share = self.share._replace(multiple=self.share.multiple * self.num_members)
    size = self.batch_size * self.num_members
    return self.examples.batch(rows, size, length, share)

  def _order(self, epoch: int) -> list[np.ndarray]:
    """Rows of each batch; all members read the same bucket at a time."""
    of_members = []
    for member in range(self.num_members):
      rng = np.random.default_rng((self.seed, epoch, member))
      of_members.append(self._batches(rng.permutation(len(self.examples))))
      if member == 0:
        sequence = rng.permutation(self.steps_per_epoch)
    batches = zip(*of_members, strict=True)
    rows = [np.stack(batch, axis=1).reshape(-1) for batch in batches]
    return [rows[index] for index in sequence]

  def _batches(self, shuffled: np.ndarray) -> list[np.ndarray]:
    lengths = self.examples.lengths[shuffled]
    bucket = np.searchsorted(self.bucket_lengths, lengths)
    batches, rest = [], []
    for number in range(len(self.bucket_lengths)):
      rows = shuffled[bucket == number]
      whole = len(rows) - len(rows) % self.batch_size
      batches += self._cut(rows[:whole])
      rest.append(rows[whole:])
    # What is left of every bucket, from the shortest to the longest.
    return batches + self._cut(np.concatenate(rest))

  def _cut(self, rows: np.ndarray) -> list[np.ndarray]:
    starts = range(0, len(rows), self.batch_size)
    return [rows[start : start + self.batch_size] for start in starts]


def eval_batches(
  examples: Examples,
  batch_size: int,
  lengths: tuple[int, ...],
  share: Share = WHOLE,
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Every example once, short ones first: (rows in the split, batch).

  The rows are those of the whole batch, the batch has those of `share`.
  """
  order = np.argsort(examples.lengths, kind='stable')
  for start in range(0, len(order), batch_size):
    rows = order[start : start + batch_size]
    length = fit(int(examples.lengths[rows].max()), lengths)
    yield rows, examples.batch(rows, batch_size, length, share)


def fit(length: int, lengths: tuple[int, ...]) -> int:
  """The shortest of `lengths` that holds `length` tokens."""
  return next(bucket for bucket in lengths if bucket >= length)
