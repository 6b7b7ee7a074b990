"""Labelled texts as columns, with a bounded part of the texts in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import mmap
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import Reporter
from experiments.data import store
from experiments.data.contract import Dataset
from experiments.data.store import Arrays

# Rows whose texts are in memory at once.
_CHUNK = 2_000
# Stands between the texts of a row. It is white space to Python, so that pairs
# that differ by white space are equal, as texts are.
_BETWEEN = '\x1f'


class Row(NamedTuple):
  """A `text` and its `label`, with its file and row number in it, from 1.

  The text is a tuple of texts in a data set that has_pairs, or has num_apart.
  """

  text: str | tuple[str, ...]
  label: str
  file: str
  number: int


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of all files, those of a split one after the other.

  Attributes:
    texts: uint8, the texts in UTF-8, concatenated; of several in a row, the one
      that `joined` makes of them.
    offsets: int64 (rows + 1,), where each text begins, and the end of the last.
    hashes: uint64 (rows,), of the texts without their case, white space and
      Unicode normal form. Of ten million texts, two differ and have equal
      hashes with a probability of 3e-6; they count as equal then.
    labels: int32 (rows,), indices of names.
    files: int32 (rows,), indices of paths.
    numbers: int64 (rows,), of each row in its file, from 1.
    names: the labels, in order of appearance.
    paths: the files, relative to directory.
    counts: number of rows of each split that has files.
    directory: folder of the files now.
    warnings: about how the files were read.
    groups: int32 (rows,), of config.data.split_by, where it is a column; -1 of
      rows without one.
  """

  texts: np.ndarray
  offsets: np.ndarray
  hashes: np.ndarray
  labels: np.ndarray
  files: np.ndarray
  numbers: np.ndarray
  names: list[str]
  paths: list[str]
  counts: dict[str, int]
  directory: str = ''
  warnings: tuple[str, ...] = ()
  groups: np.ndarray = dataclasses.field(
    default_factory=lambda: np.zeros(0, np.int32)
  )

  def __len__(self) -> int:
    return len(self.labels)

  def splits(self) -> dict[str, np.ndarray]:
    """Row indices of the splits that have files."""
    ends = itertools.accumulate(self.counts.values())
    return {
      split: np.arange(end - count, end)
      for (split, count), end in zip(self.counts.items(), ends, strict=True)
    }

  def is_blank(self, chosen: np.ndarray) -> np.ndarray:
    """Whether the texts of these row indices are white space at most."""
    return self.hashes[chosen] == _hash('')

  def stream(self, rows: np.ndarray | None = None) -> Iterator[list[str]]:
    """Lists of the texts of these row indices; None: of all rows."""
    texts, count = self.texts.data, len(self if rows is None else rows)
    for start in range(0, count, _CHUNK):
      at = np.arange(start, min(start + _CHUNK, count))
      at = at if rows is None else rows[at]
      begins, ends = self.offsets[at].tolist(), self.offsets[at + 1].tolist()
      bounds = zip(begins, ends, strict=True)
      yield [str(texts[begin:end], 'utf-8') for begin, end in bounds]
      if isinstance(self.texts.base, mmap.mmap):
        # Pages that were read would stay in the memory of the process. The file
        # cannot be read by name in place of the map: the cache may be cleared.
        self.texts.base.madvise(mmap.MADV_DONTNEED)

  def row(self, index: int | np.integer) -> Row:
    """The row with its text, for messages."""
    ((text,),) = self.stream(np.array([index]))
    path = os.path.join(self.directory, self.paths[self.files[index]])
    return Row(
      text,
      self.names[self.labels[index]],
      os.path.normpath(path),
      int(self.numbers[index]),
    )


def generated(pairs: Iterable[tuple[str, str]], name: str) -> list[Row]:
  """Rows of (text, label) that a program writes, in place of a file."""
  numbered = enumerate(pairs, 1)
  return [Row(text, label, name, number) for number, (text, label) in numbered]


def joined(text: str | tuple[str, ...]) -> str:
  """The text of a row as one string, from which `parted` has several."""
  if isinstance(text, str):
    return text
  return _BETWEEN.join(part.replace(_BETWEEN, ' ') for part in text)


def parted(text: str) -> tuple[str, ...]:
  """The texts of which `joined` has made one."""
  return tuple(text.split(_BETWEEN))


def checked(rows: Iterable[Row], source: Dataset) -> Iterator[Row]:
  """The rows of a data set, with as many texts as it says, or a UserError."""
  count = source.num_apart or 2 * source.has_pairs
  for row in rows:
    if (0 if isinstance(row.text, str) else len(row.text)) != count:
      raise UserError(
        f'{row.file} row {row.number}: the text is {row.text!r:.200}, and must '
        f'be {f"a tuple of {count} texts" if count else "a str"}, as has_pairs '
        f'and num_apart of {type(source).__name__} say'
      )
    yield row


def chunks(
  splits: Mapping[str, Iterable[Row]], directory: str
) -> Iterator[Arrays]:
  """Yields the arrays of `of` for rows by split, some rows at a time."""
  names: dict[str, int] = {}
  files: dict[str, int] = {}
  counts, end = dict.fromkeys(splits, 0), 0
  report = Reporter('read {} rows')
  yield {'offsets': np.zeros(1, np.int64)}
  for split, rows in splits.items():
    for chunk in report.counted(_chunks(rows)):
      chunk_texts = [joined(row.text) for row in chunk]
      texts = [text.encode() for text in chunk_texts]
      hashes = list(map(_hash, chunk_texts))
      labels = [names.setdefault(row.label, len(names)) for row in chunk]
      file_of = [files.setdefault(row.file, len(files)) for row in chunk]
      yield {
        'texts': np.frombuffer(b''.join(texts), np.uint8),
        'offsets': np.cumsum(list(map(len, texts)), dtype=np.int64) + end,
        'hashes': np.array(hashes, np.uint64),
        'labels': np.array(labels, np.int32),
        'files': np.array(file_of, np.int32),
        'numbers': np.array([row.number for row in chunk], np.int64),
      }
      end += sum(map(len, texts))
      counts[split] += len(chunk)
  paths = [os.path.relpath(f, directory) if directory else f for f in files]
  about = {'names': list(names), 'paths': paths, 'counts': counts}
  yield {'about': store.packed(about)}


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
  """Lists of rows, the last one empty: an empty split has arrays, too."""
  remaining, chunk = iter(rows), [...]
  while chunk:
    chunk = list(itertools.islice(remaining, _CHUNK))
    yield chunk


def _hash(text: str) -> int:
  folded = ''.join(unicodedata.normalize('NFC', text).casefold().split())
  digest = hashlib.blake2b(folded.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def of(arrays: Arrays, directory: str) -> Rows:
  """The rows whose arrays `chunks` has yielded, of files now in a folder."""
  columns = dict(arrays)
  about = store.unpacked(columns.pop('about'))
  if 'warnings' in columns:
    about['warnings'] = tuple(store.unpacked(columns.pop('warnings')))
  return Rows(**columns, **about, directory=directory)


def gather(splits: Mapping[str, Iterable[Row]]) -> Rows:
  """The rows in memory."""
  return of(store.in_memory(lambda: chunks(splits, '')), '')


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(index of each key among the distinct ones, where each first appears).

  Distinct keys are in order of first appearance.
  """
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  order = np.argsort(first)
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  return rank[inverse], first[order]
