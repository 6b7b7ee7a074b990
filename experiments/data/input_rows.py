"""Rows to predict: lines, JSON lines or a table, in bounded memory.

A row is a dict of all that it holds, by column. That of a line is its `text`;
that of an empty line of a table or of JSON is empty.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import os
from collections.abc import Iterator, Sequence

from experiments.command.errors import UserError
from experiments.data import file_records
from experiments.data.text_files import Text

FORMATS = ('lines', 'json', 'csv', 'tsv', 'parquet')
# The column of a line.
TEXT = 'text'
# Bytes of one read.
_BYTES = 2**18


def format_of(path: str) -> str:
  """The format by the ending of a path; 'lines' if it is of no other one."""
  ending = os.path.splitext(path)[1].removeprefix('.')
  ending = 'json' if ending == 'jsonl' else ending
  return ending if ending in FORMATS else 'lines'


def of_lines(
  file: io.BufferedIOBase, name: str, is_json: bool
) -> Iterator[list[dict]]:
  """Lists of rows, each as many as one read of a file or a pipe has returned.

  A line ends with LF or CR LF; a byte order mark is skipped. Memory is bounded
  by the longest line.

  Args:
    name: what the file is called in errors.
    is_json: whether a line is a JSON object.

  Raises:
    UserError: a line is not UTF-8, or no JSON object.
  """
  numbers = itertools.count(1)
  for lines in _arrived(file):
    yield [_row(line, next(numbers), name, is_json) for line in lines]


def _row(line: bytes, number: int, name: str, is_json: bool) -> dict:
  line = line.removesuffix(b'\r')
  line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
  try:
    text = line.decode()
  except UnicodeDecodeError as error:
    raise UserError(
      f'{name} row {number} is not UTF-8 ({error.reason}); convert the file'
    ) from error
  if not is_json:
    return {TEXT: text}
  try:
    return file_records.json_object(text, number) or {}
  except ValueError as error:
    raise UserError(f'{name} {error}; correct it') from error


def _arrived(file: io.BufferedIOBase) -> Iterator[list[bytes]]:
  begun = b''
  while read := file.read1(_BYTES):
    *whole, begun = (begun + read).split(b'\n')
    if whole:
      yield whole
  if begun:
    yield [begun]


def of_table(
  options: Text, path: str, kind: str, size: int
) -> Iterator[list[dict]]:
  """Lists of `size` rows of a table.

  Args:
    options: of the texts that the run was trained on. They say how a table is
      read, if these were in tables of this kind; else fields of 'csv' are
      separated by commas, and may be quoted, those of 'tsv' by tabs.
    kind: 'csv', 'tsv' or 'parquet'.

  Raises:
    UserError: a row cannot be read, or a column of the texts is missing.
  """
  is_tsv = kind == 'tsv'
  if kind == 'parquet':
    options = dataclasses.replace(options, format='parquet')
  elif options.format != 'csv' or (options.delimiter == 'tab') != is_tsv:
    options = dataclasses.replace(
      options,
      format='csv',
      delimiter='tab' if is_tsv else 'comma',
      quoted=not is_tsv,
      header=True,
    )
  columns = list(options.text_columns)
  found = file_records.records(options, path, columns, 'input', others=True)
  rows = (row or {} for row in found)
  while window := list(itertools.islice(rows, size)):
    yield window


def text_of(row: dict, columns: Sequence[str], where: str) -> str:
  """The text of a row; '' of an empty row, and of a value that is null.

  Args:
    columns: those with the text, joined by a space.
    where: the row, for errors.

  Raises:
    UserError: it lacks one of them.
  """
  if not row:
    return ''
  for name in columns:
    if name not in row:
      raise UserError(
        f'{where} has no {name!r} but {sorted(row)}; add it to the row'
      )
  return ' '.join('' if row[c] is None else str(row[c]) for c in columns)
