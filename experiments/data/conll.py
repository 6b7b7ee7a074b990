"""Columns of CoNLL: a word on each line, and a blank line between texts."""

from __future__ import annotations

import dataclasses
import itertools
import re
import string
from collections.abc import Iterator

from experiments.command.errors import require
from experiments.command.log import warn
from experiments.data.contract import InvalidRow
from experiments.data.text_format import TextFormat
from experiments.data.token_labels import words_of


@dataclasses.dataclass(frozen=True)
class Conll(TextFormat):
  """A token on each line, with its label in the last column of several.

  Tabs, or else spaces, separate columns, a blank line texts; lines of
  -DOCSTART- are left out (Tjong Kim Sang and De Meulder 2003). A text is its
  tokens with spaces between them, and so is its label.

  Attributes:
    token: column of the token, from 0.
    label: column of the label; -1: the last one.
    comments: whether lines that begin with # are left out before the first
      token of a text.
  """

  has_columns = False
  token: int = 0
  label: int = -1
  comments: bool = False

  def __post_init__(self):
    allowed = 'another column than that of the token'
    require(self.label != self.token, 'label', self.label, allowed)

  def parse(self, text, columns) -> Iterator[dict]:
    places = (self.token, self.label)[: len(columns)]
    may_be_comment = False
    for has_tokens, lines in itertools.groupby(text, _has_token):
      if not has_tokens:
        continue
      if self.comments:
        lines = itertools.dropwhile(_is_comment, lines)
      tokens = [
        fields for fields in map(self.fields, lines) if self.reads(fields)
      ]
      if tokens and tokens[0][0] == '#' and not may_be_comment:
        may_be_comment = True
        warn(
          f'a text begins with the line {" ".join(tokens[0])!a:.200}; comments='
          'True of config.data.text.format leaves it out'
        )
      if tokens:
        _check_tokens(tokens, places)
        yield {
          name: ' '.join(fields[place] for fields in tokens)
          for name, place in zip(columns, places, strict=True)
        }

  def fields(self, line: str) -> list[str]:
    """The columns of a line."""
    # A no-break space is a word.
    line = line.strip(string.whitespace)
    return re.split('\t+' if '\t' in line else ' +', line)

  def reads(self, fields: list[str]) -> bool:
    """Whether a line with these columns has a token of the text."""
    del fields
    return True


def _check_tokens(tokens: list[list[str]], places: tuple[int, ...]) -> None:
  """InvalidRow for a line that has not the columns of the last one."""
  # Where the label is the last column, the token is another one.
  least = max(*places, len(places) - 1, 0) + 1
  count = max(len(tokens[-1]), least)
  for fields in tokens:
    what = ''
    if len(fields) != count:
      what = f'has {len(fields)} columns in place of {count}'
    elif any(' ' in fields[place] for place in places):
      what = 'has a space in its token or label'
    if what:
      raise InvalidRow(
        f'the line {" ".join(fields)!a:.200} of a token {what}; correct it, or '
        'change config.data.text.format (comments=True leaves out lines that '
        'begin with #)'
      )


def _is_comment(line: str) -> bool:
  return line.startswith('#')


def _has_token(line: str) -> bool:
  return bool(words_of(line)) and not line.startswith('-DOCSTART-')


@dataclasses.dataclass(frozen=True)
class Conllu(Conll):
  """CoNLL-U of Universal Dependencies: a word, and its UPOS, on each line.

  Lines of several tokens in one word (1-2), and of empty nodes (2.1), are left
  out. Spaces inside a word, as of 10 000, are no-break spaces in the text.
  """

  token: int = 1
  label: int = 3
  comments: bool = True

  def fields(self, line):
    return ['\u00a0'.join(words_of(f)) for f in super().fields(line)]

  def reads(self, fields):
    return fields[0].isdigit()
