"""Labelled texts as columns, with a bounded part of the texts in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from experiments.command.log import Reporter
from experiments.data.store import Arrays, Writer

# Rows that are read at once, and bytes of the texts that are decoded at once.
_CHUNK, _BLOCK_BYTES = 1_000, 2**21


class Row(NamedTuple):
  """A `text` and its `label`, with its file and row number in it, from 1."""

  text: str
  label: str
  file: str
  number: int


class Source(NamedTuple):
  """`count` adjacent rows of a split that are those of one file."""

  split: str
  file: str
  count: int


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of all files, in their order.

  Attributes:
    texts: uint8, the texts in UTF-8, concatenated.
    offsets: int64 (rows + 1,), where each text begins, and the end of the last.
    hashes: uint64 (rows,), of the texts without their case and white space, so
      that texts of equal tokens are equal. Of ten million texts, two differ and
      have equal hashes with a probability of 3e-6; they count as equal then.
    is_blank: bool (rows,), whether a text is empty but for white space.
    labels: int32 (rows,), indices of names.
    names: the labels, in order of appearance.
    sources: the files, of the splits in order.
    directory: folder of the files.
  """

  texts: np.ndarray
  offsets: np.ndarray
  hashes: np.ndarray
  is_blank: np.ndarray
  labels: np.ndarray
  names: list[str]
  sources: list[Source]
  directory: str = ''

  def __len__(self) -> int:
    return len(self.labels)

  def splits(self) -> dict[str, np.ndarray]:
    """Row indices of the splits that have files."""
    ends = np.cumsum([source.count for source in self.sources], dtype=np.int64)
    found: dict[str, list[np.ndarray]] = {}
    for source, end in zip(self.sources, ends.tolist(), strict=True):
      part = np.arange(end - source.count, end)
      found.setdefault(source.split, []).append(part)
    return {split: np.concatenate(parts) for split, parts in found.items()}

  def stream(self, rows: np.ndarray | None = None) -> Iterator[list[str]]:
    """Lists of the texts of these row indices, ascending; None: of all rows."""
    start, count = 0, len(self)
    while start < count:
      first = int(self.offsets[start])
      stop = int(
        np.searchsorted(self.offsets, first + _BLOCK_BYTES, side='right')
      )
      stop = min(max(stop - 1, start + 1), count)
      chosen = np.arange(start, stop)
      if rows is not None:
        # Of the dtype of the rows, which would be converted otherwise.
        limits = np.array((start, stop), rows.dtype)
        chosen = rows[slice(*np.searchsorted(rows, limits))].astype(np.int64)
      if len(chosen):
        data = self._bytes(first, int(self.offsets[stop]))
        begins, ends = (
          (self.offsets[at] - first).tolist() for at in (chosen, chosen + 1)
        )
        bounds = zip(begins, ends, strict=True)
        yield [data[begin:end].decode() for begin, end in bounds]
      start = stop

  def _bytes(self, start: int, stop: int) -> bytes:
    found = self.texts[start:stop].tobytes()
    if isinstance(self.texts, np.memmap):
      # Pages that were read would stay in the memory of the process. The file
      # cannot be read by name in place of the map: the cache may be cleared.
      self.texts.base.madvise(mmap.MADV_DONTNEED)
    return found

  def row(self, index: int) -> Row:
    """The row with its text, for messages."""
    number, (text,) = int(index), next(self.stream(np.array([index])))
    for source in self.sources:
      if number < source.count:
        break
      number -= source.count
    label = self.names[self.labels[index]]
    return Row(text, label, _joined(self.directory, source.file), number + 1)


def write(
  splits: dict[str, Iterable[Row]], directory: str, writer: Writer
) -> None:
  """Adds the arrays of `of` for rows by split, a chunk at a time."""
  names: dict[str, int] = {}
  sources: list[Source] = []
  end = 0
  writer.add(offsets=np.zeros(1, np.int64))
  report = Reporter('read {} rows')
  for split, rows in splits.items():
    remaining = iter(rows)
    sources.append(Source(split, '', 0))
    while True:
      chunk = list(itertools.islice(remaining, _CHUNK))
      texts = [row.text.encode() for row in chunk]
      ends = np.cumsum([len(text) for text in texts], dtype=np.int64) + end
      hashes = b''.join(_hash(row.text) for row in chunk)
      labels = [names.setdefault(row.label, len(names)) for row in chunk]
      writer.add(
        texts=np.frombuffer(b''.join(texts), np.uint8),
        offsets=ends,
        hashes=np.frombuffer(hashes, np.dtype('<u8')),
        is_blank=np.array([not row.text.strip() for row in chunk], bool),
        labels=np.array(labels, np.int32),
      )
      if not chunk:
        break
      end = int(ends[-1])
      for file, same in itertools.groupby(chunk, attrgetter('file')):
        numbers = [row.number for row in same]
        count = len(numbers)
        if numbers[0] > 1:
          count += sources.pop().count
        sources.append(Source(split, _relative(directory, file), count))
      report.add(len(chunk))
  about = json.dumps({'names': list(names), 'sources': sources})
  writer.add(about=np.frombuffer(about.encode(), np.uint8))


def _hash(text: str) -> bytes:
  folded = ''.join(text.casefold().split())
  return hashlib.blake2b(folded.encode(), digest_size=8).digest()


def of(arrays: Arrays, directory: str) -> Rows:
  """The rows whose arrays `write` has added.

  Args:
    directory: folder of the files now.
  """
  arrays = dict(arrays)
  about = json.loads(arrays.pop('about').tobytes())
  sources = [Source(*source) for source in about['sources']]
  return Rows(
    **arrays, names=about['names'], sources=sources, directory=directory
  )


def gather(splits: dict[str, Iterable[Row]]) -> Rows:
  """The rows in memory."""
  writer = Writer(None)
  write(splits, '', writer)
  return of(writer.arrays(), '')


def _relative(directory: str, file: str) -> str:
  return os.path.relpath(file, directory) if directory else file


def _joined(directory: str, file: str) -> str:
  return os.path.normpath(os.path.join(directory, file)) if directory else file


def distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(index of each key among the distinct ones, where each first appears).

  Distinct keys are in order of first appearance.
  """
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  order = np.argsort(first)
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  return rank[inverse], first[order]
