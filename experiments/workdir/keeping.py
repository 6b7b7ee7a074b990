"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses

# Of a run with several phases, the one whose checkpoints may be the best.
LAST_PHASE = 'train'


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """When a state is saved, how many stay, and which one is the best."""

  every_steps: int
  keep: int
  best_metric: str
