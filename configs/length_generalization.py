"""Length generalisation: train on up to 40 tokens, test on 41 to 200.

Task: `config.data.algorithmic.task`, one of experiments/algorithmic.py, after
Ruoss et al. 2023 and Deletang et al. 2023. Evaluation prints the accuracy by
length.

    bash scripts/run.sh experiments.train \
        --config=configs/length_generalization.py \
        --config.model.position.name=shaw --workdir=runs/even_pairs
    bash scripts/run.sh experiments.evaluate --workdir=runs/even_pairs
"""

from configs import default


def get_config():
  """configs/default.py with what differs."""
  config = default.get_config()
  config.data.name = 'algorithmic'
  config.data.max_length = 200
  config.data.num_buckets = 3
  config.model.num_layers = 2
  config.model.num_heads = 8
  config.train.batch_size = 128
  config.train.steps = 2_000
  return config
