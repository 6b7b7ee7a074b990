"""Arrays on disk, written once and shared by all runs that need the same ones.

An entry is a folder of files NAME.DTYPE, each the elements of one array and
nothing else. Its name is a digest of all that its content depends on, with
FORMAT, so that no entry is ever changed, or read by a version that would have
written another. It is written beside its place and renamed as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.command.log import log

# Raise when what the functions that write entries write changes.
FORMAT = 4
VARIABLE = 'SELFATTN_CACHE'
# Sizes in bytes of the files of an entry; written last.
_SIZES = 'sizes.json'
# Error numbers of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

Arrays = dict[str, np.ndarray]


class Writer:
  """Appends to named arrays, in files or in memory."""

  def __init__(self, folder: str | None):
    self._folder = folder
    self._files: dict[str, Any] = {}
    self._chunks: dict[str, list[np.ndarray]] = {}

  def add(self, **chunks: np.ndarray) -> None:
    """Appends to arrays by name; one name always has the same dtype."""
    for name, chunk in chunks.items():
      if self._folder is None:
        self._chunks.setdefault(name, []).append(chunk)
        continue
      file = f'{name}.{chunk.dtype.name}'
      if file not in self._files:
        path = os.path.join(self._folder, file)
        self._files[file] = open(path, 'wb')  # noqa: SIM115
      self._files[file].write(np.ascontiguousarray(chunk).data)

  def arrays(self) -> Arrays:
    """What was added, in memory."""
    return {k: np.concatenate(chunks) for k, chunks in self._chunks.items()}

  def finish(self) -> None:
    """Makes the files durable, and closes them."""
    sizes = {}
    for name, file in self._files.items():
      file.flush()
      os.fsync(file.fileno())
      sizes[name] = file.tell()
    self.close()
    with open(os.path.join(self._folder, _SIZES), 'w') as file:
      json.dump(sizes, file)
      file.flush()
      os.fsync(file.fileno())

  def close(self) -> None:
    """Closes the files; those of a full disk cannot be flushed."""
    for file in self._files.values():
      with contextlib.suppress(OSError):
        file.close()


class Store:
  """A folder of entries, or memory if there is none or it is not writable."""

  def __init__(self, folder: str | None):
    self._folder = folder

  def arrays(
    self, kind: str, key: Any, write: Callable[[Writer], None]
  ) -> Arrays:
    """The arrays that `write` adds, memory-mapped where they are on disk.

    Of several processes that need an entry at once, one writes it, and the
    others wait. What cannot be written to disk is kept in memory.

    Args:
      kind: lower-case letters, the first part of the name of the entry.
      key: a JSON value; all that the arrays depend on, apart from FORMAT.
      write: is called if there is no such entry.
    """
    if self._folder is not None:
      text = json.dumps([FORMAT, kind, key], sort_keys=True)
      digest = hashlib.sha256(text.encode()).hexdigest()[:32]
      path = os.path.join(self._folder, f'{kind}-{digest}')
      try:
        found = _read(path) or _written(path, write)
        with contextlib.suppress(OSError):
          os.utime(path)  # the age of an entry is since it was last used
        return found
      except OSError as error:
        log(
          f'WARNING: {self._folder} cannot be written ({error.strerror}): '
          'the data is kept in memory, and is read again at each start; '
          f'{VARIABLE}=FOLDER names another cache'
        )
        self._folder = None
    writer = Writer(None)
    write(writer)
    return writer.arrays()

  @staticmethod
  def digest(path: str) -> str:
    """SHA-256 of a file's content.

    It is computed each time, about a second per GB: through a memory map, a
    file can change without a change of its times.
    """
    with open(path, 'rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()


def _read(path: str) -> Arrays | None:
  """The arrays of an entry; None if it is absent or not intact."""
  try:
    with open(os.path.join(path, _SIZES)) as file:
      sizes = json.load(file)
    found = {}
    for name, size in sizes.items():
      file = os.path.join(path, name)
      if os.path.getsize(file) != size:
        return None
      name, _, dtype = name.rpartition('.')
      found[name] = np.zeros(0, dtype)
      if size:
        found[name] = np.memmap(file, dtype, 'r')
    return found
  except (OSError, ValueError):
    return None


def _written(path: str, write) -> Arrays:
  """Writes an entry, unless another process just did; its arrays."""
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with _locked(f'{path}.lock') as is_alone:
    found = _read(path)
    if found is not None:
      return found
    if is_alone:
      for left in glob.glob(f'{glob.escape(path)}.part-*'):
        shutil.rmtree(left, ignore_errors=True)
    part = f'{path}.part-{secrets.token_hex(4)}'
    os.mkdir(part)
    writer = Writer(part)
    try:
      write(writer)
      writer.finish()
      # An entry that is not intact would be in the way.
      shutil.rmtree(path, ignore_errors=True)
      os.rename(part, path)
      found = _read(path)
    finally:
      writer.close()
      shutil.rmtree(part, ignore_errors=True)
  if found is None:
    raise OSError(errno.EIO, 'it changed while it was written', path)
  return found


@contextlib.contextmanager
def _locked(path: str) -> Iterator[bool]:
  """Holds a lock of the kernel, released when the process ends in any way.

  Waits for another process. Yields False where the file system has none: then
  the last writer wins.
  """
  while True:
    with _lock_file(path) as file:
      has_locks = _lock(file)
      # The last holder has removed the file that this process waited for.
      if not _is_at(file, path):
        continue
      try:
        yield has_locks
      finally:
        with contextlib.suppress(OSError):
          os.remove(path)
      return


def _lock_file(path: str):
  try:
    return open(path, 'wb')
  except PermissionError:
    if not os.path.exists(path):
      raise
    # Of a process of another user that was killed. That a file is locked needs
    # no permission to write it, except on NFS.
    return open(path, 'rb')


def _lock(file) -> bool:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    log('waiting for another process, which reads the same data')
    fcntl.flock(file, fcntl.LOCK_EX)
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    return False
  return True


def _is_at(file, path: str) -> bool:
  with contextlib.suppress(FileNotFoundError):
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  return False


def default_folder() -> str:
  """SELFATTN_CACHE, or a folder in the cache of the user."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  default = os.path.join(cache, 'selfattn')
  return os.path.abspath(os.environ.get(VARIABLE) or default)
