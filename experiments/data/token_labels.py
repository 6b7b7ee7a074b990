"""Labels of tokens: a class for some of the tokens of each text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from experiments.command.errors import UserError
from experiments.data.labels import Classes, Labels, first, joined, parts
from experiments.data.rows import Rows

# The word of a token that has no label.
NONE = '_'


@dataclasses.dataclass(frozen=True)
class TokenLabels(Labels):
  """A class for some tokens.

  A string has a word for each token of its text: a class, or `_` for none. Its
  value is int32 (labelled tokens, 2): the index of each labelled token in the
  text, and that of its class. After those of a text come rows of -1.
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


def check_aligned(rows: Rows, chosen: np.ndarray, lengths: np.ndarray) -> None:
  """UserError unless a text has a word of its label for each of its tokens."""
  widths = np.array([len(string.split()) for string in rows.names])
  wrong = chosen[widths[rows.labels[chosen]] != lengths]
  if len(wrong):
    row = rows.row(wrong[0])
    length = lengths[np.flatnonzero(chosen == wrong[0])[0]]
    raise UserError(
      f'{row.file} row {row.number}: {len(row.label.split())} labels of tokens '
      f'must be {length}, one for each token of the text; change '
      "config.data.vocabulary, such as 'word(split_punctuation=False)', or the "
      'labels'
    )
