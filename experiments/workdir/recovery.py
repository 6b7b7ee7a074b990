"""Checkpoints that cannot be read are set aside for others of their run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from experiments.command import processes
from experiments.command.errors import Failed
from experiments.workdir.checkpoints import Checkpoints, Corrupt, T


def newest(folders: list[Checkpoints], template: T) -> tuple[int, list[T]]:
  """The newest step with an intact checkpoint in all folders, and the states.

  (0, []) without one. Later steps, whose checkpoints are corrupt or missing in
  some folders, will be trained again: corrupt checkpoints are set aside, the
  others are removed. Failed if all checkpoints are corrupt; UserError if one
  belongs to another model or run.
  """
  # On a shared file system a file may become visible to other processes late.
  lists = processes.gather([folder.steps() for folder in folders])
  common = set.intersection(*[set(n) for steps in lists for n in steps])
  corrupt: dict[tuple[int, int], str] = {}
  for step in sorted(common, reverse=True):
    states = [
      _restored(functools.partial(folder.restore, step, template))
      for folder in folders
    ]
    intact = [state for state in states if not isinstance(state, Corrupt)]
    if len(intact) == len(folders):
      _go_back(folders, step, corrupt)
      return step, intact
    for index, state in enumerate(states):
      if isinstance(state, Corrupt):
        corrupt[index, step] = str(state)
  if corrupt:
    raise Failed(
      f'{next(iter(corrupt.values()))}; so are all earlier ones; to start '
      'over, choose another --workdir'
    )
  _go_back(folders, 0, corrupt)
  return 0, []


def taken(folder: Checkpoints, template, run: str) -> int:
  """Steps of the newest checkpoint with intact metadata; 0 without one.

  Reads no arrays, and changes nothing. UserError as of `newest`.
  """
  for step in reversed(folder.steps()):
    with contextlib.suppress(Corrupt):
      folder.check(step, template, run)
      return step
  return 0


def best(folder: Checkpoints, template) -> tuple[int, dict[str, Any]]:
  """The best step with an intact checkpoint, and its parameters by name.

  Better ones, which are corrupt, are set aside. Failed if all are; then nothing
  is changed.
  """
  corrupt: dict[int, str] = {}
  while True:
    steps = [step for step in folder.steps() if step not in corrupt]
    step = folder.best(steps)
    if step is None:
      missing = f'{folder.directory} has no checkpoint'
      raise Failed(next(iter(corrupt.values()), missing))
    params = _restored(functools.partial(folder.restore_params, step, template))
    if not isinstance(params, Corrupt):
      break
    corrupt[step] = str(params)
  for worse, reason in corrupt.items():
    folder.set_aside(worse, reason)
  return step, params


def _restored(restore: Callable[[], T]) -> T | Corrupt:
  """What it returns, or on all processes why that is corrupt on one of them."""
  try:
    restored = restore()
    reasons = processes.gather('')
  except Corrupt as error:
    restored = error
    reasons = processes.gather(str(error))
  reason = next(filter(None, reasons), None)
  return Corrupt(reason) if reason else restored


def _go_back(folders, to: int, corrupt) -> None:
  """Sets corrupt checkpoints aside, and removes other ones after step `to`."""
  for index, folder in enumerate(folders):
    for step in folder.steps():
      if (index, step) in corrupt:
        folder.set_aside(step, corrupt[index, step])
      elif step > to:
        folder.drop(step)
