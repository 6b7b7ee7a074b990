"""Formats that are text: their files, decompressed and decoded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

from experiments.data import arrow_tables, first_bytes
from experiments.data.contract import Format

# The column of a line, and of a file that is one text.
TEXT = 'text'
# By ending of a path, a function from a file to one of its content.
COMPRESSED = {
  '.gz': gzip.open, '.bz2': bz2.open, '.xz': lzma.open,
  '.zst': arrow_tables.zstd,
}  # fmt: skip
# What a file that is cut off or damaged raises.
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def decompressed(file: BinaryIO, path: str) -> Any:
  """The content of a file, by the ending of its path."""
  opener = COMPRESSED.get(os.path.splitext(path)[1].lower())
  return opener(file) if opener else file


class TextFormat(Format):
  """A format of text; `parse` has its records."""

  # Whether HTML is a text.
  may_be_page: ClassVar[bool] = False
  # Lines end with LF or CR LF.
  newline: ClassVar[str] = '\n'

  def records(self, file, columns, encoding, all_columns) -> Iterator[Any]:
    file = file if hasattr(file, 'peek') else io.BufferedReader(file)
    with io.TextIOWrapper(
      file,
      encoding=first_bytes.codec(file, encoding, self.may_be_page),
      # Goes on after most errors, so that their row is known.
      errors='surrogateescape',
      newline=self.newline,
    ) as text:
      yield from self.parse(text, columns)

  def parse(
    self, text: io.TextIOWrapper, columns: Sequence[str]
  ) -> Iterable[Any]:
    """The records of a text."""
    raise NotImplementedError
