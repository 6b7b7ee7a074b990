"""Records of a file, a folder or a hub split, read by the datasets library.

The options of a function are those of text_files.Text, whose fields are named
like the keys config.data.text.KEY.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Iterator

from experiments.command.errors import UserError

# Rows that are converted at once.
_ROWS = 1_000
# What stands for bytes that cannot be decoded.
_UNDECODABLE = '\ufffd'
# A text may be longer than the limit of the library.
csv.field_size_limit(2**31 - 1)
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}


def read(options, path: str, columns: list[str], split: str) -> Iterator[tuple]:
  """The values of some columns of each record.

  With config.data.text.invalid_rows='drop', those of a record that cannot be
  parsed are None.

  Args:
    path: a file, a folder for 'class_folders', or a hub split for 'hub'.
    split: what the file is read for.

  Raises:
    UserError: it cannot be read, or lacks a column.
  """
  if options.invalid_rows == 'drop' and options.format in _LENIENT:
    with _reading(options, path, split), _opened(options, path) as file:
      yield from _LENIENT[options.format](options, path, columns, file)
    return
  for table in _tables(options, path, split):
    _require_columns(options, path, columns, table.column_names)
    values = (table[name].to_pylist() for name in columns)
    for record in zip(*values, strict=True):
      is_valid = options.invalid_rows == 'error' or _is_decoded(record)
      yield record if is_valid else (None,) * len(columns)


def _require_columns(options, path: str, columns, known: list[str]) -> None:
  missing = [name for name in columns if name not in known]
  if missing:
    raise UserError(
      f'{path} has no column {missing[0]!r} but {sorted(known)}; '
      'change config.data.text.text_columns or label_column'
      + _delimiter_hint(options, known)
      + _quoting_hint(options, path)
    )


def _is_decoded(record: tuple) -> bool:
  return not any(
    isinstance(value, str) and _UNDECODABLE in value for value in record
  )


def _lenient_table(options, path, columns, file) -> Iterator[tuple]:
  reader = csv.reader(file, **_dialect(options))
  first = next(reader, [])
  names = first if options.header else [str(n) for n in range(len(first))]
  _require_columns(options, path, columns, names)
  rows = reader if options.header else itertools.chain([first], reader)
  for fields in rows:
    record = (None,) * len(columns)
    if len(fields) == len(names) and _is_decoded(fields):
      record = tuple(fields[names.index(name)] for name in columns)
    # Empty lines are no rows.
    if len(fields) > 1 or ''.join(fields).strip():
      yield record


def _lenient_json(options, path, columns, file) -> Iterator[tuple]:
  del options, path
  for line in file:
    try:
      found = json.loads(line) if _is_decoded((line,)) else {}
    except (ValueError, RecursionError):
      found = {}
    if not isinstance(found, dict):
      found = {}
    if line.strip():
      yield tuple(found.get(name) for name in columns)


def _lenient_lines(options, path, columns, file) -> Iterator[tuple]:
  del options, path, columns
  for line in file:
    yield (line.rstrip('\r\n') if _is_decoded((line,)) else None,)


# Parsers of formats of which the datasets library reads no row at all, or no
# later one, if one of them is invalid.
_LENIENT = {
  'csv': _lenient_table,
  'json': _lenient_json,
  'lines': _lenient_lines,
  'class_files': _lenient_lines,
}


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
    if 'zstd not supported' in reason:
      reason += ': bash scripts/run.sh pip install zstandard'
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
  found = False
  # What cannot be decompressed is named in another error.
  enclosed = re.compile(rf'(^|{mark})".*"({mark}|\s*$)')
  with contextlib.suppress(Exception), _opened(options, path) as file:
    found = any(map(enclosed.search, file))
  return '; its fields are quoted: set config.data.text.quoted=True' * found


def _opened(options, path: str):
  """The text file, decompressed; what cannot be decoded becomes U+FFFD."""
  import fsspec

  return fsspec.open(
    path,
    'rt',
    encoding=_codec(options),
    errors='replace',
    newline='',
    # Without the extra zst, 'infer' would read the compressed bytes.
    compression='zstd' if path.endswith('.zst') else 'infer',
  )


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
  if options.invalid_rows == 'drop':
    arguments['encoding_errors'] = 'replace'
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
  with _opened(options, path) as file:
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
