"""Formats of binary tables: Parquet files, and data sets of the hub."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from experiments.command.errors import require
from experiments.data.contract import Files, Format, InvalidRow

# Libraries are imported late: each takes a second, and most data needs none.

# Rows that are converted at once.
_ROWS = 1_000


@dataclasses.dataclass(frozen=True)
class Parquet(Format):
  """A Parquet file."""

  def records(self, file, columns, encoding, all_columns) -> Iterator[dict]:
    from pyarrow import parquet

    # The columns are listed at the end of the file.
    file = file if file.seekable() else io.BytesIO(file.read())
    with parquet.ParquetFile(file) as table:
      known = table.schema_arrow.names
      chosen = None if all_columns else _chosen(columns, known)
      for part in table.iter_batches(_ROWS, columns=chosen):
        yield from _rows_of(part)


@dataclasses.dataclass(frozen=True)
class Hub(Format):
  """A dataset on the Hugging Face Hub; `train` and others name its splits.

  Attributes:
    name: dataset name, such as `nyu-mll/glue`.
    config: config name, such as `sst2`; empty if there is only one.
  """

  name: str = ''
  config: str = ''
  has_files = False

  def __post_init__(self):
    require(bool(self.name), 'name', self.name, 'that of a dataset')

  def files(self, name, directory, key, is_labelled) -> Files:
    return [(None, name)]

  def contents(self, path: str) -> list[str]:
    return [file['filename'] for file in self._split(path).cache_files]

  def records(self, file, columns, encoding, all_columns) -> Iterator[dict]:
    data = self._split(file)
    data = data.select_columns(_chosen(columns, data.column_names))
    names = {n: _class_names(f) for n, f in data.features.items()}
    for part in data.with_format('arrow').iter(_ROWS):
      for row in _rows_of(part):
        yield {n: _named(value, names[n]) for n, value in row.items()}

  def _split(self, name: str) -> Any:
    """The split of this name, as a datasets.Dataset."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    # In memory, which HF_DATASETS_IN_MEMORY_MAX_SIZE could set, rows are of no
    # files that a key could depend on.
    return datasets.load_dataset(
      self.name, self.config or None, split=name, keep_in_memory=False
    )


def _chosen(columns: Sequence[str], known: list[str]) -> list[str]:
  """The columns; all that there are if one is missing, so that it is said.

  An InvalidRow says that one is repeated.
  """
  for column in columns:
    if known.count(column) > 1:
      raise InvalidRow(f'two columns {column!r}; rename one, or change', column)
  return [*columns] if {*columns} <= {*known} else known


def _class_names(feature: Any) -> list[str]:
  """The names of the classes of a column of the hub, or of its lists."""
  feature = getattr(feature, 'feature', feature)
  # Those of ClassLabel.
  return getattr(feature, 'names', None) or []


def _named(value: Any, names: list[str]) -> Any:
  """The name of a class, or of all of a list; what has none is as it is."""
  if not names or value is None:
    return value
  if isinstance(value, list):
    return [_named(one, names) for one in value]
  # -1 is that of a text without a label.
  return names[value] if value >= 0 else value


def _rows_of(table) -> Iterator[dict]:
  """The rows of an Arrow table."""
  columns = [_written(c.to_pylist(), c.type) for c in table.columns]
  for row in zip(*columns, strict=True):
    yield dict(zip(table.schema.names, row, strict=True))


def _written(values: list, type: Any) -> list:
  """Values of an Arrow type; 0.1 in 32 bits is 0.1, as it was written."""
  import pyarrow as pa

  if pa.types.is_floating(type):
    number = type.to_pandas_dtype()
    return [v if v is None else float(str(number(v))) for v in values]
  if isinstance(type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
    return [v if v is None else _written(v, type.value_type) for v in values]
  return values


def zstd(file: BinaryIO):
  """A file of the content of one that is compressed."""
  import pyarrow

  return pyarrow.input_stream(file, compression='zstd')
