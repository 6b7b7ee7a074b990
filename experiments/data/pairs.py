"""Pairs of texts, which a data set stores as one text each."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.command.errors import UserError

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
