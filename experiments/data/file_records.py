"""Records of a file, a folder or a hub split, read by the datasets library.

The options of a function are those of text_files.Text, whose fields are named
like the keys config.data.text.KEY.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import glob
import os
import re
from collections.abc import Iterator

from experiments.command.errors import UserError

# Rows that are converted at once.
_ROWS = 1_000
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}


def read(options, path: str, columns: list[str], split: str) -> Iterator[tuple]:
  """The values of some columns of each record.

  Args:
    path: a file, a folder for 'class_folders', or a hub split for 'hub'.
    split: what the file is read for.

  Raises:
    UserError: it cannot be read, or lacks a column.
  """
  for table in _tables(options, path, split):
    missing = [name for name in columns if name not in table.column_names]
    if missing:
      raise UserError(
        f'{path} has no column {missing[0]!r} but '
        f'{sorted(table.column_names)}; '
        'change config.data.text.text_columns or label_column'
        + _delimiter_hint(options, table.column_names)
        + _quoting_hint(options, path)
      )
    values = (table[name].to_pylist() for name in columns)
    yield from zip(*values, strict=True)


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
  found = [name for name, mark in DELIMITERS.items() if mark in columns[0]]
  if options.format != 'csv' or len(columns) > 1 or not found:
    return ''
  return f', or set config.data.text.delimiter={found[0]}'


def _quoting_hint(options, path: str) -> str:
  """Hint for a table with quoted fields that is read without quoting."""
  if options.format != 'csv' or options.quoted:
    return ''
  mark = re.escape(DELIMITERS[options.delimiter])
  enclosed = re.compile(rf'(^|{mark})".*"({mark}|\s*$)')
  with open(path, encoding=_codec(options), errors='replace') as file:
    found = any(map(enclosed.search, file))
  return '; its fields are quoted: set config.data.text.quoted=True' * found


def _codec(options) -> str:
  """The encoding, one that skips a byte order mark for UTF-8."""
  is_utf_8 = codecs.lookup(options.encoding).name == 'utf-8'
  return 'utf-8-sig' if is_utf_8 else options.encoding


def _loader(options, path: str, split: str) -> tuple[str, dict]:
  """Name and arguments of the loader in the datasets library."""
  paths = [path]
  if options.format == 'class_folders':
    paths = sorted(entry.path for entry in os.scandir(path))
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
  arguments = {'data_files': names, 'encoding': _codec(options)}
  if options.format == 'class_folders':
    arguments['sample_by'] = 'document'
  return 'text', arguments


def _table_arguments(options, path: str) -> dict:
  """Arguments of the loader of delimited tables."""
  import datasets

  delimiter = DELIMITERS[options.delimiter]
  quoting = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
  with open(path, encoding=_codec(options), newline='') as file:
    reader = csv.reader(file, delimiter=delimiter, quoting=quoting)
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
    'delimiter': delimiter,
    'quoting': quoting,
    # This parser skips a byte order mark, too.
    'encoding': options.encoding,
    'keep_default_na': False,
    'features': datasets.Features({name: text for name in columns}),
  }
