"""Fine-tuning of all-MiniLM-L6-v2 on MRPC, pairs of sentences, three epochs.

The recipe of configs/minilm.py. Data: see configs/mrpc.py.
Accuracy, three seeds: docs/results/minilm_mrpc.json.

    bash scripts/run.sh experiments.train --config=configs/minilm_mrpc.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm_mrpc
"""

from configs import default, minilm, mrpc


def get_config():
  """Differences from configs/minilm.py."""
  config = minilm.get_config(mrpc)
  config.data.max_length = 128
  config.train.steps = 345
  config.train.eval_every = 115
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
