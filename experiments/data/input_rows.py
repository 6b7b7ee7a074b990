"""Files that are given to a trained run: how they are read, and their rows."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from absl import flags

from experiments.command import schema
from experiments.command.errors import UserError
from experiments.data import text_format
from experiments.data.contract import Format
from experiments.data.text_files import Text

_PREFIX = 'config.data.text.'
_ENDINGS = {
  '.json': 'json', '.jsonl': 'json', '.ndjson': 'json', '.csv': 'csv',
  '.tsv': 'tsv', '.parquet': 'parquet',
}  # fmt: skip
# Keys of config.data.text in which a file may differ from those of the run.
_KEYS = ('format', 'text_columns', 'encoding')


def define(values: flags.FlagValues, what: str, *more: str) -> None:
  """Adds flags --config.data.text.KEY, for a file unlike those of the run.

  --help says what the file is, and when it needs them; `more` are keys beside
  those of rows without labels.
  """
  for key in (*_KEYS, *more):
    meaning = f'Of {what}: {schema.meaning(Text, key)}.'
    flags.DEFINE_string(_PREFIX + key, None, meaning, flag_values=values)


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
  read as the files of the run are, if these have the same format, or else with
  the defaults of its own and as UTF-8. `changes` come first.

  Raises:
    UserError: a change is not allowed.
  """
  named = {'format': format_of(path)} | changes
  options = trained.changed(named)
  format = options.format.entry
  # One that looks for its files itself.
  if format.files is not Format.files:
    raise UserError(
      f'config.data.text.format = {options.format} reads folders, or several '
      'files; rows to predict are of one file'
    )
  if not format.has_columns:
    if 'text_columns' in changes:
      raise UserError(
        f'{_PREFIX}text_columns = {changes["text_columns"]} must not be given '
        f'for {_PREFIX}format = {options.format}, which has no columns'
      )
    named = {'text_columns': (text_format.TEXT,), 'encoding': 'utf-8'} | named
  elif format is not trained.format.entry:
    named = {'encoding': 'utf-8'} | named
  elif 'format' not in changes:
    del named['format']
  return trained.changed(named)


def format_of(path: str) -> str:
  """The format by the ending of a path; 'lines' if it is of no other one."""
  return _ENDINGS.get(_ending(path), 'lines')


def _ending(path: str) -> str:
  """The ending of a path, in lower case, without that of an archive."""
  path, ending = os.path.splitext(path.lower())
  return (
    os.path.splitext(path)[1] if ending in text_format.COMPRESSED else ending
  )


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
