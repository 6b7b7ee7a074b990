"""Records of a file, a folder or a hub split.

The options of a function are those of text_files.Text, whose fields are named
like the keys config.data.text.KEY.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Iterator

from experiments.command.errors import UserError
from experiments.data import decompressed

# Rows of a binary table that are converted at once.
_ROWS = 1_000
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}


def read(options, path: str, columns: list[str], split: str) -> Iterator[tuple]:
  """The values of some columns of each record; None for one that it lacks.

  Args:
    path: a file, a folder for 'class_folders', or a hub split for 'hub'.
    split: what the file is read for.

  Raises:
    UserError: it cannot be read, or lacks a column.
  """
  for record in records(options, path, columns, split):
    if record is not None:
      yield tuple(record.get(name) for name in columns)


def records(
  options, path: str, columns: list[str], split: str, others: bool = False
) -> Iterator[dict | None]:
  """Each record, by column; None for an empty line of a table or of JSON.

  Values of a delimited table are strings. A record without some of the last
  fields, or without some keys, lacks them.

  Args:
    columns: those that the file must have.
    others: whether a Parquet file or a hub split is read with the columns that
      are not named, too, as the other formats are.

  Raises:
    UserError: it cannot be read, or lacks a column.
  """
  with _reading(options, path, split):
    for file in _paths(options, path, split):
      decompressed.require_whole(file)
    if options.format in _BINARY:
      yield from _BINARY[options.format](options, path, columns, others)
      return
    found = _TEXT[options.format](options, path, columns)
    for number, record in enumerate(found, 1):
      _require_unicode(record, number, options.encoding)
      yield record


def _require_unicode(record: dict | None, number: int, encoding: str) -> None:
  """ValueError for bytes that were not decoded, and half of a pair in JSON."""
  try:
    for value in (record or {}).values():
      if isinstance(value, str):
        value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f'row {number} is not {encoding!r}: {error.object[:80]!a}; correct it, '
      'or set config.data.text.encoding'
    ) from error


def _require_columns(options, path: str, columns, known: list[str]) -> None:
  missing = [name for name in columns if name not in known]
  if missing:
    raise UserError(
      f'{path} has no column {missing[0]!r} but {sorted(known)}; '
      'rename it, or change config.data.text.text_columns or label_column'
      + _delimiter_hint(options, known)
      + _quoting_hint(options, path)
    )
  repeated = [name for name in columns if list(known).count(name) > 1]
  if repeated:
    raise UserError(f'{path} has two columns {repeated[0]!r}')


def _table(options, path, columns) -> Iterator[dict | None]:
  with decompressed.opened(path, options.encoding) as file:
    quoting = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
    mark = DELIMITERS[options.delimiter]
    reader = csv.reader(file, delimiter=mark, quoting=quoting, strict=True)
    try:
      first = next(reader, [])
      names = first if options.header else list(map(str, range(len(first))))
      _require_columns(options, path, columns, names)
      rows = reader if options.header else itertools.chain([first], reader)
      for number, fields in enumerate(rows, 1):
        if len(fields) > len(names):
          raise ValueError(
            f'row {number}: {len(fields)} fields, but {len(names)} columns'
          )
        is_empty = len(fields) < 2 and not ''.join(fields).strip()
        yield None if is_empty else dict(zip(names, fields, strict=False))
    except csv.Error as error:
      raise ValueError(f'line {reader.line_num}: {error}') from error


def _json(options, path, columns) -> Iterator[dict | None]:
  with decompressed.opened(path, options.encoding) as file:
    is_first = True
    for number, line in enumerate(file, 1):
      record = json_object(line, number)
      if is_first and record is not None:
        _require_columns(options, path, columns, list(record))
        is_first = False
      yield record


def json_object(line: str, number: int) -> dict | None:
  """The JSON object of a line, or None of an empty one.

  Args:
    number: of the line, for the error.

  Raises:
    ValueError: it is no object.
  """
  if not line.strip():
    return None
  try:
    found = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'row {number} is not JSON: {error}') from error
  if not isinstance(found, dict):
    raise ValueError(f'row {number} is not a JSON object: {line.strip()[:80]}')
  return found


def _lines(options, path, columns) -> Iterator[dict]:
  (name,) = columns
  with decompressed.opened(path, options.encoding) as file:
    for line in file:
      yield {name: line.rstrip('\r\n')}


def _documents(options, path, columns) -> Iterator[dict]:
  (name,) = columns
  for file in sorted(entry.path for entry in os.scandir(path)):
    with decompressed.opened(file, options.encoding) as opened:
      yield {name: opened.read()}


def _parquet(options, path, columns, others) -> Iterator[dict]:
  # Imported late: it takes a second, and most data does not need it.
  from pyarrow import parquet

  with parquet.ParquetFile(path) as file:
    _require_columns(options, path, columns, file.schema_arrow.names)
    for batch in file.iter_batches(_ROWS, columns=None if others else columns):
      yield from batch.to_pylist()


def _hub(options, path, columns, others) -> Iterator[dict]:
  found = _hub_split(options, path)
  _require_columns(options, path, columns, found.column_names)
  if not others:
    found = found.select_columns(columns)
  for table in found.with_format('arrow').iter(_ROWS):
    yield from table.to_pylist()


_TEXT = {
  'csv': _table,
  'json': _json,
  'lines': _lines,
  'class_files': _lines,
  'class_folders': _documents,
}
_BINARY = {'parquet': _parquet, 'hub': _hub}


def hub_files(options, path: str, split: str) -> list[str]:
  """The files in which the library keeps a hub split, once it is downloaded.

  Args, Raises: as `read`.
  """
  with _reading(options, path, split):
    files = _hub_split(options, path).cache_files
  return [file['filename'] for file in files]


def _hub_split(options, name: str):
  import datasets

  datasets.logging.set_verbosity(datasets.logging.CRITICAL)
  config = options.hub_config or None
  # In memory, which HF_DATASETS_IN_MEMORY_MAX_SIZE could set, rows are of no
  # files that a key could depend on.
  return datasets.load_dataset(
    options.hub_name, config, split=name, keep_in_memory=False
  )


@contextlib.contextmanager
def _reading(options, path: str, split: str):
  """Raises UserError for whatever a parser raises."""
  try:
    yield
  except UserError:
    raise
  # Every parser and every kind of compression has exceptions of its own.
  except Exception as error:
    reason = ' '.join(str(error).split()) or type(error).__name__
    if options.format == 'hub':
      what = f'{options.hub_name}: cannot read its split {path!r}'
      reason += f' (config.data.text.hub_name, hub_config, {split})'
    else:
      what = f'{path}: cannot read this {split} file'
      reason += _quoting_hint(options, path)
    raise UserError(f'{what}: {reason}') from error


def _delimiter_hint(options, columns: list[str]) -> str:
  """Hint for a table of one column whose name has another delimiter in it."""
  named = ''.join(columns[:1])
  found = [name for name, mark in DELIMITERS.items() if mark in named]
  if options.format != 'csv' or len(columns) > 1 or not found:
    return ''
  return f', or set config.data.text.delimiter={found[0]}'


def _quoting_hint(options, path: str) -> str:
  """Hint for a table with quoted fields that is read without quoting."""
  if options.format != 'csv' or options.quoted:
    return ''
  mark = re.escape(DELIMITERS[options.delimiter])
  enclosed = re.compile(rf'(^|{mark})".*"({mark}|\s*$)')
  found = False
  # What cannot be decompressed is named in another error.
  with (
    contextlib.suppress(Exception),
    decompressed.opened(path, options.encoding) as file,
  ):
    found = any(map(enclosed.search, file))
  return '; its fields are quoted: set config.data.text.quoted=True' * found


def _paths(options, path: str, split: str) -> list[str]:
  """The files of a folder of one class, in order; else the file itself."""
  if options.format == 'hub':
    return []
  paths = [path]
  if options.format == 'class_folders':
    paths = sorted(entry.path for entry in os.scandir(path))
  for file in map(os.path.abspath, paths):
    if '::' in file:
      raise UserError(
        f"{file}: '::' in a path is a chained URL to the library that opens "
        f'files; rename it (config.data.dir, text.{split})'
      )
  return paths
