"""Length generalisation: train on up to 20 tokens, test on 21 to 100.

The task is an option of `config.data.source`, one of those in
experiments/data/algorithmic.py, 15 of them after Deletang et al. 2023. The
default is the quickest to learn: whether `a` comes before `b`. Evaluation
prints the accuracy by length.

    bash scripts/run.sh experiments.train \
        --config=configs/length_generalization.py \
        --config.model.position=shaw --workdir=runs/before_shaw
    bash scripts/run.sh experiments.evaluate --workdir=runs/before_shaw

A column of the tables in docs/positions.md is one task of this sweep:

    bash scripts/run.sh experiments.sweep \
        --config=configs/length_generalization.py \
        --sweep=tasks,positions,seeds --workdir=runs/tasks

Without dropout, and with the maximum over tokens, since the answer is that of
one token: chosen by how soon a task of recall is learnt, on validation.
"""

from configs import default
from experiments.data.algorithmic import ALGORITHMS


def strings(task):
  """The data set of a task."""
  return (
    f'algorithmic(task={task}, longest_train=20, longest_test=100, test=2000)'
  )


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.data.source = strings('a_before_b')
  config.data.max_length = 100
  config.model.num_heads = 8
  config.model.pool = 'max'
  config.model.dropout_rate = 0.0
  config.optimizer.learning_rate = 2e-3
  config.train.batch_size = 32
  config.train.eval_every = 1_000
  return config


def sweep_positions():
  """Every position method; randomised positions are below 2048."""
  return default.position_methods(max_len=2048)


def sweep_seeds():
  """Three seeds."""
  for seed in range(3):
    yield {'seed': seed}


def sweep_tasks():
  """Every task of experiments/data/algorithmic.py."""
  for name, algorithm in ALGORITHMS.items():
    task = 'classify_tokens' if algorithm.has_token_labels else 'classify'
    yield {'data.source': strings(name), 'task': task}
