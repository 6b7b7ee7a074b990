"""Check that all processes of a run see the same workdir."""

from __future__ import annotations

import os
import secrets
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.command import processes
from experiments.command.errors import UserError
from experiments.workdir import buckets

# Seconds until a file is visible to other hosts, and between attempts.
_VISIBLE, _RETRY = 10.0, 0.2


def check_shared(workdir: str) -> None:
  """Checks that all processes see the same folder.

  Raises:
    UserError: on all of them, if one sees another folder.
  """
  if not jax.distributed.is_initialized() or (
    buckets.origin(workdir) != workdir
  ):
    return
  nonce = np.frombuffer(secrets.token_bytes(8), np.uint8)
  name = bytes(multihost_utils.broadcast_one_to_all(nonce)).hex()
  path = os.path.join(workdir, f'.shared-{name}')
  try:
    if processes.is_first():
      os.makedirs(workdir, exist_ok=True)
      open(path, 'w').close()
    processes.wait_for_all(f'written {name}')
    processes.together(lambda: _wait_for(path, workdir))
  finally:
    if processes.is_first() and os.path.exists(path):
      os.remove(path)


def _wait_for(path: str, workdir: str) -> None:
  deadline = time.monotonic() + _VISIBLE
  while not os.path.exists(path):
    if time.monotonic() > deadline:
      raise UserError(
        f'--workdir={workdir} is not the folder that process 0 sees; all '
        'processes need a shared one: a network file system or a mounted bucket'
      )
    time.sleep(_RETRY)
