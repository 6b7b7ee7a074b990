"""Formats of texts: the files that a name means, and the records in each.

A format is a class here and a line in FORMATS, or a class of one's own as
`module:Class`. A record is a dict of what a row holds, by column: strings, or
for JSON, Parquet and the hub whatever else they hold. That of a blank line is
None, so that each row keeps its number.
"""

from __future__ import annotations

import bz2
import csv
import dataclasses
import gzip
import io
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

from experiments.command.errors import UserError, require
from experiments.command.log import warn
from experiments.data import arrow_tables, first_bytes
from experiments.data.contract import (
  Files,
  Format,
  InvalidRow,
  matched,
  no_column,
  paths,
)

# The column of a line, and of a file that is one text.
TEXT = 'text'
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'pipe': '|'}
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)

# By ending of a path, a function from a file to one of its content.
COMPRESSED = {
  '.gz': gzip.open, '.bz2': bz2.open, '.xz': lzma.open,
  '.zst': arrow_tables.zstd,
}  # fmt: skip
# What a file that is cut off or damaged raises.
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def decompressed(file: BinaryIO, path: str) -> Any:
  """The content of a file, by the ending of its path."""
  opener = COMPRESSED.get(os.path.splitext(path)[1].lower())
  return opener(file) if opener else file


class _Text(Format):
  """A format of text; `parse` has its records."""

  # Whether HTML is a text.
  may_be_page: ClassVar[bool] = False
  # Lines end with LF or CR LF.
  newline: ClassVar[str] = '\n'

  def records(self, file, columns, encoding, all_columns) -> Iterator[Any]:
    file = file if hasattr(file, 'peek') else io.BufferedReader(file)
    with io.TextIOWrapper(
      file,
      encoding=first_bytes.codec(file, encoding, self.may_be_page),
      # Goes on after most errors, so that their row is known.
      errors='surrogateescape',
      newline=self.newline,
    ) as text:
      yield from self.parse(text, columns)

  def parse(
    self, text: io.TextIOWrapper, columns: Sequence[str]
  ) -> Iterable[Any]:
    """The records of a text."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Csv(_Text):
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


class _Number(float):
  """A number of JSON with a point or an exponent; its str is as written."""

  def __init__(self, written: str):
    self._written = written

  def __str__(self) -> str:
    return self._written


_DECODER = json.JSONDecoder(parse_float=_Number)


@dataclasses.dataclass(frozen=True)
class Json(_Text):
  """An object on each line, or an array of objects."""

  def parse(self, text, columns) -> Iterator[Any]:
    while (char := text.read(1)).isspace():
      if char == '\n':
        yield None
    if char == '[':
      yield from map(_object, _DECODER.decode(char + text.read()))
    elif char:
      for line in itertools.chain([char + text.readline()], text):
        yield _object(_DECODER.decode(line)) if line.strip() else None


def _object(value: Any) -> dict:
  if not isinstance(value, dict):
    shown = 'null' if value is None else ascii(value)[:200]
    raise InvalidRow(f'not a JSON object but {shown}; correct or remove it')
  return value


@dataclasses.dataclass(frozen=True)
class Lines(_Text):
  """On each line a label, a space or tab, and a text; or a text alone."""

  has_columns = False

  def parse(self, text, columns) -> Iterator[dict | None]:
    for line in text:
      values = [line.removesuffix('\n').removesuffix('\r')]
      if len(columns) > 1:
        label, *rest = re.split('[ \t]', values[0], maxsplit=1)
        values = [''.join(rest), label]
      row = dict(zip(columns, values, strict=True))
      yield row if line.strip() else None


@dataclasses.dataclass(frozen=True)
class Conll(_Text):
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
      tokens = [fields for fields in map(_fields, lines) if self.reads(fields)]
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

  def reads(self, fields: list[str]) -> bool:
    """Whether a line with these columns has a token of the text."""
    del fields
    return True


def _fields(line: str) -> list[str]:
  line = line.strip()
  return re.split('\t+' if '\t' in line else ' +', line)


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
  return bool(line.strip()) and not line.startswith('-DOCSTART-')


@dataclasses.dataclass(frozen=True)
class Conllu(Conll):
  """CoNLL-U of Universal Dependencies: a word, and its UPOS, on each line.

  Lines of several tokens in one word (1-2), and of empty nodes (2.1), are left
  out.
  """

  token: int = 1
  label: int = 3
  comments: bool = True

  def reads(self, fields):
    return fields[0].isdigit()


def named(entry: str) -> tuple[str, str]:
  """(name, rest) of `name=rest`; the rest may be empty.

  A name with an equals sign has it twice: `x==1=rest`.
  """
  name, _, rest = entry.replace('==', '\0').partition('=')
  return name.replace('\0', '='), rest.replace('\0', '==')


@dataclasses.dataclass(frozen=True)
class ClassFiles(Lines):
  """A file for each class, with a text on each line, named as `label=file`."""

  def files(self, name, directory, key, is_labelled) -> Files:
    if not is_labelled:
      return super().files(name, directory, key, is_labelled)
    label, path = named(name)
    if not path:
      raise UserError(f"{key} = {name!r}: write label=file for 'class_files'")
    return [(label, path) for path in paths(path, directory, key, False)]


@dataclasses.dataclass(frozen=True)
class ClassFolders(_Text):
  """A folder with a folder for each class, and a file for each text."""

  has_columns = False
  may_be_page = True

  def files(self, name, directory, key, is_labelled) -> Files:
    """The files of class folders or, without labels, of the folders named.

    Hidden files and folders are left out.
    """
    place = f'{key} = {name!r}'
    folders = paths(name, directory, key, True)
    if is_labelled:
      inside = [path for folder in folders for path in _visible(folder)]
      folders = [path for path in inside if os.path.isdir(path)]
    files = []
    for folder in folders:
      texts = _visible(folder)
      inner = [path for path in texts if os.path.isdir(path)]
      if inner:
        raise UserError(f'{place}: {inner[0]} is a folder, not a file of text')
      if not texts:
        raise UserError(f'{place}: {folder} has no file')
      label = os.path.basename(folder) if is_labelled else None
      files += [(label, path) for path in texts]
    if not files:
      raise UserError(f'{place} has no class folder')
    return files

  def parse(self, text, columns) -> list[dict]:
    return [{columns[0]: text.read()}]


FORMATS: dict[str, type[Format]] = {
  'tsv': Tsv,
  'csv': Csv,
  'json': Json,
  'parquet': arrow_tables.Parquet,
  'lines': Lines,
  'conll': Conll,
  'conllu': Conllu,
  'class_files': ClassFiles,
  'class_folders': ClassFolders,
  'hub': arrow_tables.Hub,
}


def _visible(folder: str) -> list[str]:
  return [os.path.join(folder, name) for name in matched('*', folder)]
