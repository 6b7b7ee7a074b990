"""One process at a time writes into a folder."""

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

from experiments.command.errors import FULL, UserError, unwritten, writing
from experiments.command.log import log

NAME = 'lock'
_FACTS = {'host', 'process', 'since'}
# Seconds to wait for a process of another host. One that was killed together
# with its machine holds its lock until the file server misses it, and the run
# that takes its place should not end before that.
PATIENCE = 120.0
_RETRY = 1.0
# Seconds that it takes to write down who has the lock.
_HANDOVER = 0.02
# What a file system answers that has no locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class InUse(UserError):
  """Another process writes into the folder."""


@contextlib.contextmanager
def held(
  folder: str, patience: float = PATIENCE, queues: bool = False
) -> Iterator[None]:
  """Holds FOLDER/lock for the block; makes the folder if need be.

  The lock is the kernel's (flock): it ends with the process that holds it,
  however that ends, and over NFS it holds between hosts. A folder in which the
  block has left nothing goes again.

  Args:
    patience: seconds to wait for a process of another host.
    queues: whether one of this host is waited for as long, as where all hold it
      for a moment only.

  Raises:
    InUse: another process did not let go of it.
    UserError: the folder cannot be made, or not be written to.
    Failed: there is no room for it.
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
        # While it is held: who takes it next looks whether it is still there.
        with contextlib.suppress(OSError):
          if _is_at(file, path):
            os.remove(path)
  finally:
    with contextlib.suppress(OSError):
      for parent in made:
        os.rmdir(parent)


def _sign(file) -> None:
  """Writes down who has the lock."""
  now = datetime.datetime.now(datetime.UTC)
  facts = {
    'host': socket.gethostname(),
    'process': os.getpid(),
    'since': now.isoformat(timespec='seconds'),
  }
  file.truncate(0)
  file.write(json.dumps(facts).encode())


def _missing(folder: str) -> list[str]:
  """The folders that are not there yet, from the innermost."""
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
      log(f'{folder} is in use by {who}; waiting {patience:.0f} s at most')
      has_waited = True
    time.sleep(_HANDOVER if is_moment else _RETRY)


def _opened(path: str):
  """The file, made if need be, together with a folder that has just gone."""
  folder = os.path.dirname(path)
  while True:
    try:
      os.makedirs(folder, exist_ok=True)
      return open(path, 'ab+', buffering=0)
    except (FileNotFoundError, FileExistsError) as error:
      # Who held it before may just have removed the folder.
      if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f'--workdir={folder} is a file') from error
    except OSError as error:
      if error.errno in FULL:
        raise unwritten(folder, error) from error
      raise UserError(f'--workdir={folder}: {error.strerror}') from error


def _is_at(file, path: str) -> bool:
  """Whether the one that held it before has not removed the file since."""
  with contextlib.suppress(FileNotFoundError):
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  return False


def _holder(file) -> dict:
  """What who holds the lock has written.

  {} if it takes or leaves it now, or is no program of ours.
  """
  file.seek(0)
  try:
    facts = json.loads(file.read())
  except (ValueError, RecursionError):
    return {}
  is_ours = isinstance(facts, dict) and facts.keys() >= _FACTS
  return facts if is_ours else {}
