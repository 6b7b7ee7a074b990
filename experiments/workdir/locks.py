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

from experiments.command.errors import UserError
from experiments.command.log import log

NAME = 'lock'
# Seconds to wait for a process of another host. One that was killed together
# with its machine holds its lock until the file server misses it, and the run
# that takes its place should not end before that.
_PATIENCE = 120.0
_RETRY = 1.0
# Seconds that it takes to write down who has the lock.
_HANDOVER = 0.02
# What a file system answers that has no locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class InUse(UserError):
  """Another process writes into the folder."""


@contextlib.contextmanager
def held(folder: str, patience: float = _PATIENCE) -> Iterator[None]:
  """Holds FOLDER/lock for the block; makes the folder if need be.

  The lock is the kernel's (flock): it ends with the process that holds it,
  however that ends, and over NFS it holds between hosts. A folder in which the
  block has left nothing goes again.

  Raises:
    InUse: a process of this host holds it, or one of another host did not let
      go of it for `patience` seconds.
    UserError: the folder cannot be made, or not be written to.
  """
  path = os.path.join(folder, NAME)
  made = _missing(folder)
  try:
    with _locked(path, folder, patience) as file:
      now = datetime.datetime.now(datetime.UTC)
      facts = {
        'host': socket.gethostname(),
        'process': os.getpid(),
        'since': now.isoformat(timespec='seconds'),
      }
      file.truncate(0)
      file.write(json.dumps(facts))
      file.flush()
      try:
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


def _missing(folder: str) -> list[str]:
  """The folders that are not there yet, from the innermost."""
  missing = []
  parent = os.path.abspath(folder)
  while not os.path.exists(parent):
    missing.append(parent)
    parent = os.path.dirname(parent)
  return missing


def _locked(path: str, folder: str, patience: float):
  """The open file, locked."""
  deadline = time.monotonic() + patience
  has_waited = False
  while True:
    file = _opened(path)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_at(file, path):
        return file
      holder = {}
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
    if not holder and time.monotonic() < deadline:
      time.sleep(_HANDOVER)
      continue
    who = f'process {holder.get("process")} on {holder.get("host")}'
    is_here = holder.get('host') == socket.gethostname()
    if is_here or time.monotonic() > deadline:
      raise InUse(
        f'--workdir={folder} is in use by {who} since {holder.get("since")}; '
        'wait for it, end it, or choose another --workdir'
      )
    if not has_waited:
      log(f'{folder} is in use by {who}; waiting {patience:.0f} s at most')
    has_waited = True
    time.sleep(_RETRY)


def _opened(path: str):
  """The file, made if need be, together with a folder that has just gone."""
  folder = os.path.dirname(path)
  while True:
    try:
      os.makedirs(folder, exist_ok=True)
      return open(path, 'a+')
    except (FileNotFoundError, FileExistsError) as error:
      # Who held it before may just have removed the folder.
      if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f'--workdir={folder} is a file') from error
    except OSError as error:
      raise UserError(f'--workdir={folder}: {error.strerror}') from error


def _is_at(file, path: str) -> bool:
  """Whether the one that held it before has not removed the file since."""
  with contextlib.suppress(FileNotFoundError):
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
  return False


def _holder(file) -> dict:
  """What who holds the lock has written; {} if it takes or leaves it now."""
  file.seek(0)
  try:
    facts = json.loads(file.read())
  except json.JSONDecodeError:
    return {}
  return facts if isinstance(facts, dict) else {}
