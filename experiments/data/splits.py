"""Parts of a data set for validation and test: a fraction held out, or a fold.

Both are stratified by label and drawn by seed. What belongs together stays
together: equal texts, or all texts of one sentence.
"""

from __future__ import annotations

import numpy as np

from experiments.data.text_files import Row

# What stays on one side: equal texts, or a sentence and its phrases.
GROUPINGS = ('text', 'sentence')
# Words of the longest sentence; all of its phrases are kept.
_LONGEST = 100


def hold_out(
  rows: list[Row], fraction: float, seed: int, grouping: str = 'text'
) -> tuple[list[Row], list[Row]]:
  """Splits rows into (the rest, `fraction` of the groups of each label)."""
  held_out = set()
  for groups in _shuffled(rows, seed, grouping):
    held_out.update(groups[: round(fraction * len(groups))])
  return _parted(rows, held_out, grouping)


def fold(
  rows: list[Row], num_folds: int, index: int, seed: int, grouping: str = 'text'
) -> tuple[list[Row], list[Row]]:
  """Splits rows into (the rest, fold `index` of `num_folds`).

  Folds are disjoint and have all rows together. Their numbers of groups differ
  by at most one.
  """
  held_out, seen = set(), 0
  for groups in _shuffled(rows, seed, grouping):
    # Where the last label has ended, so that no fold gets the odd ones of all.
    held_out.update(groups[(index - seen) % num_folds :: num_folds])
    seen += len(groups)
  return _parted(rows, held_out, grouping)


def sentences(texts: list[str]) -> dict[str, str]:
  """The text that each text is a phrase of: the longest one with its words.

  A text that is part of no other is its own. Of several, the first among the
  longest; so a short phrase of many sentences belongs to one of them. Texts of
  more than 100 words are no sentences, and nothing is a phrase of them.
  """
  owner: dict[str, str] = {}
  found = {}
  for text in sorted(dict.fromkeys(texts), key=lambda t: -len(t.split())):
    words = text.split()
    found[text] = owner.setdefault(' '.join(words), text)
    if found[text] is text and len(words) <= _LONGEST:
      for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
          owner.setdefault(' '.join(words[start:end]), text)
  return found


def _groups(rows: list[Row], grouping: str) -> list[str]:
  """The group of each row, named by one of its texts."""
  if grouping == 'text':
    return [row.text for row in rows]
  of = sentences([row.text for row in rows])
  return [of[row.text] for row in rows]


def _shuffled(rows, seed: int, grouping: str) -> list[list[str]]:
  """Groups of each label, labels in order; that of a group is the label of the
  text that names it."""
  label_of = {row.text: row.label for row in rows}
  groups_of: dict[str, list[str]] = {}
  for group in dict.fromkeys(_groups(rows, grouping)):
    groups_of.setdefault(label_of[group], []).append(group)
  rng = np.random.default_rng(seed)
  return [
    [groups_of[label][n] for n in rng.permutation(len(groups_of[label]))]
    for label in sorted(groups_of)
  ]


def _parted(rows, held_out: set, grouping: str):
  is_held_out = [group in held_out for group in _groups(rows, grouping)]
  pairs = list(zip(rows, is_held_out, strict=True))
  return [r for r, held in pairs if not held], [r for r, held in pairs if held]
