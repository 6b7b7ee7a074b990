"""Parts of a data set for validation and test: a fraction held out, or a fold.

Both are stratified by label and drawn by seed. What belongs together stays
together: equal texts, whatever their case and white space, or all texts of one
sentence. Parts are row indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.data.rows import Rows, distinct

# What stays on one side: equal texts, or a sentence and its phrases.
GROUPINGS = ('text', 'sentence')
# Words of the longest sentence; all of its phrases are kept.
_LONGEST = 100
# Base of the hash of a phrase, odd, so that it has an inverse modulo 2^64.
_BASE = 0x9E3779B97F4A7C15


def hold_out(
  rows: Rows,
  chosen: np.ndarray,
  fraction: float,
  seed: int,
  grouping: str = 'text',
) -> tuple[np.ndarray, np.ndarray]:
  """Splits rows into (the rest, `fraction` of all groups).

  Each label has its share, rounded up or down so that all have it together: by
  the largest remainders, which are drawn where they are equal.
  """
  group_of, shuffled, rng = _groups(rows, chosen, seed, grouping)
  sizes = np.array([len(groups) for groups in shuffled])
  shares = fraction * sizes
  counts = np.rint(shares).astype(int)
  missing = round(fraction * sizes.sum()) - counts.sum()
  remainders = np.sign(missing) * (shares - counts)
  order = np.lexsort((rng.permutation(len(counts)), -remainders))
  counts[order[: abs(missing)]] += np.sign(missing)
  held_out = [
    groups[:count] for groups, count in zip(shuffled, counts, strict=True)
  ]
  return _parted(chosen, group_of, held_out)


def fold(
  rows: Rows,
  chosen: np.ndarray,
  num_folds: int,
  index: int,
  seed: int,
  grouping: str = 'text',
) -> tuple[np.ndarray, np.ndarray]:
  """Splits row indices into (the rest, fold `index` of `num_folds`).

  Folds are disjoint and have all rows together. Their numbers of groups differ
  by at most one.
  """
  group_of, shuffled, _ = _groups(rows, chosen, seed, grouping)
  held_out, seen = [], 0
  for groups in shuffled:
    # Where the last label has ended, so that no fold gets the odd ones of all.
    held_out.append(groups[(index - seen) % num_folds :: num_folds])
    seen += len(groups)
  return _parted(chosen, group_of, held_out)


def first_copies(rows: Rows, chosen: np.ndarray, most: int) -> np.ndarray:
  """The row indices without those after `most` of one text and label."""
  text_of, _ = distinct(rows.hashes[chosen])
  keys = text_of * len(rows.names) + rows.labels[chosen]
  order = np.argsort(keys, kind='stable')
  ordered = keys[order]
  copies_before = np.arange(len(keys)) - np.searchsorted(ordered, ordered)
  return chosen[np.sort(order[copies_before < most])]


def _groups(rows, chosen, seed, grouping):
  """(group of each row, shuffled groups of each label in order, generator).

  Groups are numbered by first appearance. The label of a group is that of the
  last row with the text that names it.
  """
  group_of, first = distinct(rows.hashes[chosen])
  label_of = np.zeros(len(first), np.int64)
  # Of several rows with one text, the last one is assigned last.
  label_of[group_of] = rows.labels[chosen]
  if grouping == 'sentence' and len(first):
    named = sentences(lambda: rows.stream(chosen[first]))[group_of]
    group_of, first = distinct(named)
    label_of = label_of[named[first]]
  rng = np.random.default_rng(seed)
  shuffled = []
  for _, label in sorted((name, n) for n, name in enumerate(rows.names)):
    groups = np.flatnonzero(label_of == label)
    if len(groups):
      shuffled.append(groups[rng.permutation(len(groups))])
  return group_of, shuffled, rng


def _parted(chosen, group_of, held_out):
  is_held_out = np.zeros(group_of.max(initial=-1) + 1, bool)
  for groups in held_out:
    is_held_out[groups] = True
  is_held_out = is_held_out[group_of]
  return chosen[~is_held_out], chosen[is_held_out]


def sentences(stream: Callable[[], Iterator[list[str]]]) -> np.ndarray:
  """Index of the text that each distinct text is a phrase of.

  It is the longest one with its words. A text that is part of no other is its
  own. Of several, the first among the longest; so a short phrase of many
  sentences belongs to one of them. Texts of more than 100 words are no
  sentences, and nothing is a phrase of them.

  Phrases are compared by hashes of 64 bits, so that no phrase is kept.

  Args:
    stream: returns the texts in lists, the same ones at each call.
  """
  found = []
  for texts in stream():
    phrases = _Phrases(texts)
    found.append((phrases.counts, phrases.hashes(phrases.starts)))
  counts, hashes = map(np.concatenate, zip(*found, strict=True))
  longest_first = np.argsort(-counts, kind='stable')
  rank = np.empty_like(longest_first)
  rank[longest_first] = np.arange(len(rank))
  # The texts of equal words, by number of words, then by hash; the least rank
  # of a text that they are a phrase of, at first the least of their own.
  order = np.lexsort((rank, hashes, counts))
  counts, hashes = counts[order], hashes[order]
  is_first = np.ones(len(order), bool)
  is_first[1:] = (np.diff(counts) > 0) | (hashes[1:] != hashes[:-1])
  counts, hashes = counts[is_first], hashes[is_first]
  owner = rank[order[is_first]]
  end = 0
  for texts in stream():
    phrases = _Phrases(texts)
    ranks, end = rank[end : end + len(texts)], end + len(texts)
    starts = np.flatnonzero(phrases.rest)
    for length in range(1, _LONGEST + 1):
      starts = starts[phrases.rest[starts] >= length]
      low, high = np.searchsorted(counts, (length, length + 1))
      if not len(starts):
        break
      if low == high:
        continue
      of_length = phrases.hashes(starts, length)
      at = low + np.searchsorted(hashes[low:high], of_length)
      at = np.minimum(at, high - 1)
      is_text = hashes[at] == of_length
      text = phrases.text_of[starts[is_text]]
      np.minimum.at(owner, at[is_text], ranks[text])
  owners = np.empty_like(rank)
  owners[order] = owner[np.cumsum(is_first) - 1]
  return longest_first[owners]


class _Phrases:
  """Adjacent words of some texts, by polynomial hashes modulo 2^64.

  Attributes:
    counts: number of words of each text.
    starts: index of the first word of each text among all words.
    text_of: index of the text of each word.
    rest: number of words from each one to the end of its text; 0 in texts that
      are too long to be sentences.
  """

  def __init__(self, texts: list[str]):
    words = [text.casefold().split() for text in texts]
    self.counts = np.array([len(of_text) for of_text in words])
    ends = np.cumsum(self.counts)
    self.starts = ends - self.counts
    self.text_of = np.repeat(np.arange(len(texts)), self.counts)
    self.rest = np.repeat(ends, self.counts) - np.arange(ends[-1])
    self.rest[np.repeat(self.counts > _LONGEST, self.counts)] = 0
    hashed = map(hash, itertools.chain.from_iterable(words))
    hashed = np.fromiter(hashed, np.int64, ends[-1]).view(np.uint64)
    self._sums = np.zeros(len(hashed) + 1, np.uint64)
    np.cumsum(hashed * _powers(_BASE, len(hashed)), out=self._sums[1:])
    self._shifts = _powers(pow(_BASE, -1, 2**64), len(hashed) + 1)

  def hashes(self, starts: np.ndarray, length: int | None = None):
    """Of the phrases of `length` words at `starts`; None: to the next start."""
    ends = starts + (self.counts if length is None else length)
    return (self._sums[ends] - self._sums[starts]) * self._shifts[starts]


def _powers(base: int, count: int) -> np.ndarray:
  """The first powers of a number, modulo 2^64."""
  factors = np.full(count, base, np.uint64)
  factors[:1] = 1
  return np.cumprod(factors)
