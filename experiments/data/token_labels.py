"""Labels of tokens: a class for some of the words of each text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from experiments.command.errors import UserError
from experiments.data.labels import Classes, Labels, first, joined, parts
from experiments.data.rows import Rows

# The label of a word that has none.
NONE = '_'


@dataclasses.dataclass(frozen=True)
class TokenLabels(Labels):
  """A class for some words, and so for the first token of each of them.

  A string has a class for each word of its text, or `_` for none. Its value is
  int32 (labelled words, 2): the index of each labelled word in the text, and
  that of its class. After those of a text come rows of -1. Examples have
  indices of tokens in place of those of words, see `of_tokens`.
  """

  least: ClassVar = 2

  def names(self, train: Iterable[str]) -> list[str]:
    """Classes of all tokens, sorted, numbers by value."""
    words: set[str] = set()
    for string in train:
      labels = parts(string)
      if labels is not None and joined(labels) == string:
        raise UserError(
          'labels of tokens must be one string, with spaces between its words, '
          f'and not the list {string:.100}; change the files'
        )
      words.update(string.split())
    return Classes().names(words - {NONE})

  def values(self, strings, names):
    index_of = {name: index for index, name in enumerate(names)}
    labelled = [
      [(n, w) for n, w in enumerate(string.split()) if w != NONE]
      for string in strings
    ]
    values = np.full(
      (len(strings), max(map(len, labelled), default=0), 2), -1, np.int32
    )
    is_known = np.ones(len(strings), bool)
    for row, tokens in enumerate(labelled):
      pairs = [(n, index_of.get(word, -1)) for n, word in tokens]
      values[row, : len(pairs)] = np.reshape(pairs, (-1, 2))
      is_known[row] = all(index >= 0 for _, index in pairs)
    return values, is_known

  def allowed(self, names):
    return f'{NONE!r} or one of [{first(map(repr, names))}] for each token'


def of_tokens(
  values: np.ndarray,
  begins: np.ndarray,
  starts: np.ndarray,
  lengths: np.ndarray,
) -> np.ndarray:
  """Values of texts (texts, labelled words, 2), with tokens in place of words.

  Those of words that the text has no more, since it is truncated, are -1.

  Args:
    begins: whether a token is the first of its word, of all texts.
    starts, lengths: of the tokens of each text.
  """
  first = np.append(np.flatnonzero(begins), len(begins))
  before, after = (
    np.searchsorted(first, n) for n in (starts, starts + lengths)
  )
  word, classes = values[..., 0], values[..., 1]
  token = before[:, None] + word
  is_there = (word >= 0) & (token < after[:, None])
  index = first[np.where(is_there, token, 0)] - starts[:, None]
  both = np.stack([index, classes], axis=-1)
  return np.where(is_there[..., None], both, -1).astype(np.int32)


def check_words(
  rows: Rows,
  chosen: np.ndarray,
  begins: np.ndarray,
  offsets: np.ndarray,
  is_truncated: np.ndarray,
) -> None:
  """UserError unless each word of a text has a label, and a token.

  Args:
    begins: as of `of_tokens`.
    offsets: of the tokens of all rows.
    is_truncated: whether the tokens of each chosen text are.
  """
  counted = np.append(0, np.cumsum(begins))
  words = counted[offsets[chosen + 1]] - counted[offsets[chosen]]
  widths = np.array([len(string.split()) for string in rows.names])
  widths = widths[rows.labels[chosen]]
  wrong = chosen[(words != widths) & ~(is_truncated & (words < widths))]
  if len(wrong):
    row = rows.row(wrong[0])
    count = words[np.flatnonzero(chosen == wrong[0])[0]]
    raise UserError(
      f'{row.file} row {row.number}: {len(row.label.split())} labels of words '
      f'must be {count}, one for each word that white space separates and that '
      'has a token; correct the row'
    )
