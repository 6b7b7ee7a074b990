"""Where an interrupted run or group resumes: its newest intact checkpoint."""

from __future__ import annotations

from experiments.command import processes
from experiments.command.errors import Failed, UserError
from experiments.command.log import log
from experiments.workdir.checkpoints import CORRUPT, Checkpoints, T, one_line


def newest(
  folders: list[Checkpoints], template: T
) -> tuple[int | None, list[T]]:
  """The newest step with an intact checkpoint in all folders, and the states.

  (None, []) without one. Later steps, whose checkpoints are corrupt or missing
  in some folders, will be trained again: corrupt checkpoints are set aside,
  the others are removed.

  Raises:
    UserError: a checkpoint belongs to another model or run.
    Failed: there are checkpoints, and all of them are corrupt.
  """
  # On a shared file system a file may become visible to other processes late.
  lists = processes.gather([folder.steps() for folder in folders])
  common = set.intersection(*[set(n) for found in lists for n in found])
  corrupt: dict[tuple[int, int], str] = {}
  for step in sorted(common, reverse=True):
    states = []
    for index, folder in enumerate(folders):
      reason = None
      try:
        states.append(folder.restore(step, template))
      except UserError:
        raise
      # A corrupt file may raise anything, in Orbax or in TensorStore.
      except Exception as error:
        reason = one_line(error)
      # If one process failed, all of them treat the checkpoint as corrupt.
      reasons = list(filter(None, processes.gather(reason)))
      if reasons:
        corrupt[index, step] = reasons[0]
    if not any(at == step for _, at in corrupt):
      _go_back(folders, step, corrupt)
      return step, states
  if corrupt:
    (index, step), reason = next(iter(corrupt.items()))
    raise Failed(
      f'checkpoint {folders[index].directory}/{step} is corrupt, and '
      f'so are all earlier ones: {reason}; to start over, choose another '
      '--workdir'
    )
  _go_back(folders, 0, corrupt)
  return None, []


def _go_back(folders, to: int, corrupt) -> None:
  """Sets corrupt checkpoints aside, and removes other ones after step `to`."""
  for index, folder in enumerate(folders):
    for step in folder.steps():
      if (index, step) in corrupt:
        log(
          f'WARNING: checkpoint {folder.directory}/{step} is corrupt '
          f'and moved to {CORRUPT}/{step}: {corrupt[index, step]}'
        )
        folder.set_aside(step)
      elif step > to:
        folder.drop(step)
