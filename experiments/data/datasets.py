"""Data sets: labelled texts by split.

A data set is a frozen dataclass with its options as fields, `check(dir)`, which
validates the options without reading files, and `read(dir, seed)`, which
returns rows by split. To add one: a class here, a line in DATASETS, a row in
tests/data/test_datasets.py.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from experiments.command.errors import UserError, one_of
from experiments.data import algorithmic, strings, word_order
from experiments.data.text_files import SPLITS, Row, Text


@dataclasses.dataclass(frozen=True)
class WordOrder:
  """Minimal pairs of experiments.data.word_order; never split over splits."""

  train_pairs: int = 8_000
  validation_pairs: int = 500
  test_pairs: int = 1_000

  def check(self, directory: str) -> None:
    """UserError for sizes that the grammar does not support."""
    for name, size in dataclasses.asdict(self).items():
      if not 1 <= size <= 1_000_000:
        raise UserError(
          f'config.data.word_order.{name} = {size} '
          'must be between 1 and 1000000'
        )
    if directory:
      raise UserError(
        f'config.data.dir = {directory!r} must be empty for '
        "config.data.name = 'word_order', which needs no file"
      )

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split; the two rows of a pair are adjacent."""
    del directory
    sizes = (self.train_pairs, self.validation_pairs, self.test_pairs)
    pairs = iter(word_order.twin_pairs(sum(sizes), seed))
    splits = {}
    for split, size in zip(SPLITS, sizes, strict=True):
      rows = splits[split] = []
      for positive, negative in itertools.islice(pairs, size):
        rows.append(Row(positive, 'positive', 'word_order', len(rows) + 1))
        rows.append(Row(negative, 'negative', 'word_order', len(rows) + 1))
    return splits


@dataclasses.dataclass(frozen=True)
class Algorithmic:
  """Strings of experiments.data.algorithmic: train on short, test on long ones.

  Attributes:
    task: one of algorithmic.TASKS.
    train, validation, test: number of strings of each split. Splits are
      disjoint; train may repeat strings, since there are few short ones.
    longest_train: in tokens; strings of train have 1 to longest_train tokens,
      those of validation at least half of it, since there are few shorter ones.
    longest_test: in tokens; strings of test have more than longest_train.
  """

  task: str = 'even_pairs'
  train: int = 50_000
  validation: int = 1_000
  test: int = 4_000
  longest_train: int = 40
  longest_test: int = 200

  def check(self, directory: str) -> None:
    """UserError for an unknown task or invalid sizes."""
    key = 'data.algorithmic'
    one_of(self.task, algorithmic.TASKS, f'{key}.task')
    for name in ('train', 'validation', 'test'):
      size = getattr(self, name)
      if not 2 <= size <= 10_000_000:
        raise UserError(
          f'config.{key}.{name} = {size} must be between 2 and 10000000'
        )
    if self.longest_train < 12:
      raise UserError(
        f'config.{key}.longest_train = {self.longest_train} must be at least '
        '12: there are too few shorter strings to hold some out'
      )
    if self.longest_test < self.longest_train + 2:
      # Some tasks have strings of even lengths alone, or of odd ones.
      raise UserError(
        f'config.{key}.longest_test = {self.longest_test} must be at least 2 '
        f'more than config.{key}.longest_train = {self.longest_train}'
      )
    if directory:
      raise UserError(
        f'config.data.dir = {directory!r} must be empty for '
        "config.data.name = 'algorithmic', which needs no file"
      )

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split."""
    del directory
    task = algorithmic.TASKS[self.task]
    rng = np.random.default_rng(seed)
    short = (1, self.longest_train)
    held_out = strings.strings(
      task, rng, (self.longest_train // 2, self.longest_train), self.validation
    )
    known = {text for text, _ in held_out}
    train = []
    while len(train) < self.train:
      drawn = strings.strings(task, rng, short, self.train - len(train))
      train += [pair for pair in drawn if pair[0] not in known]
    long = (self.longest_train + 1, self.longest_test)
    test = strings.strings(task, rng, long, self.test)
    return {
      split: [
        Row(text, label, self.task, number)
        for number, (text, label) in enumerate(pairs, 1)
      ]
      for split, pairs in zip(SPLITS, (train, held_out, test), strict=True)
    }


# Made by a program, which also makes test. Folds would part minimal pairs.
GENERATED = ('word_order', 'algorithmic')
DATASETS = {
  'word_order': WordOrder,
  'algorithmic': Algorithmic,
  'text': Text,
}


# Warn about classes with fewer training examples.
_FEW = 5
# Warn about texts with at least so many copies.
_COPIES = 3


def problems(splits: dict[str, list[Row]], labels: list[str]) -> list[str]:
  """Messages about probable mistakes in the data, each with example rows.

  Args:
    labels: names of the classes.
  """
  lines = []
  for split, rows in splits.items():
    if empty := [row for row in rows if not row.text.strip()]:
      lines.append(
        f'empty {split} texts: {len(empty)} of {len(rows)} ({_rows_at(empty)})'
      )
    if copies := _copies(rows):
      shown = _first(
        (f'{len(same)} of {len(rows)}: {_rows_at(same)}' for same in copies),
        '; ',
      )
      lines.append(
        f'texts in more than a tenth of the {split} rows: {len(copies)} '
        f'({shown}); config.data.text.max_copies=1 keeps one of each'
      )
  by_text: dict[str, list[Row]] = {}
  for row in itertools.chain(*splits.values()):
    by_text.setdefault(row.text, []).append(row)
  mixed = [
    rows for rows in by_text.values() if len({r.label for r in rows}) > 1
  ]
  if mixed:
    rows = list(itertools.chain(*mixed))
    shown = _first(f'{row.file}:{row.number} {row.label!r}' for row in rows)
    lines.append(
      f'equal texts with different labels: {len(rows)} rows of {len(mixed)} '
      f'texts ({shown})'
    )
  return lines + _rare_classes(splits, labels)


def _copies(rows: list[Row]) -> list[list[Row]]:
  """The rows of each text that makes up more than a tenth of all rows."""
  by_text: dict[str, list[Row]] = {}
  for row in rows:
    by_text.setdefault(row.text, []).append(row)
  most = max(len(rows) / 10, _COPIES - 1)
  return [same for same in by_text.values() if len(same) > most]


def _rare_classes(splits, labels: list[str]) -> list[str]:
  """Messages about classes with few train examples, or none in a split."""
  lines = []
  of_class = {label: [] for label in labels}
  for row in splits['train']:
    of_class[row.label].append(row)
  few = {k: rows for k, rows in of_class.items() if 0 < len(rows) < _FEW}
  if few:
    shown = _first(
      (f'{k!r} {len(rows)}: {_rows_at(rows)}' for k, rows in few.items()),
      '; ',
    )
    lines.append(
      f'classes with fewer than {_FEW} train texts: {len(few)} of '
      f'{len(labels)} ({shown})'
    )
  for split, rows in splits.items():
    found = {row.label for row in rows}
    if missing := [label for label in labels if label not in found]:
      lines.append(
        f'classes without {split} texts: {len(missing)} of {len(labels)} '
        f'({_first(map(repr, missing))})'
      )
  return lines


def _rows_at(rows: list[Row]) -> str:
  return _first(f'{row.file}:{row.number}' for row in rows)


def _first(words, separator: str = ', ') -> str:
  """The first three words, followed by dots if there are more."""
  words = list(words)
  return separator.join(words[:3] + ['...'] * (len(words) > 3))
