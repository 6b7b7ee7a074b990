"""Locks of folders: only one process at a time writes into a workdir."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import pathlib
import socket
import time
from collections.abc import Iterator

from experiments.command import processes
from experiments.command.errors import UserError, making
from experiments.command.log import log
from experiments.workdir import buckets

NAME = 'lock'
# Seconds to wait for a process on another host. If it died together with its
# machine, the file server releases its lock only after a timeout, which the run
# that replaces it has to outlast.
PATIENCE = 120.0
# Seconds between attempts.
_RETRY = 0.1
# Seconds until a file is visible to other hosts.
_VISIBLE = 10.0
# Error numbers of a file system without locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class InUse(UserError):
  """Another process holds the lock of the folder."""


@contextlib.contextmanager
def held(
  folder: str,
  patience: float = PATIENCE,
  queues: bool = False,
  name: str = NAME,
) -> Iterator[None]:
  """Holds FOLDER/NAME during the block; creates the folder if needed.

  The kernel releases the lock (flock) when the process ends in any way; it
  works across hosts over NFS. New folders that the block leaves empty are
  removed again.

  Args:
    patience: seconds to wait for a process on another host.
    queues: whether to wait as long for a process on this host, too; for locks
      that are held only for a moment.
    name: of the file.

  Raises:
    InUse: another process did not release it in time.
    UserError: the folder cannot be created, or is not writable.
  """
  # Late: commands that only read need no lock.
  from filelock import FileLock

  path = pathlib.Path(folder).absolute() / name
  missing = [parent for parent in path.parents if not os.path.lexists(parent)]
  lock = FileLock(
    path, thread_local=False, fallback_to_soft=False, on_acquired=_sign
  )
  with making('--workdir'):
    _acquire(lock, folder, patience, queues)
  try:
    yield
  finally:
    with contextlib.suppress(OSError):
      # Before the release: one that waits for this file then makes another.
      path.unlink()
      for parent in missing:
        parent.rmdir()
    lock.release()


def _acquire(
  lock, folder: str, patience: float, queues: bool, attempts: int = 100
) -> None:
  from filelock import Timeout

  has_said = False

  def is_held_here() -> bool:
    nonlocal has_said
    who = holder(lock.lock_file)
    if f' on {socket.gethostname()} ' in who:
      return True
    if who and not has_said:
      has_said = True
      log(f'{folder} is in use by {who}; waiting at most {patience:.0f} s')
    return False

  try:
    lock.acquire(
      patience, _RETRY, cancel_check=None if queues else is_held_here
    )
  except Timeout:
    who = holder(lock.lock_file) or 'another process'
    raise InUse(
      f'--workdir={folder} is in use by {who}; wait for it, end it, or '
      'choose another --workdir'
    ) from None
  except (FileNotFoundError, FileExistsError):
    # The previous holder has just removed the folder, before the file in it was
    # opened or while the folder was made.
    if not attempts:
      raise
    _acquire(lock, folder, patience, queues, attempts - 1)
  except OSError as error:
    if error.errno not in _UNSUPPORTED:
      raise
    log(
      f'WARNING: {folder} is on a file system without locks '
      f'({error.strerror}): start one run at a time in it'
    )


def _sign(descriptor: int) -> None:
  """Writes who holds the lock into its open file."""
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  who = f'process {os.getpid()} on {socket.gethostname()} since {now}'
  os.ftruncate(descriptor, 0)
  os.write(descriptor, who.encode())


def holder(path: str) -> str:
  """Who holds the lock; '' if the file does not say, or not yet."""
  with contextlib.suppress(OSError), open(path, errors='replace') as file:
    return ' '.join(file.read(200).split())
  return ''


def check_shared(folder: str) -> None:
  """Checks that all processes see the lock that process 0 holds.

  Raises:
    UserError: on all of them, if one sees another folder.
  """
  path = os.path.join(folder, NAME)
  signed, *others = processes.gather(holder(path))
  # Each process has its own copy of a folder in a bucket.
  if not others or buckets.origin(folder) != folder:
    return

  def wait() -> None:
    deadline = time.monotonic() + _VISIBLE
    while holder(path) != signed:
      if time.monotonic() > deadline:
        raise UserError(
          f'--workdir={folder} is not the folder that process 0 sees; all '
          'processes need a shared one: a network file system or a mounted '
          'bucket'
        )
      time.sleep(_RETRY)

  processes.together(wait)
