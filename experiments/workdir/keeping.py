"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses

# Function that selects the best value, by metric.
BEST_METRICS = {'accuracy': max, 'macro_f1': max, 'loss': min}


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """How often checkpoints are saved, how many are kept, which is the best."""

  every_steps: int
  keep: int
  best_metric: str
