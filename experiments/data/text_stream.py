"""Texts from a file or a pipe, one per line, as they arrive."""

from __future__ import annotations

import _thread
import codecs
import io
import os
import queue
import stat
from collections.abc import Iterator

from experiments.command.errors import UserError

# Bytes of one read, and the number of reads that may wait to be used.
_BYTES, _AHEAD = 2**16, 16


def windows(file: io.IOBase, name: str, size: int) -> Iterator[list[str]]:
  """Yields all texts in order, in lists.

  Lists of a file on disk are full, but for the last one. One of a pipe holds
  what has arrived, so that its texts do not wait for later ones; an empty list
  is yielded before this blocks. A line ends
  with LF or CR LF; a byte order mark is skipped. Memory is bounded by `size`
  and the longest line.

  Args:
    file: has a descriptor, of which a thread reads ahead.
    name: what the file is called in errors.
    size: largest number of texts in a list.

  Raises:
    UserError: a line is not UTF-8, or cannot be read; after all before it.
  """
  arrived: queue.Queue = queue.Queue(_AHEAD)
  # By descriptor: at exit, the thread could hold the lock of `file`. Its own
  # one, since `file` may be closed before the thread has ended.
  source = (os.dup(file.fileno()), arrived)
  # Not threading.Thread, whose thread fails with a KeyError, to standard error,
  # if a signal raises an exception in its `start`.
  _thread.start_new_thread(_read, source)
  is_on_disk = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
  texts, count, error, waits = [], 0, None, is_on_disk
  while error is None:
    try:
      found = arrived.get(block=waits)
    except queue.Empty:
      waits = not texts
      yield texts
      texts = []
      continue
    waits = is_on_disk
    lines, error = _decode(found, name, count)
    count += len(lines)
    texts += lines
    while len(texts) >= size:
      yield texts[:size]
      texts = texts[size:]
  if texts:
    yield texts
  if not isinstance(error, EOFError):
    raise error


def _read(descriptor: int, arrived: queue.Queue) -> None:
  """Puts blocks of whole lines; at the end, an error or EOFError."""
  begun = []
  try:
    while chunk := os.read(descriptor, _BYTES):
      lines, end, rest = chunk.rpartition(b'\n')
      if end:
        arrived.put(b''.join([*begun, lines, end]))
        begun = []
      begun.append(rest)
    if last := b''.join(begun):
      arrived.put(last + b'\n')
    arrived.put(EOFError())
  # Whatever it is: the consumer would wait for ever.
  except BaseException as error:
    arrived.put(error)
  finally:
    os.close(descriptor)


def _decode(
  found, name: str, count: int
) -> tuple[list[str], BaseException | None]:
  """(lines, None), or the valid lines and what has ended the file.

  Args:
    found: of `_read`.
    count: number of lines before.
  """
  if isinstance(found, OSError):
    return [], UserError(f'cannot read texts: {name}: {found.strerror}')
  if isinstance(found, BaseException):
    return [], found
  if not count:
    found = found.removeprefix(codecs.BOM_UTF8)
  error = None
  try:
    block = found.decode()
  except UnicodeDecodeError as reason:
    valid = found[: found.rfind(b'\n', 0, reason.start) + 1]
    block, count = valid.decode(), count + valid.count(b'\n')
    error = UserError(
      f'cannot read texts: {name} line {count + 1} is not UTF-8: '
      f'{reason.reason} 0x{found[reason.start]:02x}'
    )
  return block.replace('\r\n', '\n').split('\n')[:-1], error
