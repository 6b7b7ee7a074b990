"""Communication between the processes of a run; no-ops in a single process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.command.errors import UserError

T = TypeVar('T')


def is_first() -> bool:
  """Whether this process writes files, number 0. Alone, it uses no device."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def require_one(command: str) -> None:
  """UserError if jax has several processes, which `command` does not use."""
  if jax.process_count() > 1:
    raise UserError(
      f'{command} is one process, and jax has {jax.process_count()}; start it '
      'on one host, with JAX_PLATFORMS=cpu if accelerators are of several'
    )


def require_joined() -> None:
  """UserError on a host of several that has not joined the others.

  Each of them would take itself for the one that writes.
  """
  if not jax.distributed.is_initialized() and jax.process_count() > 1:
    raise UserError(
      f'this is one of {jax.process_count()} hosts of an accelerator, which '
      'train as one run: give --distributed=on to experiments.train on each'
    )


def together(action: Callable[[], T]) -> T:
  """Returns action(), or on all processes the UserError of any of them."""
  if not jax.distributed.is_initialized():
    return action()
  results, failure = [], None
  try:
    results.append(action())
  except UserError as error:
    failure = str(error)
  for index, reason in enumerate(gather(failure)):
    if reason:
      raise UserError(f'process {index}: {reason}')
  return results[0]


def gather(value) -> list:
  """All-gathers a JSON value: one from each process, by process index."""
  if not jax.distributed.is_initialized():
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.array(text.size))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[: text.size] = text
  rows = multihost_utils.process_allgather(padded)
  return [json.loads(bytes(r[:n])) for r, n in zip(rows, sizes, strict=True)]


def check_same(values: Mapping[str, Any]) -> None:
  """UserError, on all processes, that names a value which differs."""
  first, *others = gather(dict(values))
  for index, other in enumerate(others, 1):
    for key, value in first.items():
      if other.get(key) != value:
        raise UserError(
          f'{key} is {value!r} on process 0, and {other.get(key)!r} on process '
          f'{index}; run the same command for all of them'
        )


def wait_for_all(name: str) -> None:
  """Barrier `name`: returns when every process has reached it."""
  if jax.distributed.is_initialized():
    multihost_utils.sync_global_devices(name)
