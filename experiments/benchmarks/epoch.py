"""Training steps on SST-2 phrases, by how batches are made.

`experiments.train` gathers every batch and pads it to its bucket. `prepared`
uses the same batches from a list on the device, to time the compiled step
alone. `padded` pads every batch to 64 tokens. `real_tokens` is the share of
tokens that are not padding.
"""

from __future__ import annotations

import os

import jax
import numpy as np

from experiments.benchmarks import alternate, summary
from experiments.command import app
from experiments.command.errors import UserError
from experiments.data import loading
from experiments.data.batches import TrainBatches
from experiments.settings import settings
from experiments.training import compiled

_CONFIG = os.path.join(os.path.dirname(app.DEFAULT_CONFIG), 'sst2.py')
# Steps per call, and the length that `padded` pads to.
_STEPS, _LENGTH = 100, 64


def measure(values) -> list[dict]:
  """One row per way to make batches; ratios are to experiments.train.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    UserError: --data_dir does not hold SST-2.
  """
  if not values.data_dir:
    raise UserError('--data_dir is required: folder of SST-2')
  config = app.load_config(_CONFIG)
  config.data.dir = values.data_dir
  config.model.num_members = 1
  wanted = settings.from_config(config)
  loaded = loading.load(wanted.data, workdir='')
  program = compiled.make(
    wanted, loaded.vocabulary, len(loaded.labels), devices=jax.devices()[:1]
  )
  hparams = jax.device_put(program.hparams([wanted]))

  def batches(lengths):
    size, seed = wanted.train.batch_size, wanted.seed
    return TrainBatches(loaded.splits['train'], size, seed, lengths)

  bucketed, padded = batches(loaded.bucket_lengths), batches((_LENGTH,))
  prepared = [jax.device_put(bucketed(step)) for step in range(_STEPS)]

  def run(of_step):
    state = program.init(hparams)

    def steps():
      nonlocal state
      for step in range(_STEPS):
        state, metrics = program.train_step(state, of_step(step), hparams)
      return state, metrics

    return steps

  functions = {
    'experiments.train': run(bucketed),
    'prepared': run(prepared.__getitem__),
    'padded': run(padded),
  }
  seconds = alternate(functions, values.repetitions)
  base = seconds['experiments.train']
  shares = {
    name: _real_tokens(of)
    for name, of in (('experiments.train', bucketed), ('padded', padded))
  }
  return [
    {'batches': name}
    | summary(times, base)
    | {'real_tokens': shares.get(name, '')}
    for name, times in seconds.items()
  ]


def _real_tokens(batches: TrainBatches) -> float:
  """Share of the tokens of an epoch that are not padding."""
  real, computed = 0, 0
  for step in range(batches.steps_per_epoch):
    batch = batches(step)
    real += int(batch.lengths.sum())
    computed += int(np.prod(batch.tokens.shape))
  return round(real / computed, 3)
