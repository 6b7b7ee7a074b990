"""Parts of a data set for validation and test: a fraction held out, or a fold.

Both are stratified by label and drawn by seed, but for folds of labels that
occur once each, such as numbers: these are those of the sorted labels. What
belongs together stays together: equal texts, whatever their case and white
space, or all texts of one sentence. Groups of a column are split as
`groups.parted` says. Parts are row indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from experiments.data import groups as groups_lib
from experiments.data.labels import by_value
from experiments.data.rows import Rows, distinct

# What stays on one side: equal texts, or a sentence and its phrases. Any other
# name is a column, of which all rows with one value stay together.
GROUPINGS = ('text', 'sentence')
# Words of the longest sentence.
_LONGEST = 100


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
  if grouping not in GROUPINGS:
    shares = np.array([1 - fraction, fraction])
    part_of = groups_lib.parted(rows, chosen, shares, seed)
    return chosen[part_of == 0], chosen[part_of == 1]
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


def hold_out_last(
  rows: Rows, chosen: np.ndarray, fraction: float
) -> tuple[np.ndarray, np.ndarray]:
  """Splits a range of rows: (the rest, the last `fraction` of the bytes)."""
  if not len(chosen):
    return chosen, chosen
  first, end = rows.offsets[chosen[0]], rows.offsets[chosen[-1] + 1]
  begin = end - int(fraction * (end - first))
  count = int((rows.offsets[chosen] < begin).sum())
  return chosen[:count], chosen[count:]


def fold(
  rows: Rows,
  chosen: np.ndarray,
  num_folds: int,
  index: int,
  seed: int,
  grouping: str = 'text',
) -> tuple[np.ndarray, np.ndarray]:
  """Splits row indices into (the rest, fold `index` of `num_folds`).

  Folds are disjoint, have all rows together, and as many groups, or one more.
  """
  if grouping not in GROUPINGS:
    shares = np.full(num_folds, 1 / num_folds)
    part_of = groups_lib.parted(rows, chosen, shares, seed)
    return chosen[part_of != index], chosen[part_of == index]
  group_of, shuffled, _ = _groups(rows, chosen, seed, grouping)
  held_out, seen = [], 0
  for groups in shuffled:
    # Where the last label has ended, so that no fold gets the odd ones of all.
    held_out.append(groups[(index - seen) % num_folds :: num_folds])
    seen += len(groups)
  return _parted(chosen, group_of, held_out)


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
    texts = itertools.chain.from_iterable(rows.stream(chosen[first]))
    named = sentences(texts)[group_of]
    group_of, first = distinct(named)
    label_of = label_of[named[first]]
  rng = np.random.default_rng(seed)
  by_name = sorted(
    range(len(rows.names)), key=lambda i: by_value(rows.names[i])
  )
  # The place of each group's label among the sorted ones.
  rank = np.argsort(by_name)[label_of] if len(label_of) else label_of
  groups = np.argsort(rank, kind='stable')
  starts = np.flatnonzero(np.diff(rank[groups])) + 1
  shuffled = [
    of_label[rng.permutation(len(of_label))]
    for of_label in np.split(groups, starts)
  ]
  return group_of, shuffled, rng


def _parted(chosen, group_of, held_out):
  is_held_out = np.zeros(group_of.max(initial=-1) + 1, bool)
  for groups in held_out:
    is_held_out[groups] = True
  is_held_out = is_held_out[group_of]
  return chosen[~is_held_out], chosen[is_held_out]


def sentences(texts: Iterable[str]) -> np.ndarray:
  """Index of the text that each distinct text is a phrase of.

  It is the longest one with its words, the first of several, or the text
  itself. So a short phrase of many sentences belongs to one of them. Texts of
  more than 100 words are no sentences, and nothing is a phrase of them.
  """
  folded = [' '.join(text.casefold().split()) for text in texts]
  spaces = np.array([text.count(' ') for text in folded])
  owner = dict.fromkeys(folded, -1)
  heads = {' '.join(text.split(' ', 2)[:2]) for text in folded}
  for index in np.argsort(-spaces, kind='stable').tolist():
    text = folded[index]
    # The phrases of a phrase are those of its sentence.
    if owner[text] >= 0:
      continue
    owner[text] = index
    if spaces[index] >= _LONGEST:
      continue
    marks = [at for at, letter in enumerate(text) if letter == ' ']
    ends = [*marks, len(text)]
    for number, start in enumerate([0, *(at + 1 for at in marks)]):
      # No text begins with the words of most phrases.
      is_text = text[start : ends[min(number + 1, len(marks))]] in heads
      for end in ends[number:] if is_text else ends[number : number + 1]:
        phrase = text[start:end]
        if owner.get(phrase, 0) < 0:
          owner[phrase] = index
  return np.array([owner[text] for text in folded])
