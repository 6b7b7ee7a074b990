"""Files of records, written whole or not at all: JSON lines or Parquet."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from experiments.command.app import make_folder
from experiments.command.errors import UserError, writing
from experiments.workdir.workdir import temporary_file

# Records in a row group of Parquet.
_ROW_GROUP = 2**14


def check_path(path: str) -> None:
  """Creates the folder of the file given by --output.

  Raises:
    UserError: its ending is none of KINDS, it exists, or cannot be written.
    OSError: the disk is full, among others.
  """
  if os.path.splitext(path)[1] not in KINDS:
    raise UserError(f'--output={path} does not end with {" or ".join(KINDS)}')
  if os.path.lexists(path):
    raise UserError(f'--output={path} exists; remove it, or give another name')
  make_folder(os.path.dirname(os.path.abspath(path)), 'output')


@contextlib.contextmanager
def opened(path: str, fields: Mapping) -> Iterator[Callable[[list], None]]:
  """A function that adds a list of records; the file exists after the block.

  Args:
    path: ends with one of KINDS.
    fields: the type of each field of a record: str, float, or such a dict.

  Raises:
    OSError: the file cannot be written. After any exception there is none.
  """
  kind = KINDS[os.path.splitext(path)[1]]
  with temporary_file(path) as file:
    with writing(path):
      records = kind(file, fields)

    def add(more: list[dict]) -> None:
      with writing(path):
        records.add(more)

    try:
      yield add
      with writing(path):
        records.close()
    except BaseException:
      # What is still open at exit would be closed there, with an error.
      with contextlib.suppress(OSError):
        records.close()
      raise


class _JsonLines:
  """One object per line."""

  def __init__(self, file: BinaryIO, fields: Mapping):
    del fields
    self._file = file

  def add(self, records: list[dict]) -> None:
    lines = (f'{json.dumps(record)}\n' for record in records)
    self._file.write(''.join(lines).encode())

  def close(self) -> None:
    pass


class _Parquet:
  """A column for each field, of structs for a dict."""

  def __init__(self, file: BinaryIO, fields: Mapping):
    import pyarrow
    from pyarrow import parquet

    def struct(fields):
      types = {str: pyarrow.string(), float: pyarrow.float64()}
      return pyarrow.struct(
        [
          (name, struct(kind) if isinstance(kind, Mapping) else types[kind])
          for name, kind in fields.items()
        ]
      )

    schema = pyarrow.schema(list(struct(fields)))
    self._table = functools.partial(pyarrow.Table.from_pylist, schema=schema)
    self._writer = parquet.ParquetWriter(file, schema, compression='zstd')
    self._waiting: list[dict] = []

  def add(self, records: list[dict]) -> None:
    self._waiting += records
    if len(self._waiting) >= _ROW_GROUP:
      self._write()

  def close(self) -> None:
    if self._waiting:
      self._write()
    self._writer.close()

  def _write(self) -> None:
    table, self._waiting = self._table(self._waiting), []
    self._writer.write_table(table)


KINDS = {'.jsonl': _JsonLines, '.parquet': _Parquet}
