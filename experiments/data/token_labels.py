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
  that of its class. Examples have arrays of those of their texts, see
  `of_tokens`.
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
    values = np.empty(len(strings), object)
    for row, string in enumerate(strings):
      words = enumerate(words_of(string))
      pairs = [(n, index_of.get(w, -1)) for n, w in words if w != NONE]
      values[row] = np.array(pairs, np.int32).reshape(-1, 2)
    return values, np.array([(v >= 0).all() for v in values], bool)

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
  values: Iterable[np.ndarray],
  words: np.ndarray,
  starts: np.ndarray,
  lengths: np.ndarray,
) -> np.ndarray:
  """Labels of texts, int32 (texts, labelled words, 3): token, class and word.

  Words without a token are left out: a normaliser has no letter of them, or
  their text is truncated. So a text has no more labels than tokens. After those
  of a text come rows of -1.

  Args:
    values: of each text, as TokenLabels has them.
    words: the word that each token of all texts begins, or -1.
    starts, lengths: of the tokens of each text.
  """
  found = []
  for pairs, start, length in zip(values, starts, lengths, strict=True):
    begun = words[start : start + length]
    word, token, at = np.intersect1d(begun, pairs[:, 0], return_indices=True)
    found.append(np.stack([token, pairs[at, 1], word], axis=-1))
  # One at least: jax takes no empty array of labels.
  most = max([1, *map(len, found)])
  labels = np.full((len(found), most, 3), -1, np.int32)
  for of_text, row in zip(found, labels, strict=True):
    row[: len(of_text)] = of_text
  return labels


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
