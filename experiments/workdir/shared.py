"""Check that all processes of a run see the same workdir."""

from __future__ import annotations

import os
import time

import jax

from experiments.command import processes
from experiments.command.errors import UserError
from experiments.workdir import buckets, locks

# Seconds until a file is visible to other hosts, and between attempts.
_VISIBLE, _RETRY = 10.0, 0.2


def check_shared(workdir: str) -> None:
  """Checks that all processes see the lock that process 0 holds.

  Raises:
    UserError: on all of them, if one sees another folder.
  """
  if not jax.distributed.is_initialized() or (
    buckets.origin(workdir) != workdir
  ):
    return
  path = os.path.join(workdir, locks.NAME)
  holder, *_ = processes.gather(locks.holder(path))
  processes.together(lambda: _wait_for(path, holder, workdir))


def _wait_for(path: str, holder: str, workdir: str) -> None:
  deadline = time.monotonic() + _VISIBLE
  while locks.holder(path) != holder:
    if time.monotonic() > deadline:
      raise UserError(
        f'--workdir={workdir} is not the folder that process 0 sees; all '
        'processes need a shared one: a network file system or a mounted bucket'
      )
    time.sleep(_RETRY)
