"""The defaults of all keys; trains on the built-in word_order task.

A position-aware encoder distinguishes the sentences of a minimal pair, a bag of
words cannot (see experiments/data/word_order.py). The keys, what they mean and
their defaults are the fields of experiments/settings/settings.py; --help and
docs/configuration.md list them.

    bash scripts/run.sh experiments.train
"""

from typing import Any

from ml_collections import ConfigDict

from experiments.command import schema
from experiments.settings.settings import Settings
from selfattn.positions import POSITIONS


def get_config() -> Any:
  """A locked ConfigDict, whose sections and keys are attributes."""
  return ConfigDict(schema.defaults(Settings)).lock()


def position_methods(max_len=None):
  """Every position method; some are defined for causal encoders alone.

  Args:
    max_len: positions of the methods with tables of them; None: their default.
  """
  for name, method in POSITIONS.items():
    has_table = method.length_option == 'max_len'
    call = f'{name}(max_len={max_len})' if has_table and max_len else name
    # DAPE changes the biases of another method.
    changes = {'model.position': 'kerple+dape' if name == 'dape' else call}
    if method.causal_only:
      changes['model.encoder'] = 'attention(causal=True)'
    yield changes


def sweep_positions():
  """Every position method."""
  return position_methods()


def sweep_seeds():
  """Five seeds."""
  for seed in range(5):
    yield {'seed': seed}
