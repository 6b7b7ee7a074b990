"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from experiments.command import schema


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """Which checkpoints are written and kept.

  Attributes:
    every_steps: steps between checkpoints; there is one at each evaluation,
      too.
    max_to_keep: newest checkpoints to keep; the best one is kept, too.
    best_metric: metric on validation that selects the best checkpoint, one of
      the task's.
  """

  every_steps: int = schema.field(500, schema.POSITIVE)
  max_to_keep: int = schema.field(2, schema.POSITIVE)
  best_metric: str = 'accuracy'


def best_step(
  best: Callable | None, scores: Mapping[int, float], steps: list[int]
) -> int | None:
  """The step with the best score, the latest on ties; None without scores."""
  there = {step: scores[step] for step in steps if step in scores}
  if best is None or not there:
    return None
  score = best(there.values())
  return max(step for step in there if there[step] == score)
