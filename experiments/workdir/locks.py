"""Locks of folders: only one process at a time writes into a workdir."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator

from experiments.command.errors import UserError, writing
from experiments.command.log import log

NAME = 'lock'
_FACTS = {'host', 'process', 'since'}
# Seconds to wait for a process on another host. If it died together with its
# machine, the file server releases its lock only after a timeout, which the run
# that replaces it has to outlast.
PATIENCE = 120.0
_RETRY = 1.0
# Seconds within which a new holder writes its name into the lock file.
_HANDOVER = 0.02
# Error numbers of a file system without locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class InUse(UserError):
  """Another process holds the lock of the folder."""


@contextlib.contextmanager
def held(
  folder: str, patience: float = PATIENCE, queues: bool = False
) -> Iterator[None]:
  """Holds FOLDER/lock during the block; creates the folder if needed.

  A lock of the kernel (flock): it is released when the process ends in any way,
  and works across hosts over NFS. If the block leaves the folder empty, the
  folder is removed again.

  Args:
    patience: seconds to wait for a process on another host.
    queues: whether to wait as long for a process on this host, too; for locks
      that are held only for a moment.

  Raises:
    InUse: another process did not release it in time.
    UserError: the folder cannot be created, or is not writable.
    OSError: the disk is full, among others.
  """
  path = os.path.join(folder, NAME)
  made = _missing(folder)
  try:
    with _locked(path, folder, patience, queues) as file:
      try:
        with writing(path):
          _sign(file)
        yield
      finally:
        # While holding it: the next holder checks that the file still exists.
        with contextlib.suppress(OSError):
          if _is_at(file, path):
            os.remove(path)
  finally:
    with contextlib.suppress(OSError):
      for parent in made:
        os.rmdir(parent)


def _sign(file) -> None:
  """Writes host, process and time of the holder into the lock file."""
  now = datetime.datetime.now(datetime.UTC)
  facts = {
    'host': socket.gethostname(),
    'process': os.getpid(),
    'since': now.isoformat(timespec='seconds'),
  }
  file.truncate(0)
  file.write(json.dumps(facts).encode())


def _missing(folder: str) -> list[str]:
  """The folders that do not exist yet, innermost first."""
  missing = []
  parent = os.path.abspath(folder)
  while not os.path.exists(parent):
    missing.append(parent)
    parent = os.path.dirname(parent)
  return missing


def _locked(path: str, folder: str, patience: float, queues: bool):
  """The open file, locked."""
  start = time.monotonic()
  has_waited = False
  while True:
    file = _opened(path)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_at(file, path):
        return file
      file.close()
      continue
    except BlockingIOError:
      holder = _holder(file)
    except OSError as error:
      if error.errno in _UNSUPPORTED:
        log(
          f'WARNING: {folder} is on a file system without locks '
          f'({error.strerror}): start one run at a time in it'
        )
        return file
      file.close()
      raise
    file.close()
    who = 'another process'
    if holder:
      who = 'process {process} on {host} since {since}'.format(**holder)
    is_here = holder.get('host') == socket.gethostname() and not queues
    waited = time.monotonic() - start
    if is_here or waited >= patience:
      raise InUse(
        f'--workdir={folder} is in use by {who}; wait for it, end it, or '
        'choose another --workdir'
      )
    is_moment = queues or not holder
    if not has_waited and (waited > _RETRY or not is_moment):
      log(f'{folder} is in use by {who}; waiting at most {patience:.0f} s')
      has_waited = True
    time.sleep(_HANDOVER if is_moment else _RETRY)


def _opened(path: str):
  """Opens or creates the file, and its folder if that was just removed."""
  folder = os.path.dirname(path)
  while True:
    try:
      os.makedirs(folder, exist_ok=True)
      return open(path, 'ab+', buffering=0)
    except (FileNotFoundError, FileExistsError) as error:
      # The previous holder may just have removed the folder.
      if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f'--workdir={folder} is a file') from error
    except (NotADirectoryError, PermissionError) as error:
      raise UserError(f'--workdir={folder}: {error.strerror}') from error


def _is_at(file, path: str) -> bool:
  """Whether the open file is still the one at `path`."""
  with contextlib.suppress(FileNotFoundError):
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  return False


def _holder(file) -> dict:
  """Host, process and time that the holder wrote into the file.

  {} while it is being acquired or released, or for a foreign program.
  """
  file.seek(0)
  try:
    facts = json.loads(file.read())
  except (ValueError, RecursionError):
    return {}
  is_ours = isinstance(facts, dict) and facts.keys() >= _FACTS
  return facts if is_ours else {}
