"""The token embeddings that a run begins with: random, or those of a file.

Files are those that GloVe, word2vec and fastText write as text: a line is a
word and its numbers, separated by spaces. The first line may hold the numbers
of words and of dimensions instead (word2vec, fastText).
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments.command.errors import UserError, require
from experiments.command.log import Reporter
from experiments.data.text_format import UNREADABLE, decompressed


class Vectors(NamedTuple):
  """The vectors of those words of a vocabulary that a file has.

  Attributes:
    ids: int32 (words,), their token ids.
    values: float32 (words, dimensions).
  """

  ids: np.ndarray
  values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Random:
  """Token embeddings are drawn, see config.model.embed_init_std.

  This is also the contract of an entry of EMBEDDINGS; fields are options.

  Attributes:
    freeze: whether the embeddings of all tokens stay as they begin.
  """

  freeze: bool = False

  def check(self) -> None:
    """ValueError `OPTION = VALUE must be ...`; reads no file."""

  @property
  def file(self) -> str:
    """The file that `read` reads; empty: none."""
    return ''

  def read(self, ids: Mapping[str, int], dim: int) -> Vectors | None:
    """Vectors in place of drawn ones, `dim` wide; None: all are drawn.

    `ids` are those of tokens. A UserError says that there are none for them.
    """


@dataclasses.dataclass(frozen=True)
class File(Random):
  """Vectors of words from a file; those of other tokens are drawn.

  Attributes:
    path: of the file, compressed if it ends in .gz, .bz2, .xz or .zst.
  """

  path: str = ''

  def check(self) -> None:
    require(self.path != '', 'path', self.path, 'the path of a file')

  @property
  def file(self) -> str:
    return self.path

  def read(self, ids: Mapping[str, int], dim: int) -> Vectors:
    """The vectors of the file for some words; of a repeated one, the first.

    A UserError says that the file cannot be read, that a vector has another
    number of dimensions or a number that is not finite, or that no word is in
    `ids`.
    """
    vectors: dict[int, np.ndarray] = {}
    try:
      with Reporter('read {} vectors') as report:
        for number, line in enumerate(_lines(self.path), 1):
          report.add(1)
          is_header = number == 1 and re.fullmatch(rb'\s*\d+\s+\d+\s*', line)
          if not line.strip() or is_header:
            continue
          # A word may hold spaces, but no number does.
          word, *numbers = line.rsplit(None, dim)
          index = ids.get(word.decode('utf-8', 'replace'))
          if index is not None and index not in vectors:
            vectors[index] = self._vector(number, numbers, dim)
    except UNREADABLE as error:
      raise UserError(
        f'config.model.embeddings: {self.path}: {error}'
      ) from error
    if not vectors:
      raise UserError(
        f'{self.path} has no vector of {dim} numbers of a word of the '
        'vocabulary; change config.model.embed_dim or the file'
      )
    return Vectors(
      np.array(list(vectors), np.int32), np.stack(list(vectors.values()))
    )

  def _vector(self, row: int, numbers: list[bytes], dim: int) -> np.ndarray:
    try:
      values = np.array(numbers, np.float32)
    except ValueError:
      values = np.zeros(0)
    if len(values) != dim or not np.isfinite(values).all():
      raise UserError(
        f'{self.path} row {row}: a vector must have {dim} finite numbers after '
        'its word; change config.model.embed_dim or the file'
      )
    return values


EMBEDDINGS: dict[str, type[Random]] = {'random': Random, 'file': File}


def _lines(path: str):
  with open(path, 'rb') as file:
    lines = iter(decompressed(file, path))
    yield next(lines, b'').removeprefix(codecs.BOM_UTF8)
    yield from lines
