"""What all processes of a run have to agree on before one of them goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.command.errors import UserError

T = TypeVar('T')


def is_first() -> bool:
  """Whether this is the process that writes; touches no device if alone."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def together(action: Callable[[], T]) -> T:
  """What `action` returns, once all processes could do it.

  Raises:
    UserError: it raised one anywhere; on every process.
  """
  if not jax.distributed.is_initialized():
    return action()
  result, told = None, None
  try:
    result = action()
  except UserError as error:
    told = str(error)
  for index, reason in enumerate(gather(told)):
    if reason:
      raise UserError(f'process {index}: {reason}')
  return result


def gather(value) -> list:
  """What every process gives, in their order, on all of them; any JSON."""
  if not jax.distributed.is_initialized():
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.array(text.size))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[: text.size] = text
  rows = multihost_utils.process_allgather(padded)
  return [json.loads(bytes(r[:n])) for r, n in zip(rows, sizes, strict=True)]


def wait_for_all(name: str) -> None:
  """Returns when every process has come to the place of this name."""
  if jax.distributed.is_initialized():
    multihost_utils.sync_global_devices(name)


def is_asked_to_end(look: int) -> bool:
  """Whether a process of the run was sent SIGTERM; the same answer for all.

  Args:
    look: counts the calls, the same way on every process.
  """
  return multihost_utils.reached_preemption_sync_point(look)
