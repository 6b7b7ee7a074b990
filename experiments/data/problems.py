"""Probable mistakes in labelled texts."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable

import numpy as np

from experiments.data.rows import Rows, distinct

# Warn about classes with fewer training examples.
_FEW = 5
# Warn about texts with at least so many copies.
_COPIES = 3
# Number of examples in a message.
_SHOWN = 3


def problems(
  rows: Rows, splits: dict[str, np.ndarray], labels: list[str]
) -> list[str]:
  """Messages about probable mistakes in the data, each with example rows.

  Args:
    splits: row indices of each split.
    labels: names of the classes.
  """
  lines = []
  for split, chosen in splits.items():
    empty = chosen[rows.is_blank(chosen)]
    if len(empty):
      lines.append(
        f'empty {split} texts: {len(empty)} of {len(chosen)} '
        f'({_rows_at(rows, empty)})'
      )
    lines += _copies(rows, split, chosen)
    if split != 'train':
      lines += _seen(rows, split, chosen, splits['train'])
  lines += _mixed_labels(rows, np.concatenate(list(splits.values())))
  lines += _similar_labels(rows, splits['train'], labels)
  return lines + _rare_classes(rows, splits, labels)


def _seen(rows: Rows, split: str, chosen, train: np.ndarray) -> list[str]:
  """Messages about texts of validation or test that are also in train."""
  is_seen = np.isin(rows.hashes[chosen], rows.hashes[train])
  is_seen &= ~rows.is_blank(chosen)
  if not is_seen.any():
    return []
  return [
    f'{split} texts also in train (equal but for case and space): '
    f'{is_seen.sum()} of {len(chosen)} ({_rows_at(rows, chosen[is_seen])})'
  ]


def _similar_labels(rows: Rows, train, labels: list[str]) -> list[str]:
  """Messages about labels that differ only by case or space."""
  folded = collections.defaultdict(list)
  for label in labels:
    if label in rows.names:
      folded[''.join(label.casefold().split())].append(label)
  groups = [group for group in folded.values() if len(group) > 1]
  alike = list(itertools.chain.from_iterable(groups))
  if not alike:
    return []
  shown = []
  for label in alike[: _SHOWN + 1]:
    of_label = train[rows.labels[train] == rows.names.index(label)]
    shown.append(f'{label!r} {len(of_label)}: {_rows_at(rows, of_label[:1])}')
  return [
    f'labels that differ only by case or space: {len(alike)} of {len(labels)} '
    f'({first(shown, "; ")})'
  ]


def _copies(rows: Rows, split: str, chosen: np.ndarray) -> list[str]:
  """Messages about texts that make up more than a tenth of all rows."""
  text_of, _ = distinct(rows.hashes[chosen])
  counts = np.bincount(text_of)
  copies = np.flatnonzero(counts > max(len(chosen) / 10, _COPIES - 1))
  if not len(copies):
    return []
  shown = [
    f'{counts[text]} of {len(chosen)}: '
    + _rows_at(rows, chosen[text_of == text])
    for text in copies[: _SHOWN + 1]
  ]
  return [
    f'texts in more than a tenth of the {split} rows: {len(copies)} '
    f'({first(shown, "; ")}); config.data.text.max_copies=1 keeps one of each'
  ]


def _mixed_labels(rows: Rows, chosen: np.ndarray) -> list[str]:
  """Messages about equal texts with different labels, of any splits."""
  text_of, index = distinct(rows.hashes[chosen])
  found = rows.labels[chosen]
  is_mixed = np.zeros(len(index), bool)
  is_mixed[text_of[found != found[index][text_of]]] = True
  if not is_mixed.any():
    return []
  count = int(is_mixed[text_of].sum())
  at = [
    chosen[index]
    for text in np.flatnonzero(is_mixed)[: _SHOWN + 1]
    for index in np.flatnonzero(text_of == text)[: _SHOWN + 1]
  ]
  read = [rows.row(index) for index in at[: _SHOWN + 1]]
  shown = first(f'{row.file}:{row.number} {row.label!r}' for row in read)
  return [
    f'equal texts with different labels: {count} rows of {is_mixed.sum()} '
    f'texts ({shown})'
  ]


def _rare_classes(rows: Rows, splits, labels: list[str]) -> list[str]:
  """Messages about classes with few train examples, or none in a split."""
  lines = []
  index_of = {name: index for index, name in enumerate(rows.names)}
  counts = {
    split: np.bincount(rows.labels[chosen], minlength=len(rows.names))
    for split, chosen in splits.items()
  }

  def count(split, label):
    return int(counts[split][index_of[label]]) if label in index_of else 0

  few = [label for label in labels if 0 < count('train', label) < _FEW]
  if few:
    train = splits['train']
    of_class = {
      label: train[rows.labels[train] == index_of[label]]
      for label in few[: _SHOWN + 1]
    }
    shown = first(
      (
        f'{label!r} {len(found)}: {_rows_at(rows, found)}'
        for label, found in of_class.items()
      ),
      '; ',
    )
    lines.append(
      f'classes with fewer than {_FEW} train texts: {len(few)} of '
      f'{len(labels)} ({shown})'
    )
  for split in splits:
    if missing := [label for label in labels if not count(split, label)]:
      lines.append(
        f'classes without {split} texts: {len(missing)} of {len(labels)} '
        f'({first(map(repr, missing))})'
      )
  return lines


def _rows_at(rows: Rows, chosen: np.ndarray) -> str:
  read = [rows.row(index) for index in chosen[: _SHOWN + 1]]
  return first(f'{row.file}:{row.number}' for row in read)


def first(words: Iterable[str], separator: str = ', ') -> str:
  """The first three words, followed by dots if there are more."""
  words = list(words)
  return separator.join(words[:_SHOWN] + ['...'] * (len(words) > _SHOWN))
