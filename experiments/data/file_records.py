"""Records of a file, a folder or a hub split, read by the datasets library.

The options of a function are those of text_files.Text, whose fields are named
like the keys config.data.text.KEY.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator

from experiments.command.errors import UserError
from experiments.data import decompressed

# Rows that are converted at once.
_ROWS = 1_000
# A line after the last one of a table.
_END = '\0end'
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}


def read(options, path: str, columns: list[str], split: str) -> Iterator[tuple]:
  """The values of some columns of each record.

  With config.data.text.invalid_rows='drop', values that cannot be parsed are
  None.

  Args:
    path: a file, a folder for 'class_folders', or a hub split for 'hub'.
    split: what the file is read for.

  Raises:
    UserError: it cannot be read, or lacks a column.
  """
  with _reading(options, path, split):
    for file in _paths(options, path):
      decompressed.require_whole(file)
  if options.invalid_rows == 'drop' and options.format in _LENIENT:
    with _reading(options, path, split):
      yield from _LENIENT[options.format](options, path, columns)
    return
  for table in _tables(options, path, split):
    _require_columns(options, path, columns, table.column_names)
    values = (table[name].to_pylist() for name in columns)
    yield from zip(*values, strict=True)


def _require_columns(options, path: str, columns, known: list[str]) -> None:
  missing = [name for name in columns if name not in known]
  if missing:
    raise UserError(
      f'{path} has no column {missing[0]!r} but {sorted(known)}; '
      'change config.data.text.text_columns or label_column'
      + _delimiter_hint(options, known)
      + _quoting_hint(options, path)
    )


def _lenient_table(options, path, columns) -> Iterator[tuple]:
  with decompressed.opened(path, options.encoding) as file:
    # A quote that never closes takes in all lines after it, this one too.
    lines = itertools.chain(file, [_END])
    reader = csv.reader(lines, **_dialect(options))
    first = next(reader)
    names = first if options.header else [str(n) for n in range(len(first))]
    _require_columns(options, path, columns, [] if first == [_END] else names)
    if repeated := [name for name in columns if names.count(name) > 1]:
      raise UserError(f'{path} has two columns {repeated[0]!r}')
    fields = first
    for fields in (
      reader if options.header else itertools.chain([first], reader)
    ):
      # Empty lines are no rows.
      if fields == [_END] or not (len(fields) > 1 or ''.join(fields).strip()):
        continue
      if len(fields) > len(names):
        fields = []
      # As the strict parser: missing fields are None.
      fields += [None] * (len(names) - len(fields))
      yield _decoded(fields[names.index(name)] for name in columns)
    if fields != [_END]:
      raise ValueError('the file ends in a field whose quote is not closed')


def _lenient_json(options, path, columns) -> Iterator[tuple]:
  with decompressed.opened(path, options.encoding) as file:
    for line in file:
      try:
        found = json.loads(line)
      except (ValueError, RecursionError):
        found = {}
      if not isinstance(found, dict):
        found = {}
      if line.strip():
        yield _decoded(found.get(name) for name in columns)


def _lenient_lines(options, path, columns) -> Iterator[tuple]:
  del columns
  with decompressed.opened(path, options.encoding) as file:
    for line in file:
      yield _decoded([line.rstrip('\r\n')])


def _lenient_documents(options, path, columns) -> Iterator[tuple]:
  del columns
  for file in _paths(options, path):
    with decompressed.opened(file, options.encoding) as opened:
      yield _decoded([opened.read()])


# Parsers of formats of which the datasets library reads no row at all, or no
# later one, if one of them is invalid.
_LENIENT = {
  'csv': _lenient_table,
  'json': _lenient_json,
  'lines': _lenient_lines,
  'class_files': _lenient_lines,
  'class_folders': _lenient_documents,
}


def _decoded(values: Iterable) -> tuple:
  """The values, None in the place of a text that no Unicode can hold."""
  found = []
  for value in values:
    try:
      str(value).encode()
    # Of bytes that could not be decoded, or half of a pair in JSON.
    except UnicodeEncodeError:
      value = None
    found.append(value)
  return tuple(found)


def hub_files(options, path: str, split: str) -> list[str]:
  """The files in which the library keeps a hub split, once it is downloaded.

  Args, Raises: as `read`.
  """
  with _reading(options, path, split):
    files = _hub_split(options, path).cache_files
  return [file['filename'] for file in files]


def _tables(options, path: str, split: str) -> Iterator:
  with _reading(options, path, split):
    # Imported late: it takes a second, and built-in data does not need it.
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if options.format == 'hub':
      found = _hub_split(options, path)
    else:
      loader, arguments = _loader(options, path, split)
      found = datasets.load_dataset(
        loader, split='train', streaming=True, **arguments
      )
    yield from found.with_format('arrow').iter(_ROWS)


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
  # Every parser and every kind of compression has exceptions of its own; an
  # empty JSON file raises one without words.
  except Exception as error:
    reason = ' '.join(str(error).split()) or 'it may be empty'
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


def _paths(options, path: str) -> list[str]:
  """The files of a folder of one class, in order; else the file itself."""
  if options.format == 'class_folders':
    return sorted(entry.path for entry in os.scandir(path))
  return [path]


def _loader(options, path: str, split: str) -> tuple[str, dict]:
  """Name and arguments of the loader in the datasets library."""
  paths = _paths(options, path)
  for file in map(os.path.abspath, paths):
    if '::' in file:
      raise UserError(
        f"{file}: '::' in a path is a chained URL to the datasets library; "
        f'rename it (config.data.dir, text.{split})'
      )
  # The library treats names as patterns.
  names = list(map(glob.escape, paths))
  if options.format in ('json', 'parquet'):
    return options.format, {'data_files': names}
  if options.format == 'csv':
    return 'csv', {'data_files': names} | _table_arguments(options, path)
  arguments = {
    'data_files': names,
    'encoding': decompressed.codec(options.encoding),
  }
  if options.format == 'class_folders':
    arguments['sample_by'] = 'document'
  return 'text', arguments


def _dialect(options) -> dict:
  """Arguments of a parser of delimited tables."""
  quoting = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
  return {'delimiter': DELIMITERS[options.delimiter], 'quoting': quoting}


def _table_arguments(options, path: str) -> dict:
  """Arguments of the loader of delimited tables."""
  import datasets

  dialect = _dialect(options)
  with decompressed.opened(path, options.encoding) as file:
    reader = csv.reader(file, **dialect)
    first = next(reader, [])
    second = next((row for row in reader if row), first)
  # The library rejects later rows with too many fields; in the first one it
  # would use the first field as an index, and shift the others.
  if len(second) > len(first):
    raise UserError(
      f'{path} row 1: {len(second)} fields, but {len(first)} columns'
      + _quoting_hint(options, path)
    )
  columns = first if options.header else [str(n) for n in range(len(first))]
  # Everything is a string: a text may read 'None', a label '01'.
  text = datasets.Value('string')
  return {
    'names': columns,
    'skiprows': 1 if options.header else 0,
    **dialect,
    # This parser skips a byte order mark, too.
    'encoding': options.encoding,
    'keep_default_na': False,
    'features': datasets.Features({name: text for name in columns}),
  }
