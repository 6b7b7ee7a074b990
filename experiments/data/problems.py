"""Probable mistakes in labelled texts."""

from __future__ import annotations

import itertools

import numpy as np

from experiments.data.labels import Classes, first
from experiments.data.rows import Rows

Splits = dict[str, np.ndarray]


def problems(
  rows: Rows, splits: Splits, classes: list[str] | None
) -> list[str]:
  """Messages about probable mistakes in the rows of each split, with examples.

  `classes` are their names, or None where labels are no classes.
  """
  lines = []
  for split, chosen in splits.items():
    empty = chosen[rows.is_blank(chosen)]
    if len(empty):
      lines.append(
        f'empty {split} texts: {len(empty)} of {len(chosen)} '
        f'({_places(rows, empty)})'
      )
  for other, split in itertools.combinations(splits, 2):
    lines += _seen(rows, split, splits[split], other, splits[other])
  return lines + (_of_classes(rows, splits, classes) if classes else [])


def _seen(rows: Rows, split: str, chosen, other: str, others) -> list[str]:
  """Messages about texts of a split that are also in another one."""
  is_seen = np.isin(rows.hashes[chosen], rows.hashes[others])
  seen = chosen[is_seen & ~rows.is_blank(chosen)]
  if not len(seen):
    return []
  return [
    f'{split} texts also in {other} (equal but for case and space): '
    f'{len(seen)} of {len(chosen)} ({_places(rows, seen)})'
  ]


def _of_classes(rows: Rows, splits: Splits, labels: list[str]) -> list[str]:
  """Messages about classes without texts of a split."""
  of_names, _ = Classes().values(rows.names, labels)
  classes = of_names[rows.labels]
  lines = []
  for split, chosen in splits.items():
    counts = np.bincount(classes[chosen], minlength=len(labels))
    missing = np.flatnonzero(counts == 0)
    if len(missing):
      lines.append(
        f'classes without {split} texts: {len(missing)} of {len(labels)} '
        f'({first(repr(labels[c]) for c in missing)})'
      )
  return lines


def _places(rows: Rows, chosen: np.ndarray) -> str:
  """The files and numbers of the first rows."""
  read = map(rows.row, chosen)
  return first(f'{row.file}:{row.number}' for row in read)
