"""Curves of a run in other tools: TensorBoard, and Weights & Biases.

Points that cannot be written are left out: curves are no reason to end a run,
and metrics.jsonl has all of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from experiments.command.log import log
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib

# Weights & Biases has its settings in the environment, of its own names.
WANDB_PROJECT = 'WANDB_PROJECT'


class Curves:
  """The curves of one attempt at a run in an opened workdir.

  Weights & Biases has one run for all attempts, and shows the config, by dotted
  key, beside the curves. The attempt adds points from `first_step` on.
  """

  def __init__(self, workdir, config: Mapping[str, Any], first_step: int):
    # tensorboardX imports PyTorch if installed, which takes two seconds, to
    # support its tensors, which are not used here.
    modules: dict[str, Any] = sys.modules
    is_hidden = modules.setdefault('torch', None) is None
    try:
      from tensorboardX import SummaryWriter
    finally:
      if is_hidden:
        del modules['torch']
    # A queue without limit: the thread that empties it ends at the first error,
    # such as a full disk. TensorBoard discards the steps of earlier attempts
    # from `purge_step` on.
    self._board = SummaryWriter(
      workdir.file('tensorboard'),
      purge_step=first_step,
      max_queue=0,
      flush_secs=1,
    )
    has_wandb = bool(os.environ.get(WANDB_PROJECT))
    self._wandb = _wandb(workdir, config) if has_wandb else None

  def add(self, row: Mapping[str, float], step: int) -> None:
    for name, value in row.items():
      self._board.add_scalar(name, value, step)
    if self._wandb is not None:
      with contextlib.suppress(Exception):
        self._wandb.log(dict(row), step=step)

  def close(self, has_failed: bool) -> None:
    with contextlib.suppress(OSError):
      self._board.close()
    if self._wandb is not None:
      with contextlib.suppress(Exception):
        self._wandb.finish(exit_code=int(has_failed))


def _wandb(workdir, config: Mapping[str, Any]) -> Any:
  """The run of Weights & Biases; None if it cannot be reached."""
  try:
    import wandb  # pyright: ignore[reportMissingImports] of an extra

    return wandb.init(
      id=_wandb_id(workdir.file('wandb/id')),
      resume='allow',
      dir=workdir.path,
      name=os.path.basename(buckets.origin(workdir.path)),
      config=dict(config),
      # Each of the trials that train together has its own run.
      reinit='create_new',
      # log-0.txt keeps the printed lines.
      settings=wandb.Settings(console='off'),
    )
  # A missing extra, wrong settings, the network and files all raise their own
  # exceptions.
  except Exception as error:
    reason = ' '.join(str(error).split())
    log(f'WARNING: no curves for Weights & Biases: {reason}')
    return None


def _wandb_id(path: str) -> str:
  """The id of the run at Weights & Biases, made at the first attempt."""
  with contextlib.suppress(FileNotFoundError), open(path) as file:
    if name := file.read().strip():
      return name
  os.makedirs(os.path.dirname(path), exist_ok=True)
  made = secrets.token_hex(8)
  workdir_lib.write_atomic(path, made)
  return made
