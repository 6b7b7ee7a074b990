"""Data sets: labelled texts by split.

A data set is a class here, a line in DATASETS, and a row in
tests/data/test_datasets.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from experiments.command.errors import require
from experiments.data import algorithmic, recall, stories, strings, word_order
from experiments.data.contract import SPLITS, Dataset, check_sizes
from experiments.data.rows import Row, generated
from experiments.data.streams import Stream, pieces
from experiments.data.text_files import Text


@dataclasses.dataclass(frozen=True)
class WordOrder(Dataset):
  """Minimal pairs of experiments.data.word_order; never split over splits.

  Attributes:
    train_pairs: pairs of sentences to train on.
    validation_pairs: pairs of the validation split.
    test_pairs: pairs of the test split.
  """

  train_pairs: int = 8_000
  validation_pairs: int = 500
  test_pairs: int = 1_000
  is_generated = True

  def check(self, directory: str) -> None:
    check_sizes(self, 1, 1_000_000, dataclasses.asdict(self))

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split; the two rows of a pair are adjacent."""
    sizes = (self.train_pairs, self.validation_pairs, self.test_pairs)
    pairs = iter(word_order.twin_pairs(sum(sizes), seed))
    splits = {}
    for split, size in zip(SPLITS, sizes, strict=True):
      texts = itertools.chain(*itertools.islice(pairs, size))
      labels = itertools.cycle(['positive', 'negative'])
      splits[split] = generated(zip(texts, labels, strict=False), 'word_order')
    return splits


@dataclasses.dataclass(frozen=True)
class Algorithmic(Dataset):
  """Strings of experiments.data.algorithmic: train on short, test on long ones.

  A subclass whose `algorithm` returns another program has its strings.

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
  is_generated = True

  def algorithm(self) -> strings.Task:
    """The program that writes and labels the strings."""
    tasks = algorithmic.ALGORITHMS
    require(self.task in tasks, 'task', self.task, f'one of {", ".join(tasks)}')
    return tasks[self.task]

  @property
  def has_token_labels(self) -> bool:
    return self.algorithm().has_token_labels

  def check(self, directory: str) -> None:
    self.algorithm()
    check_sizes(self, 2, 10_000_000, SPLITS)
    require(
      self.longest_train >= 12,
      'longest_train',
      self.longest_train,
      'at least 12: there are too few shorter strings to hold some out',
    )
    # Some tasks have strings of every third length alone.
    require(
      self.longest_test >= self.longest_train + 3,
      'longest_test',
      self.longest_test,
      f'at least 3 more than longest_train = {self.longest_train}',
    )

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    task = self.algorithm()
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
    splits = zip(SPLITS, (train, held_out, test), strict=True)
    return {split: generated(pairs, self.task) for split, pairs in splits}


@dataclasses.dataclass(frozen=True)
class Stories(Dataset):
  """A stream of the stories of experiments.data.stories, for language models.

  Attributes:
    train: number of stories to train on, of about 1,600 characters.
    validation: number of stories of the validation split.
    test: number of stories of the test split.
  """

  train: int = 1_000
  validation: int = 30
  test: int = 60
  is_generated: ClassVar[bool] = True
  is_stream: ClassVar[bool] = True

  def check(self, directory: str) -> None:
    check_sizes(self, 1, 1_000_000, SPLITS)

  def read(self, directory: str, seed: int) -> dict[str, Iterable[Row]]:
    rng = np.random.default_rng(seed)
    splits = {}
    for split in SPLITS:
      texts = ((stories.story(rng), '') for _ in range(getattr(self, split)))
      splits[split] = pieces(generated(texts, 'stories'))
    return splits


DATASETS: dict[str, type[Dataset]] = {
  'word_order': WordOrder,
  'algorithmic': Algorithmic,
  'mqar': recall.AssociativeRecall,
  'passkey': recall.Passkey,
  'stories': Stories,
  'text': Text,
  'stream': Stream,
}
