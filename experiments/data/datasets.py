"""Data sets: labelled texts by split.

A data set is a frozen dataclass with its options as fields, `check(dir)`, which
validates the options without reading files, and `read(dir, seed)`, which
returns rows by split. One that also has `key(dir, digest)`, a JSON value of all
that the rows depend on, is read once and stored (experiments.data.store); a
class that inherits it is not. To add one: a class here, a line in DATASETS, a
row in tests/data/test_datasets.py.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from experiments.command.errors import UserError
from experiments.data import algorithmic, strings, word_order
from experiments.data.rows import Row
from experiments.data.text_files import SPLITS, Text


@dataclasses.dataclass(frozen=True)
class WordOrder:
  """Minimal pairs of experiments.data.word_order; never split over splits.

  Attributes:
    train_pairs: pairs of sentences to train on.
    validation_pairs: pairs of the validation split.
    test_pairs: pairs of the test split.
  """

  train_pairs: int = 8_000
  validation_pairs: int = 500
  test_pairs: int = 1_000

  def check(self, directory: str) -> None:
    """UserError for sizes that the grammar does not support."""
    for name, size in dataclasses.asdict(self).items():
      if not 1 <= size <= 1_000_000:
        raise UserError(
          f'config.data.source = word_order: {name} = {size} '
          'must be between 1 and 1000000'
        )
    if directory:
      raise UserError(
        f'config.data.dir = {directory!r} must be empty for '
        "config.data.source = 'word_order', which needs no file"
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
    task: the program that computes the labels.
    train: number of strings to train on, some of them equal, since there are
      few short ones; splits are disjoint.
    validation: number of strings of the validation split.
    test: number of strings of the test split.
    longest_train: tokens of the longest string of train; strings of validation
      have at least half as many, since there are few shorter ones.
    longest_test: tokens of the longest string of test; the shortest has more
      than longest_train.
  """

  task: str = 'even_pairs'
  train: int = 50_000
  validation: int = 1_000
  test: int = 4_000
  longest_train: int = 40
  longest_test: int = 200

  def check(self, directory: str) -> None:
    """UserError for an unknown task or invalid sizes."""
    key = 'config.data.source = algorithmic'
    if self.task not in algorithmic.ALGORITHMS:
      names = ', '.join(algorithmic.ALGORITHMS)
      raise UserError(f'{key}: task = {self.task!r} is not one of {names}')
    for name in ('train', 'validation', 'test'):
      size = getattr(self, name)
      if not 2 <= size <= 10_000_000:
        raise UserError(
          f'{key}: {name} = {size} must be between 2 and 10000000'
        )
    if self.longest_train < 12:
      raise UserError(
        f'{key}: longest_train = {self.longest_train} must be at least '
        '12: there are too few shorter strings to hold some out'
      )
    if self.longest_test < self.longest_train + 2:
      # Some tasks have strings of even lengths alone, or of odd ones.
      raise UserError(
        f'{key}: longest_test = {self.longest_test} must be at least 2 more '
        f'than longest_train = {self.longest_train}'
      )
    if directory:
      raise UserError(
        f'config.data.dir = {directory!r} must be empty for '
        "config.data.source = 'algorithmic', which needs no file"
      )

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split."""
    del directory
    task = algorithmic.ALGORITHMS[self.task]
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
