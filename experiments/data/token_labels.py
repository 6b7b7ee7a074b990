"""Labels of tokens: a class for some of the words of each text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from experiments.command.errors import UserError
from experiments.data.labels import Classes, Labels, first, is_joined
from experiments.data.rows import Rows

# Words are what white space of ASCII separates, as str.split has it: a no-break
# space is a part of a word.
_WORD = re.compile(r'[^\t-\r\x1c-\x1f ]+')
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
      if is_joined(string):
        raise UserError(
          'labels of tokens must be one string, with spaces between its words, '
          f'and not the list {string:.100}; change the files'
        )
      words.update(words_of(string))
    return Classes().names(words - {NONE})

  def values(self, strings, names):
    index_of = {name: index for index, name in enumerate(names)}
    labelled = [
      [(n, w) for n, w in enumerate(words_of(string)) if w != NONE]
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


def word_begins(text: str) -> list[int]:
  """Where each word of a text begins."""
  return [match.start() for match in _WORD.finditer(text)]


def words_of(text: str) -> list[str]:
  """The words of a text, or the labels of a string."""
  # The method is several times as fast.
  return text.split() if text.isascii() else _WORD.findall(text)


def of_tokens(
  values: np.ndarray,
  words: np.ndarray,
  starts: np.ndarray,
  lengths: np.ndarray,
) -> np.ndarray:
  """Values of texts (texts, labelled words, 2), with tokens in place of words.

  Words without a token are left out: a normaliser has no letter of them, or
  their text is truncated. So a text has no more labels than tokens.

  Args:
    words: the word that each token of all texts begins, or -1.
    starts, lengths: of the tokens of each text.
  """
  order = np.lexsort((lengths, starts))
  places = np.flatnonzero(words >= 0)
  rank = np.searchsorted(starts[order], places, side='right') - 1
  text = order[np.maximum(rank, 0)]
  offset = places - starts[text]
  is_inside = (rank >= 0) & (offset < lengths[text])
  text, offset = text[is_inside], offset[is_inside]
  word = words[places[is_inside]]
  width = int(max(word.max(initial=0), values[..., 0].max(initial=0))) + 1
  table = np.full((len(starts), width), -1, np.int32)
  table[text, word] = offset
  index, classes = values[..., 0], values[..., 1]
  token = np.take_along_axis(table, np.maximum(index, 0), axis=1)
  is_there = (index >= 0) & (token >= 0)
  both = np.stack([token, classes], axis=-1)
  both = np.where(is_there[..., None], both, -1).astype(np.int32)
  order = np.argsort(~is_there, axis=1, kind='stable')
  both = np.take_along_axis(both, order[..., None], axis=1)
  # One at least: jax takes no empty array of labels.
  return both[:, : max(is_there.sum(axis=1).max(initial=0), 1)]


def check_words(rows: Rows, chosen: np.ndarray, num_words: np.ndarray) -> None:
  """UserError unless each word of a text has a label.

  Args:
    num_words: of all texts.
  """
  widths = np.array([len(words_of(string)) for string in rows.names])
  wrong = chosen[widths[rows.labels[chosen]] != num_words[chosen]]
  if len(wrong):
    row = rows.row(wrong[0])
    raise UserError(
      f'{row.file} row {row.number}: {len(words_of(row.label))} labels of '
      f'words must be {num_words[wrong[0]]}, one for each word that spaces '
      'separate; correct the row'
    )
