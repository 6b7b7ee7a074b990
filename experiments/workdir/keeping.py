"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses

# What says which is the best of several numbers, by metric.
BEST_METRICS = {'accuracy': max, 'macro_f1': max, 'loss': min}


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """When a state is saved, how many stay, and which one is the best."""

  every_steps: int
  keep: int
  best_metric: str
