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
from experiments.data import algorithmic, stories, strings, word_order
from experiments.data.contract import SPLITS, Dataset
from experiments.data.rows import Row
from experiments.data.streams import Stream, pieces
from experiments.data.text_files import Text
from experiments.data.token_labels import NONE


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
    _check_sizes(self, 1, 1_000_000, dataclasses.asdict(self))

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split; the two rows of a pair are adjacent."""
    sizes = (self.train_pairs, self.validation_pairs, self.test_pairs)
    pairs = iter(word_order.twin_pairs(sum(sizes), seed))
    splits = {}
    for split, size in zip(SPLITS, sizes, strict=True):
      texts = itertools.chain(*itertools.islice(pairs, size))
      labels = itertools.cycle(['positive', 'negative'])
      splits[split] = _rows(zip(texts, labels, strict=False), 'word_order')
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
    _check_sizes(self, 2, 10_000_000, SPLITS)
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
    return {split: _rows(pairs, self.task) for split, pairs in splits}


def mqar(
  rng, length: int, num_pairs: int, vocab_size: int, power: float
) -> tuple[list[str], list[str]]:
  """The tokens of a string, and the label of each or `_`.

  Multi-query associative recall (Arora et al. 2023, section 3.1, and their
  code): distinct keys, each with its value after it, then each key once more,
  at a token whose label is its value. All else is random words.

  Args:
    length: number of tokens, at least 4 num_pairs.
    num_pairs: of a key and its value. Keys are words of the first half of the
      vocabulary without its first word, values of the second one.
    vocab_size: number of words, more than 2 num_pairs + 1.
    power: of n places for a key, two tokens apart, the k-th has a probability
      proportional to k^(power - 1). All are equal for 1.
  """
  half, begin = vocab_size // 2, 2 * num_pairs
  keys = 1 + rng.choice(half - 1, num_pairs, replace=False)
  values = half + rng.choice(vocab_size - half, num_pairs, replace=False)
  weights = np.arange(1, (length - begin) // 2 + 1) ** (power - 1)
  shares = weights / weights.sum()
  places = begin + 2 * rng.choice(
    len(shares), num_pairs, replace=False, p=shares
  )
  tokens = rng.integers(vocab_size, size=length)
  tokens[:begin:2], tokens[1:begin:2], tokens[places] = keys, values, keys
  labels = [NONE] * length
  for place, value in zip(places.tolist(), values.tolist(), strict=True):
    labels[place] = str(value)
  return list(map(str, tokens.tolist())), labels


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Dataset):
  """Strings of multi-query associative recall, with labels of tokens.

  The number of pairs is the same in train and in test.

  Attributes:
    vocab_size: number of words; half of them are keys, half values.
    num_pairs: pairs of a key and its value, each of which is asked for once.
    length: tokens of a string of train and of validation.
    test_lengths: tokens of the strings of test, as many of each.
    power: of the distances to the keys; all are equal for 1.
    train: number of strings to train on.
    validation: number of strings of the validation split.
    test: number of strings of the test split, of each length.
  """

  vocab_size: int = 8_192
  num_pairs: int = 4
  length: int = 64
  test_lengths: tuple[int, ...] = (64, 128, 256, 512)
  power: float = 0.01
  train: int = 100_000
  validation: int = 1_000
  test: int = 500
  is_generated: ClassVar[bool] = True
  has_token_labels: ClassVar[bool] = True

  def check(self, directory: str) -> None:
    require(self.num_pairs >= 1, 'num_pairs', self.num_pairs, 'at least 1')
    require(self.power > 0, 'power', self.power, 'above 0')
    _check_sizes(self, 1, 10_000_000, SPLITS)
    least = 4 * self.num_pairs
    allowed = f'at least {least} tokens for num_pairs = {self.num_pairs}'
    require(self.length >= least, 'length', self.length, allowed)
    lengths = self.test_lengths
    fit = all(type(n) is int and n >= least for n in lengths)
    require(bool(lengths) and fit, 'test_lengths', lengths, allowed)
    words = 2 * self.num_pairs + 2
    is_enough = self.vocab_size >= words
    require(is_enough, 'vocab_size', self.vocab_size, f'at least {words}')

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    rng = np.random.default_rng(seed)
    lengths = {
      'train': (self.length,) * self.train,
      'validation': (self.length,) * self.validation,
      'test': self.test_lengths * self.test,
    }
    how = self.num_pairs, self.vocab_size, self.power

    def text(length: int) -> tuple[str, str]:
      tokens, labels = mqar(rng, length, *how)
      return ' '.join(tokens), ' '.join(labels)

    return {
      split: _rows(map(text, of_split), 'mqar')
      for split, of_split in lengths.items()
    }


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
    _check_sizes(self, 1, 1_000_000, SPLITS)

  def read(self, directory: str, seed: int) -> dict[str, Iterable[Row]]:
    rng = np.random.default_rng(seed)
    splits = {}
    for split in SPLITS:
      texts = ((stories.story(rng), '') for _ in range(getattr(self, split)))
      splits[split] = pieces(_rows(texts, 'stories'))
    return splits


def _check_sizes(source: Dataset, least: int, most: int, names) -> None:
  for name in names:
    size = getattr(source, name)
    is_allowed = least <= size <= most
    require(is_allowed, name, size, f'between {least} and {most}')


def _rows(pairs: Iterable[tuple[str, str]], file: str) -> list[Row]:
  """Rows of (text, label)."""
  numbered = enumerate(pairs, 1)
  return [Row(text, label, file, number) for number, (text, label) in numbered]


DATASETS: dict[str, type[Dataset]] = {
  'word_order': WordOrder,
  'algorithmic': Algorithmic,
  'mqar': AssociativeRecall,
  'stories': Stories,
  'text': Text,
  'stream': Stream,
}
