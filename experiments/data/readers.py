"""The rows of a file of texts, for training and for prediction."""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from experiments.command.errors import UserError
from experiments.command.log import warn
from experiments.data.contract import InvalidRow, no_column
from experiments.data.labels import Listed
from experiments.data.tables import Csv
from experiments.data.text_format import decompressed

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


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
    path: of a file, which is decompressed by its ending, or of what stands for
      one; see experiments.data.contract.Format.
    columns: without a second one, each line of 'lines' is a text.
    answered: whether each row is to be answered: records hold all other
      columns, too, and a null is an empty text.
    file: is read in place of the one at `path`, and closed.
  """
  number, format = 1, options.format.make()
  how = columns, options.encoding, answered
  may_be_quoted = isinstance(format, Csv) and not format.quoted
  try:
    for record in _records(format, path, file, how):
      texts = None
      if record is not None:
        texts = [_string(record, name, options, answered) for name in columns]
      quoted = map(_QUOTED.fullmatch, texts or () if may_be_quoted else ())
      # A text in quotes is no sign of a table in quotes, but the first one is.
      if any(q and (number == 1 or '""' in q[1]) for q in quoted):
        may_be_quoted = False
        warn(
          f'{path} row {number}: quotes enclose a text or a label and '
          'are part of it; quoted=True of config.data.text.format = '
          f'{options.format} reads them as quotes'
        )
      yield number, texts, record or {}
      number += 1
  # Every library has exceptions of its own.
  except Exception as error:
    raise refusal(error, options, path, number) from error


def _records(format, path: str, file: BinaryIO | None, how: tuple) -> Iterator:
  if not format.has_files:
    yield from format.records(path, *how)
    return
  with file or open(path, 'rb') as source:
    yield from format.records(decompressed(source, path), *how)


def refusal(error: Exception, options, path: str, number: int) -> UserError:
  """The error that says which row of a file, or of a split, is wrong."""
  if isinstance(error, InvalidRow):
    key = f' {_key(error.column, options)}' if error.column else ''
    return UserError(f'{path} row {number}: {error}{key}')
  if ':' in options.format.name:
    # Of a class of one's own, with the line of its file.
    try:
      with options.format.checked():
        raise error
    except UserError as refused:
      return refused
  reason = ' '.join(str(error).split()) or type(error).__name__
  return UserError(
    f'{path} row {number} cannot be read as {options.format}: {reason}; '
    'correct it, or change config.data.text.format or encoding'
  )


def _string(record: dict, name: str, options, answered: bool) -> str:
  if name not in record:
    raise InvalidRow(
      f'{no_column(name, record)} correct or remove the row, or change', name
    )
  value = record[name]
  if isinstance(value, list) and name not in options.text_columns:
    labels = [_scalar(one, name, options, answered) for one in value]
    return Listed(json.dumps(labels, ensure_ascii=False))
  return _scalar(value, name, options, answered)


def _scalar(value, name: str, options, answered: bool) -> str:
  if isinstance(value, bool):
    return str(value).lower()
  # A NaN differs from itself.
  if isinstance(value, int | float | decimal.Decimal) and value == value:
    return str(value)
  if value is None and answered:
    return ''
  if not isinstance(value, str):
    raise InvalidRow(
      f'column {name!r} is {_shown(value)} and no string, number or boolean; '
      'correct or remove the row, or change',
      name,
    )
  if not is_decoded(value):
    raise InvalidRow(
      f'column {name!r} is not {options.encoding!r}: {_shown(value)}; '
      'correct it, or change config.data.text.encoding'
    )
  return value


def _key(column: str, options) -> str:
  if column not in (
    *options.text_columns, options.label_column, *options.label_columns
  ):  # fmt: skip
    return 'config.data.split_by'
  is_text = column in options.text_columns
  labels = 'label_columns' if options.label_columns else 'label_column'
  return f'config.data.text.{"text_columns" if is_text else labels}'


def _shown(value) -> str:
  """The start of a value, without what cannot be printed."""
  return 'null' if value is None else ascii(value)[:200]


def is_decoded(text: str) -> bool:
  """Whether all of it was decoded, and it has no half of a surrogate pair."""
  try:
    return text.isascii() or bool(text.encode())
  except UnicodeEncodeError:
    return False
