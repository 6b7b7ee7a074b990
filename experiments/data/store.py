"""Arrays on disk, written once and shared by all runs that need the same ones.

An entry is a folder with a file for each array, its elements and nothing else,
and an index. Its name is a digest of all that its content depends on, with
FORMAT, so that no entry is ever changed, or read by a version that would have
written another. It is written beside its place and renamed as a whole.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log

# Raise when what the functions that make entries yield changes.
FORMAT = 12
VARIABLE = 'SELFATTN_CACHE'
# The dtype and the digest of each array of an entry; written last.
_INDEX = 'index.json'

Arrays = dict[str, np.ndarray]
# Yields arrays by name, each of which is appended to the earlier ones of its
# name, which have the same dtype.
Make = Callable[[], Iterable[Arrays]]


class Store:
  """A folder of entries, or memory if there is none or it is not writable."""

  def __init__(self, folder: str | None):
    self._folder = folder

  def arrays(self, kind: str, key: Any, make: Make) -> Arrays:
    """The arrays that `make` yields, memory-mapped where they are on disk.

    The name of an entry begins with its kind, in lower-case letters; the key is
    a JSON value, all that the arrays depend on apart from FORMAT. Of several
    processes that need an entry at once, one makes it, and the others wait.
    What cannot be written to disk is kept in memory.
    """
    if self._folder is None:
      return in_memory(make)
    text = json.dumps([FORMAT, kind, key], sort_keys=True)
    name = f'{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}'
    path = os.path.join(self._folder, name)
    try:
      return _read(path) or _written(path, make)
    except OSError as error:
      log(
        f'WARNING: {self._folder} cannot be written ({error.strerror}): '
        'the data is kept in memory, and is read again at each start; '
        f'{VARIABLE}=FOLDER names another cache'
      )
      self._folder = None
      return in_memory(make)


def in_memory(make: Make) -> Arrays:
  """The arrays that `make` yields."""
  chunks = collections.defaultdict(list)
  for arrays in make():
    for name, array in arrays.items():
      chunks[name].append(array)
  return {name: np.concatenate(arrays) for name, arrays in chunks.items()}


def packed(value: Any) -> np.ndarray:
  """A JSON value as an array."""
  return np.frombuffer(json.dumps(value).encode(), np.uint8)


def unpacked(array: np.ndarray) -> Any:
  """The JSON value of which `packed` has made an array."""
  return json.loads(array.tobytes())


def digest(path: str) -> str:
  """SHA-256 of a file's content.

  It is computed each time, about a second per GB: through a memory map, a file
  can change without a change of its times.
  """
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def default_folder() -> str | None:
  """SELFATTN_CACHE, or a folder in the cache of the user, if there is one."""
  if folder := os.environ.get(VARIABLE):
    return os.path.abspath(folder)
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  # Without HOME, a user that the machine does not know has no folder.
  return os.path.join(cache, 'selfattn') if os.path.isabs(cache) else None


def _read(path: str) -> Arrays | None:
  """The arrays of an entry; None if it is absent or not intact.

  Every byte is compared: what a machine that failed has not written is zeros.
  """
  try:
    with open(os.path.join(path, _INDEX)) as file:
      index = json.load(file)
    for name, (_, expected) in index.items():
      if digest(os.path.join(path, name)) != expected:
        return None
    return _mapped(path, index)
  except (OSError, ValueError, TypeError, AttributeError):
    return None


def _mapped(path: str, index: dict[str, tuple[str, str]]) -> Arrays:
  arrays = {}
  for name, (dtype, _) in index.items():
    file = os.path.join(path, name)
    is_empty = not os.path.getsize(file)
    arrays[name] = (
      np.zeros(0, dtype) if is_empty else np.memmap(file, dtype, 'r')
    )
  return arrays


def _written(path: str, make: Make) -> Arrays:
  """Makes an entry, unless another process just did; its arrays."""
  # Late: what was written before is read without.
  from experiments.workdir import locks

  folder, name = os.path.split(path)
  os.makedirs(folder, exist_ok=True)
  held = functools.partial(locks.held, folder, queues=True, name=f'{name}.lock')
  with contextlib.ExitStack() as on_exit:
    # Beside a lock of another user there can be none: the last writer wins.
    with contextlib.suppress(UserError):
      try:
        on_exit.enter_context(held(patience=0))
      except locks.InUse:
        log('waiting for another process, which reads the same data')
        on_exit.enter_context(held(patience=math.inf))
      for left in glob.glob(f'{glob.escape(path)}.part-*'):
        shutil.rmtree(left, ignore_errors=True)
    if (arrays := _read(path)) is not None:
      return arrays
    part = f'{path}.part-{secrets.token_hex(4)}'
    os.mkdir(part)
    try:
      index = _write(part, make)
      # An entry that is not intact would be in the way.
      shutil.rmtree(path, ignore_errors=True)
      os.rename(part, path)
    finally:
      shutil.rmtree(part, ignore_errors=True)
    return _mapped(path, index)


def _write(folder: str, make: Make) -> dict[str, tuple[str, str]]:
  """Writes the files of an entry; its index."""
  files, dtypes = {}, {}
  with contextlib.ExitStack() as stack:
    for arrays in make():
      for name, array in arrays.items():
        if name not in files:
          file = open(os.path.join(folder, name), 'wb')  # noqa: SIM115
          files[name] = stack.enter_context(file)
          dtypes[name] = array.dtype.name
        files[name].write(np.ascontiguousarray(array).data)
  index = {
    name: (dtype, digest(files[name].name)) for name, dtype in dtypes.items()
  }
  with open(os.path.join(folder, _INDEX), 'w') as file:
    json.dump(index, file)
  return index
