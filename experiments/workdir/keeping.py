"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """Checkpoints: config.checkpoint, explained in configs/default.py."""

  every_steps: int
  max_to_keep: int
  best_metric: str


def best_step(
  best: Callable | None, scores: Mapping[int, float], steps: list[int]
) -> int | None:
  """Of these steps, the one with the best score, the latest on ties.

  Args:
    best: max or min; None, only if there are no scores.
  """
  there = {step: scores[step] for step in steps if step in scores}
  if not there:
    return None
  score = best(there.values())
  return max(step for step in there if there[step] == score)
