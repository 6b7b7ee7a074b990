"""Rows to predict, as records: see experiments.data.readers."""

from __future__ import annotations

import dataclasses
import os
import select
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from experiments.data import readers
from experiments.data.text_files import Text

FORMATS = ('lines', 'json', 'csv', 'tsv', 'parquet')


def format_of(path: str) -> str:
  """The format by the ending of a path; 'lines' if it is of no other one."""
  path, ending = os.path.splitext(path.lower())
  if ending in readers.COMPRESSED:
    ending = os.path.splitext(path)[1]
  name = {'.jsonl': 'json', '.ndjson': 'json'}.get(ending, ending[1:])
  return name if name in FORMATS else 'lines'


def options_of(trained: Text, kind: str) -> Text:
  """How a file of one of FORMATS is read.

  Args:
    trained: the options of the texts that the run was trained on. They are
      those of a file of their format, where a 'csv' is separated by tabs or is
      not. Else fields of 'csv' are separated by commas, and may be quoted,
      those of 'tsv' by tabs, and the encoding is UTF-8, as that of 'lines' is.
  """
  is_tsv = kind == 'tsv'
  format = 'csv' if is_tsv else kind
  is_alike = trained.format == format and kind != 'lines'
  if is_alike and format == 'csv':
    is_alike = (trained.delimiter == 'tab') == is_tsv
  if is_alike:
    return trained
  return dataclasses.replace(
    trained,
    format=format,
    delimiter='tab' if is_tsv else 'comma',
    quoted=not is_tsv,
    header=True,
    encoding='utf-8',
    text_columns=(readers.TEXT,) if kind == 'lines' else trained.text_columns,
  )


def windows(rows: Iterable, size: int, file: BinaryIO | None) -> Iterator[list]:
  """Lists of `size` rows, or fewer where the next ones have not arrived yet.

  Args:
    file: what the rows are read from; None: they are all there.
  """
  window = []
  for row in rows:
    window.append(row)
    has_more = file is None or select.select([file], [], [], 0)[0]
    if len(window) == size or not has_more:
      yield window
      window = []
  if window:
    yield window
