"""Length generalisation: train on up to 40 tokens, test on 41 to 200.

The task is `config.data.algorithmic.task`, one of those in
experiments/data/algorithmic.py, most of them after Ruoss et al. 2023. The
default is the quickest to learn: whether `a` comes before `b`. Evaluation
prints the accuracy by length.

    bash scripts/run.sh experiments.train \
        --config=configs/length_generalization.py \
        --config.model.position.name=shaw --workdir=runs/before_shaw
    bash scripts/run.sh experiments.evaluate --workdir=runs/before_shaw

Score: shaw 0.985, sinusoidal 0.619, the same with randomised positions 0.981
(test, one seed each); about a minute on two cores.
"""

from configs import default
from experiments.data.algorithmic import TASKS


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.data.name = 'algorithmic'
  config.data.algorithmic.task = 'a_before_b'
  config.data.max_length = 200
  config.data.num_buckets = 3
  # Randomised positions are sampled from this range.
  config.model.position.learned.max_len = 2048
  config.model.position.tupe.max_len = 2048
  config.model.num_layers = 2
  config.model.num_heads = 8
  config.optimizer.warmup_steps = 0.1
  config.train.batch_size = 128
  config.train.steps = 1_000
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_tasks():
  """Every task of experiments/data/algorithmic.py."""
  for task in TASKS:
    yield {'data.algorithmic.task': task}


def sweep_samplings():
  """Consecutive positions, and randomised ones (Ruoss et al. 2023)."""
  for name in ('consecutive', 'randomised'):
    yield {'model.position_sampling.name': name}
