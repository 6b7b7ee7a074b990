"""Rows of binary tables, as dicts: Parquet files, and data sets of the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

# Libraries are imported late: each takes a second, and most data needs none.

# Rows that are converted at once.
_ROWS = 1_000


def of_parquet(file: BinaryIO, columns: Sequence[str]) -> Iterator[dict]:
  """The rows of a Parquet file.

  Args:
    columns: those to read; if there are none, or one is missing, all.
  """
  from pyarrow import parquet

  with parquet.ParquetFile(file) as table:
    has_all = columns and {*columns} <= {*table.schema_arrow.names}
    for part in table.iter_batches(_ROWS, columns=columns if has_all else None):
      yield from _rows_of(part)


def of_hub(options, split: str, columns: Sequence[str]) -> Iterator[dict]:
  """The rows of a split of a data set of the Hugging Face hub.

  Args:
    columns: those to read; if one is missing, all.
  """
  data = hub_split(options, split)
  if {*columns} <= {*data.column_names}:
    data = data.select_columns(columns)
  for part in data.with_format('arrow').iter(_ROWS):
    yield from _rows_of(part)


def hub_split(options, name: str) -> Any:
  """The split of this name, as a datasets.Dataset."""
  import datasets

  datasets.logging.set_verbosity(datasets.logging.CRITICAL)
  # In memory, which HF_DATASETS_IN_MEMORY_MAX_SIZE could set, rows are of no
  # files that a key could depend on.
  return datasets.load_dataset(
    options.hub_name,
    options.hub_config or None,
    split=name,
    keep_in_memory=False,
  )


def _rows_of(table) -> Iterator[dict]:
  """The rows of an Arrow table; 0.1 in 32 bits is 0.1, as it was written."""
  from pyarrow import types

  columns = []
  for field, column in zip(table.schema, table.columns, strict=True):
    values = column.to_pylist()
    if types.is_floating(field.type):
      number = field.type.to_pandas_dtype()
      values = [v if v is None else float(str(number(v))) for v in values]
    columns.append(values)
  for row in zip(*columns, strict=True):
    yield dict(zip(table.schema.names, row, strict=True))


def zstd(file: BinaryIO):
  """A file of the content of one that is compressed."""
  import pyarrow

  return pyarrow.input_stream(file, compression='zstd')
