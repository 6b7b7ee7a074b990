"""Fine-tuning of all-MiniLM-L6-v2 on one fold of MR, three epochs.

The recipe of configs/fine_tuning.py. Data: see configs/mr.py.
Accuracy, three seeds: docs/results/minilm_mr.json.

    bash scripts/run.sh experiments.train --config=configs/minilm_mr.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm_mr
"""

from configs import default, fine_tuning, mr


def get_config():
  """Differences from configs/fine_tuning.py."""
  config = fine_tuning.get_config(mr)
  config.train.steps = 855
  config.train.eval_every = 285
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
