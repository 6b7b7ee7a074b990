"""Pairs of texts, which a data set stores as one text each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from experiments.command.errors import UserError
from experiments.data.contract import Dataset

# Stands between the two texts. It is white space to Python, so that pairs that
# differ by white space are equal, as texts are.
_BETWEEN = '\x1f'


def joined(text: str | tuple[str, str]) -> str:
  """The one text of a pair, from which `parted` has the pair; or a text."""
  if isinstance(text, str):
    return text
  return _BETWEEN.join(part.replace(_BETWEEN, ' ') for part in text)


def parted(text: str) -> tuple[str, str]:
  """The pair of which `joined` has made one text."""
  first, _, second = text.partition(_BETWEEN)
  return first, second


def checked(splits: Mapping[str, Iterable], source: Dataset) -> dict:
  """The rows of a data set by split, which are pairs if it says so.

  Raises:
    UserError: a row is no pair, or one where it says nothing; while iterating.
  """

  def rows(split: str) -> Iterator:
    for row in splits[split]:
      if isinstance(row.text, str) == source.has_pairs:
        raise UserError(
          f'{row.file} row {row.number}: the text is {row.text!r:.200}, and '
          f'has_pairs of {type(source).__name__} is {source.has_pairs}; a text '
          'is a tuple of two texts where it is True, and a str elsewhere'
        )
      yield row

  return {split: rows(split) for split in splits}


def of_columns(columns: Sequence[str]) -> tuple[str, str]:
  """The pair of two columns, or of one text with a tab between the two.

  Raises:
    UserError: there are not two texts.
  """
  texts = columns[0].split('\t', 1) if len(columns) == 1 else columns
  if len(texts) != 2:
    raise UserError(
      f'{columns[0]!a:.200} is no pair of texts: a tab must separate them, or '
      "config.data.text.join must be 'space'"
    )
  return texts[0], texts[1]
