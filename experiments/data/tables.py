"""Tables of text: comma- and tab-separated values."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from experiments.command.errors import require
from experiments.data.contract import InvalidRow, no_column
from experiments.data.text_format import TextFormat

DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'pipe': '|'}
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)


@dataclasses.dataclass(frozen=True)
class Csv(TextFormat):
  """Comma-separated values, quoted where they need it, or another delimiter.

  Attributes:
    delimiter: field delimiter: comma, tab, semicolon, pipe, or a character.
    quoted: whether double quotes may enclose fields.
    header: whether the first row is a header; otherwise columns are 0, 1 and
      so on.
    escaped: whether a quote in a quoted field has a backslash before it, as
      Spark and MySQL write it; otherwise it is doubled. So has a backslash, a
      line feed and, with quoted=False, a delimiter. A backslash before anything
      else is text.
  """

  delimiter: str = 'comma'
  quoted: bool = True
  header: bool = True
  escaped: bool = False
  # The library for tables finds the ends of lines.
  newline: ClassVar[str] = ''

  def __post_init__(self):
    mark = DELIMITERS.get(self.delimiter, self.delimiter)
    allowed = f'{", ".join(DELIMITERS)} or a character'
    require(len(mark) == 1, 'delimiter', self.delimiter, allowed)

  def parse(self, text, columns) -> Iterator[dict | None]:
    quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
    mark = DELIMITERS.get(self.delimiter, self.delimiter)
    names: list[str] = []
    source = self._without_hint(text, mark)
    if self.escaped:
      source = _doubled(source, '\\\n' + ('"' if self.quoted else mark))
    lines = csv.reader(
      source,
      delimiter=mark,
      quoting=quoting,
      escapechar='\\' if self.escaped else None,
      doublequote=not self.escaped,
      strict=True,
    )
    for fields in self._read(lines):
      if len(fields) < 2 and not ''.join(fields).strip():
        if names or not self.header:
          yield None
        continue
      if not names:
        names = self._names(fields, columns)
        if self.header:
          continue
      # Programs end lines with empty fields, and leave out the last ones.
      has_all = {*columns} <= {*names[: len(fields)]}
      if any(fields[len(names) :]) or not has_all:
        raise InvalidRow(
          f'{len(fields)} fields, but {len(names)} columns; correct or remove '
          'the row, or change config.data.text.format or encoding'
        )
      yield dict(zip(names, fields, strict=False))
    if not names:
      raise InvalidRow('the file has no line; give another one, or fill it')

  def _without_hint(self, text, mark: str) -> Iterator[str]:
    """The lines of a text without `sep=,`, with which Excel lets it begin."""
    for first in itertools.islice(text, 1):
      hint = re.fullmatch(r'"?sep=(.)"?\s*', first)
      if hint is None:
        yield first
      elif hint[1] != mark:
        raise InvalidRow(
          f'the file begins with {first.strip()!r}: change the delimiter of '
          f'config.data.text.format to {hint[1]!r}'
        )
    yield from text

  def _read(self, lines) -> Iterator[list[str]]:
    """The fields of each row; an error names the options for quotes."""
    try:
      yield from lines
    except csv.Error as error:
      raise csv.Error(
        f'{error} (escaped=True reads a backslash before a quote, '
        'quoted=False reads quotes as they are)'
      ) from error

  def _names(self, first: list[str], columns: Sequence[str]) -> list[str]:
    """The columns, of which one with an empty or repeated name is its number.

    Raises:
      InvalidRow: a column that is needed is missing or repeated.
    """
    names = first if self.header else list(map(str, range(len(first))))
    for column in columns:
      if names.count(column) != 1:
        wrong = no_column(column, names)
        if column in names:
          wrong = f'two columns {column!r} in {ascii(names)[:200]};'
        header = ' (header=False if there is no header)' * self.header
        raise InvalidRow(
          f'{wrong} change config.data.text.format{header} or encoding, or',
          column,
        )
    unique: list[str] = []
    for index, name in enumerate(names):
      number = str(index) if str(index) not in names else f'column {index}'
      unique.append(name if name and name not in unique else number)
    return unique


def _doubled(lines: Iterable[str], escaped: str) -> Iterator[str]:
  """Lines in which a backslash before none of these characters is two.

  The library takes one before any character for an escape.
  """
  escape = re.compile(rf'\\([{re.escape(escaped)}]?)')
  for line in lines:
    yield escape.sub(lambda match: match[0] if match[1] else r'\\', line)


@dataclasses.dataclass(frozen=True)
class Tsv(Csv):
  """Tab-separated values; quotes are literal."""

  delimiter: str = 'tab'
  quoted: bool = False
