"""Which checkpoints a run keeps."""

from __future__ import annotations

import dataclasses

# Of a run with several phases, the one whose checkpoints may be the best.
LAST_PHASE = 'train'


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """How often checkpoints are saved, how many are kept, which is the best."""

  every_steps: int
  max_to_keep: int
  best_metric: str
