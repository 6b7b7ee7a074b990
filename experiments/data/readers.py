"""One reader for each format of texts, for training and for prediction.

A record is a dict of what a row holds, by column: strings, or for JSON, Parquet
and the hub whatever else they hold. The record of a blank line is empty, so
that each row keeps its number. Options are those of text_options.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import decimal
import gzip
import io
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import arrow_tables

# The column of a line, and of a file that is one text.
TEXT = 'text'
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}
# Keys that may be wrong where a table has other columns than those named.
_TABLE = 'config.data.text.delimiter, quoted, format or encoding'
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)


class _Invalid(ValueError):
  """What is wrong with a row, and the key to change."""


class _Number(float):
  """A number of JSON with a point or an exponent; its str is as written."""

  def __init__(self, written: str):
    self._written = written

  def __str__(self) -> str:
    return self._written


_DECODER = json.JSONDecoder(parse_float=_Number)


# By ending of a path, a function from a file to one of its content.
COMPRESSED = {
  '.gz': gzip.open, '.bz2': bz2.open, '.xz': lzma.open,
  '.zst': arrow_tables.zstd,
}  # fmt: skip
# What a file that is cut off or damaged raises.
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def rows(
  options,
  path: str,
  columns: Sequence[str],
  answered: bool = False,
  file: BinaryIO | None = None,
) -> Iterator[tuple[int, list[str] | None, dict]]:
  """(number, values of the columns, record) of each row, in bounded memory.

  Numbers start from 1. The values of a blank line are None. A UserError says
  which row cannot be read, or lacks a column.

  Args:
    path: of a file, which is decompressed by its ending; of 'hub', a split.
    columns: without a second one, each line of 'lines' is a text.
    answered: whether each row is to be answered: records hold all other
      columns, too, and a null is an empty text.
    file: is read in place of the one at `path`, and closed.
  """
  number, may_be_quoted = 1, options.format == 'csv' and not options.quoted
  try:
    for record in _records(options, path, columns, answered, file):
      if not isinstance(record, dict):
        raise _Invalid(
          f'not a JSON object but {_shown(record)}; correct or remove it'
        )
      texts = None
      if record:
        texts = [_string(record, name, options, answered) for name in columns]
      quoted = map(_QUOTED.fullmatch, texts or () if may_be_quoted else ())
      # A text in quotes is no sign of a table in quotes, but the first one is.
      if any(q and (number == 1 or '""' in q[1]) for q in quoted):
        may_be_quoted = False
        log(
          f'WARNING: {path} row {number}: quotes enclose a text or a label and '
          'are part of it; config.data.text.quoted=True reads them as quotes'
        )
      yield number, texts, record
      number += 1
  # Every library has exceptions of its own.
  except Exception as error:
    raise _refusal(error, options, path, number) from error


def _refusal(error: Exception, options, path: str, number: int) -> UserError:
  where, keys = path, 'format, encoding or quoted'
  if options.format == 'hub':
    where, keys = f'{options.hub_name} {path!r}', 'hub_name or hub_config'
  if isinstance(error, _Invalid):
    return UserError(f'{where} row {number}: {error}')
  reason = ' '.join(str(error).split()) or type(error).__name__
  return UserError(
    f'{where} row {number} cannot be read as {options.format!r}: {reason}; '
    f'correct it, or change config.data.text.{keys}'
  )


def _string(record: dict, name: str, options, answered: bool) -> str:
  if name not in record:
    raise _Invalid(
      f'no column {name!r} in {_shown(sorted(record))}; correct or remove the '
      f'row, or change {_key(name, options)}'
    )
  value = record[name]
  if isinstance(value, bool):
    return str(value).lower()
  # A NaN differs from itself.
  if isinstance(value, int | float | decimal.Decimal) and value == value:
    return str(value)
  if value is None and answered:
    return ''
  if isinstance(value, list) and name not in options.text_columns:
    labels = [_string({name: v}, name, options, answered) for v in value]
    return json.dumps(labels, ensure_ascii=False)
  if not isinstance(value, str):
    raise _Invalid(
      f'column {name!r} is {_shown(value)} and no string, number or boolean; '
      f'correct or remove the row, or change {_key(name, options)}'
    )
  if not _is_decoded(value):
    raise _Invalid(
      f'column {name!r} is not {options.encoding!r}: {_shown(value)}; '
      'correct it, or change config.data.text.encoding'
    )
  return value


def _key(column: str, options) -> str:
  is_text = column in options.text_columns
  labels = 'label_columns' if options.label_columns else 'label_column'
  return f'config.data.text.{"text_columns" if is_text else labels}'


def _shown(value) -> str:
  """The start of a value, without what cannot be printed."""
  return 'null' if value is None else ascii(value)[:200]


def _is_decoded(text: str) -> bool:
  """Whether all of it was decoded, and it has no half of a surrogate pair."""
  try:
    return text.isascii() or bool(text.encode())
  except UnicodeEncodeError:
    return False


def _records(options, path, columns, answered, file) -> Iterator:
  if options.format == 'hub':
    yield from arrow_tables.of_hub(options, path, columns)
    return
  with file or open(path, 'rb') as source:
    if options.format == 'parquet':
      yield from arrow_tables.of_parquet(source, [] if answered else columns)
      return
    if decompress := COMPRESSED.get(os.path.splitext(path)[1].lower()):
      source = decompress(source)
    is_utf_8 = codecs.lookup(options.encoding).name == 'utf-8'
    with io.TextIOWrapper(
      source,
      # One that skips a byte order mark.
      encoding='utf-8-sig' if is_utf_8 else options.encoding,
      # Goes on after most errors, so that their row is known.
      errors='surrogateescape',
      # The library for tables finds the ends of lines; others are LF or CR LF.
      newline='' if options.format == 'csv' else '\n',
    ) as text:
      yield from _TEXT[options.format](text, columns, options)


def _csv(text, columns, options) -> Iterator[dict]:
  quoting = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
  mark = DELIMITERS[options.delimiter]
  names: list[str] = []
  for fields in csv.reader(text, delimiter=mark, quoting=quoting, strict=True):
    if len(fields) < 2 and not ''.join(fields).strip():
      if names or not options.header:
        yield {}
      continue
    if not names:
      names = _names(fields, columns, options)
      if options.header:
        continue
    # Programs end lines with empty fields.
    if any(fields[len(names) :]):
      raise _Invalid(
        f'{len(fields)} fields, but {len(names)} columns; correct or remove '
        f'the row, or change {_TABLE}'
      )
    yield dict(zip(names, fields, strict=False))
  if not names:
    raise _Invalid('the file has no line; give another one, or fill it')


def _names(first: list[str], columns, options) -> list[str]:
  """The columns, of which one with an empty or repeated name is its number."""
  names = first if options.header else list(map(str, range(len(first))))
  for column in columns:
    if names.count(column) != 1:
      count = 'two columns' if column in names else 'no column'
      raise _Invalid(
        f'{count} {column!r} in {_shown(sorted(names))}; change '
        f'{_key(column, options)}, or {_TABLE}'
      )
  unique: list[str] = []
  for index, name in enumerate(names):
    number = str(index) if str(index) not in names else f'column {index}'
    unique.append(name if name and name not in unique else number)
  return unique


def _json(text, *_) -> Iterator:
  """The value of each line, {} of a blank one; or the elements of an array."""
  while (char := text.read(1)).isspace():
    if char == '\n':
      yield {}
  if char == '[':
    yield from _DECODER.decode(char + text.read())
  elif char:
    for line in itertools.chain([char + text.readline()], text):
      yield _DECODER.decode(line) if line.strip() else {}


def _lines(text, columns, _) -> Iterator[dict]:
  for line in text:
    values = [line.removesuffix('\n').removesuffix('\r')]
    if len(columns) > 1:
      label, *rest = re.split('[ \t]', values[0], maxsplit=1)
      values = [''.join(rest), label]
    yield dict(zip(columns, values, strict=True)) if line.strip() else {}


_TEXT = {
  'csv': _csv, 'json': _json, 'lines': _lines, 'class_files': _lines,
  'class_folders': lambda text, columns, _: [{columns[0]: text.read()}],
}  # fmt: skip


def hub_files(options, split: str) -> list[str]:
  """The files of a downloaded hub split; UserError if there is none."""
  try:
    data = arrow_tables.hub_split(options, split)
  except Exception as error:
    raise _refusal(error, options, split, 1) from error
  return [file['filename'] for file in data.cache_files]
