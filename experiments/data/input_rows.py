"""Files that are given to a trained run: how they are read, and their rows."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from absl import flags

from experiments.command import schema
from experiments.data import readers
from experiments.data.text_files import Text

_PREFIX = 'config.data.text.'
# Formats of rows to predict.
FORMATS = ('lines', 'json', 'csv', 'parquet')
_ENDINGS = {
  '.json': 'json', '.jsonl': 'json', '.ndjson': 'json', '.csv': 'csv',
  '.tsv': 'csv', '.parquet': 'parquet',
}  # fmt: skip
# Keys of config.data.text in which a file may differ from those of the run.
_KEYS = ('format', 'text_columns', 'delimiter', 'quoted', 'header', 'encoding')


def define(values: flags.FlagValues, what: str, *more: str) -> None:
  """Adds flags --config.data.text.KEY, for a file unlike those of the run.

  --help says what the file is, and when it needs them; `more` are keys beside
  those of rows without labels.
  """
  for key in (*_KEYS, *more):
    is_switch = isinstance(getattr(Text, key), bool)
    add = flags.DEFINE_boolean if is_switch else flags.DEFINE_string
    meaning = f'Of {what}: {schema.meaning(Text, key)}.'
    add(_PREFIX + key, None, meaning, flag_values=values)


def names(values: flags.FlagValues) -> list[str]:
  """The names of the flags of `define`."""
  return [name for name in values if name.startswith(_PREFIX)]


def changed(values: flags.FlagValues) -> dict[str, Any]:
  """The values of the flags of `define` that were given, by key."""
  return {
    name.removeprefix(_PREFIX): values[name].value
    for name in names(values)
    if values[name].present
  }


def options_of(trained: Text, path: str, changes: dict[str, Any]) -> Text:
  """How a file of rows to predict is read, '' for standard input.

  Its format is that of its ending, or else 'lines'. A table or JSON file is
  read as the files of the run are, if these have the same format, and are
  separated by tabs if it is a '.tsv', or not if it is a '.csv'. Else fields are
  separated by tabs if it is a '.tsv', or by commas, and may be quoted, and the
  encoding is UTF-8, as that of 'lines' is. `changes` come first; a UserError
  says which is not allowed.
  """
  ending = _ending(path)
  format = changes.get('format') or format_of(path)
  is_alike = trained.format == format != 'lines'
  if ending in ('.csv', '.tsv') and trained.format == 'csv':
    is_alike &= (trained.delimiter == 'tab') == (ending == '.tsv')
  if is_alike:
    return trained.changed(changes)
  by_ending = {
    'format': format,
    'delimiter': 'tab' if ending == '.tsv' else 'comma',
    'quoted': ending != '.tsv',
    'header': True,
    'encoding': 'utf-8',
  }
  if format == 'lines':
    by_ending['text_columns'] = (readers.TEXT,)
  return trained.changed(by_ending | changes)


def format_of(path: str) -> str:
  """The format by the ending of a path; 'lines' if it is of no other one."""
  return _ENDINGS.get(_ending(path), 'lines')


def _ending(path: str) -> str:
  """The ending of a path, in lower case, without that of an archive."""
  path, ending = os.path.splitext(path.lower())
  return os.path.splitext(path)[1] if ending in readers.COMPRESSED else ending


def windows(rows: Iterable, size: int, file: BinaryIO | None) -> Iterator[list]:
  """Lists of `size` rows, or fewer where the file does not have more yet."""
  window = []
  for row in rows:
    window.append(row)
    has_more = file is None or select.select([file], [], [], 0)[0]
    if len(window) == size or not has_more:
      yield window
      window = []
  if window:
    yield window
