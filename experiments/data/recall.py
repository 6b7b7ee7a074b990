"""Recall: keys with their values, which are asked for later in a string.

The label of a token that asks is a value; all other tokens have none. Read by
classify_tokens, in a causal encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from experiments.command.errors import require
from experiments.data.contract import SPLITS, Dataset, check_sizes
from experiments.data.rows import Row, generated
from experiments.data.token_labels import NONE


@dataclasses.dataclass(frozen=True)
class Recall(Dataset):
  """Strings of keys and values among random words.

  Keys are words of the first half of the vocabulary without its first word,
  values of the second one. A subclass says where they stand.

  Attributes:
    vocab_size: number of words; half of them are keys, half values.
    num_pairs: pairs of a key and its value, each of which is asked for once.
    length: tokens of a string of train and of validation.
    test_lengths: tokens of the strings of test, as many of each.
    train: number of strings to train on.
    validation: number of strings of the validation split.
    test: number of strings of the test split, of each length.
  """

  vocab_size: int = 8_192
  num_pairs: int = 4
  length: int = 64
  test_lengths: tuple[int, ...] = (64, 128, 256, 512)
  train: int = 100_000
  validation: int = 1_000
  test: int = 500
  is_generated: ClassVar[bool] = True
  has_token_labels: ClassVar[bool] = True

  def check(self, directory: str) -> None:
    require(self.num_pairs >= 1, 'num_pairs', self.num_pairs, 'at least 1')
    check_sizes(self, 1, 10_000_000, SPLITS)
    least = 4 * self.num_pairs
    allowed = f'at least {least} tokens for num_pairs = {self.num_pairs}'
    require(self.length >= least, 'length', self.length, allowed)
    lengths = self.test_lengths
    fit = all(type(n) is int and n >= least for n in lengths)
    require(bool(lengths) and fit, 'test_lengths', lengths, allowed)
    words = 2 * self.num_pairs + 2
    is_enough = self.vocab_size >= words
    require(is_enough, 'vocab_size', self.vocab_size, f'at least {words}')

  def write(self, rng, length: int, number: int) -> tuple[list[str], list[str]]:
    """The tokens of a string, and the label of each or `_`.

    Args:
      length: number of tokens, at least 4 num_pairs.
      number: of the string among those of its length in the split, from 0.
    """
    raise NotImplementedError

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split: of test, one of each length in turn."""
    rng = np.random.default_rng(seed)
    splits = {
      'train': ((self.length,), self.train),
      'validation': ((self.length,), self.validation),
      'test': (self.test_lengths, self.test),
    }

    def texts(lengths, count: int) -> Iterable[tuple[str, str]]:
      for number in range(count):
        for length in lengths:
          tokens, labels = self.write(rng, length, number)
          yield ' '.join(tokens), ' '.join(labels)

    return {
      split: generated(texts(*of_split), type(self).__name__)
      for split, of_split in splits.items()
    }


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(Recall):
  """Multi-query associative recall (Arora et al. 2023, and their code).

  Section 3.1: distinct keys, each with its value after it, then each key once
  more, at a token whose label is its value. All else is random words.

  Attributes:
    power: of the distances to the keys: of n places for a key, two tokens
      apart, the k-th has a probability proportional to k^(power - 1). All are
      equal for 1.
  """

  power: float = 0.01

  def check(self, directory: str) -> None:
    super().check(directory)
    require(self.power > 0, 'power', self.power, 'above 0')

  def write(self, rng, length: int, number: int) -> tuple[list[str], list[str]]:
    keys, values = _pairs(self, rng)
    begin = 2 * self.num_pairs
    weights = np.arange(1, (length - begin) // 2 + 1) ** (self.power - 1)
    shares = weights / weights.sum()
    places = begin + 2 * rng.choice(
      len(shares), self.num_pairs, replace=False, p=shares
    )
    words = rng.integers(self.vocab_size, size=length)
    return _labelled(words, 0, places, keys, values)


@dataclasses.dataclass(frozen=True)
class Passkey(Recall):
  """A key and its value at some depth of a string, asked for at its end.

  Passkey retrieval (Mohtashami and Jaggi 2023), known as a needle in a
  haystack, with words for its sentences. Several pairs stand one after the
  other, and all are asked for at the end. No key is among the random words.

  Attributes:
    depths: number of places of the pairs, from the beginning of a string to
      right before the questions. Strings of a length have them in turn.
  """

  num_pairs: int = 1
  depths: int = 10

  def check(self, directory: str) -> None:
    super().check(directory)
    shortest = min(self.length, *self.test_lengths)
    places = shortest - 4 * self.num_pairs + 1
    is_allowed = 2 <= self.depths <= places
    allowed = f'between 2 and {places}, the places in {shortest} tokens'
    require(is_allowed, 'depths', self.depths, allowed)

  def depth(self, number: int) -> int:
    """Which of the depths, from 0, the string of a number has."""
    return number % self.depths

  def write(self, rng, length: int, number: int) -> tuple[list[str], list[str]]:
    keys, values = _pairs(self, rng)
    asked = 2 * self.num_pairs
    share = self.depth(number) / (self.depths - 1)
    first = round(share * (length - 2 * asked))
    places = length - asked + 2 * rng.permutation(self.num_pairs)
    others = np.setdiff1d(np.arange(self.vocab_size), keys)
    words = others[rng.integers(len(others), size=length)]
    return _labelled(words, first, places, keys, values)


def _pairs(source: Recall, rng) -> tuple[np.ndarray, np.ndarray]:
  """Keys and their values, all distinct."""
  half = source.vocab_size // 2
  keys = 1 + rng.choice(half - 1, source.num_pairs, replace=False)
  rest = source.vocab_size - half
  return keys, half + rng.choice(rest, source.num_pairs, replace=False)


def _labelled(
  words: np.ndarray, first: int, places: np.ndarray, keys, values
) -> tuple[list[str], list[str]]:
  """Tokens and labels of words with pairs from `first` on, asked at places."""
  end = first + 2 * len(keys)
  words[first:end:2], words[first + 1 : end : 2] = keys, values
  words[places] = keys
  labels = [NONE] * len(words)
  for place, value in zip(places.tolist(), values.tolist(), strict=True):
    labels[place] = str(value)
  return list(map(str, words.tolist())), labels
