"""Checkpoints that cannot be read are set aside for others of their run."""

from __future__ import annotations

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
    states = [_restored(folder, step, template) for folder in folders]
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


def best(folder: Checkpoints, template: T) -> tuple[int, T]:
  """The best step of which the checkpoint is intact, and its state.

  Better ones, which are corrupt, are set aside. Failed if all are.
  """
  reason = f'{folder.directory} has no checkpoint'
  while (step := folder.best()) is not None:
    state = _restored(folder, step, template)
    if not isinstance(state, Corrupt):
      return step, state
    reason = str(state)
    folder.set_aside(step, reason)
  raise Failed(reason)


def _restored(folder: Checkpoints, step: int, template: T) -> T | Corrupt:
  """The state, or on all processes why it is corrupt on one of them."""
  try:
    state = folder.restore(step, template)
    reasons = processes.gather('')
  except Corrupt as error:
    state = error
    reasons = processes.gather(str(error))
  reason = next(filter(None, reasons), None)
  return Corrupt(reason) if reason else state


def _go_back(folders, to: int, corrupt) -> None:
  """Sets corrupt checkpoints aside, and removes other ones after step `to`."""
  for index, folder in enumerate(folders):
    for step in folder.steps():
      if (index, step) in corrupt:
        folder.set_aside(step, corrupt[index, step])
      elif step > to:
        folder.drop(step)
