"""A training step of a small, a medium and a large classifier, in bfloat16.

This package with each supported backend of --backends, against PyTorch's
encoder layers with fused attention, eager and compiled, with autocast. Texts
are as long as the batch, without padding. `mfu` is model FLOPs utilisation;
`memory_mib` is the memory of the compiled step, or for PyTorch the peak
allocated memory, on a GPU.

For accelerators; on a CPU, --models=default takes a minute.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from experiments.benchmarks import alternate, peers, summary
from experiments.benchmarks.peers import (
  DROPOUT_RATE,
  LEARNING_RATE,
  NUM_CLASSES,
)
from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data.batches import Batch
from experiments.data.vocabularies import Vocabulary
from experiments.settings import settings
from experiments.training import compiled
from experiments.training.devices import flops_per_second

VOCAB_SIZE = 10_000


@dataclasses.dataclass(frozen=True)
class Size:
  """Sizes of a classifier, and of its batch.

  num_layers, num_heads, embed_dim and mlp_dim are those of config.model; a
  batch has `batch` texts of `length` tokens.
  """

  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  batch: int
  length: int


SIZES = {
  'default': Size(2, 4, 64, 128, batch=64, length=64),
  'medium': Size(8, 8, 512, 2048, batch=64, length=128),
  'large': Size(12, 16, 1024, 4096, batch=32, length=512),
}


def measure(values) -> list[dict]:
  """One row per model and step; ratios are to the first supported backend.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    UserError: no backend of --backends is supported here.
  """
  most, source = flops_per_second(jax.devices()[0])
  log(f'peak for MFU: {most / 1e12:.2f} TFLOP/s ({source})')
  if not peers.has_torch():
    log('not installed: pytorch')
  rows = []
  for name in values.models:
    rows += _of_size(name, most, values)
  return rows


def _of_size(name, most, values):
  size = SIZES[name]
  rng = np.random.default_rng(0)
  shape = (size.batch, size.length)
  tokens = rng.integers(VOCAB_SIZE, size=shape, dtype=np.int32)
  labels = rng.integers(NUM_CLASSES, size=size.batch, dtype=np.int32)
  functions, memory = {}, {}
  for backend in values.backends:
    wanted = _settings(size, backend)
    try:
      functions[backend], memory[backend], flops = _ours(wanted, tokens, labels)
    except UserError as error:
      reason = str(error)
      log(reason)
  if not functions:
    raise UserError(f'--backends = {values.backends}: {reason}')
  if peers.has_torch():
    for peer, is_compiled in peers.TORCH_STEPS.items():
      functions[peer] = peers.make_torch_encoder_step(
        size, tokens, labels, VOCAB_SIZE, is_compiled=is_compiled
      )
  seconds = alternate(functions, values.repetitions)
  base = next(iter(seconds.values()))
  if peers.has_torch():
    memory['pytorch'] = peers.torch_peak_mib()
  for step, times in seconds.items():
    row = {'model': name, 'step': step} | summary(times, base)
    row['mfu'] = round(1e3 * flops / row['median_ms'] / most, 3)
    yield row | {'memory_mib': memory.get(step, '')}


def _settings(size: Size, backend: str):
  config = app.load_config(app.DEFAULT_CONFIG)
  for name in ('num_layers', 'num_heads', 'embed_dim', 'mlp_dim'):
    config.model[name] = getattr(size, name)
  config.model.dtype = 'bfloat16'
  config.model.dropout_rate = DROPOUT_RATE
  config.model.encoder.attention.backend = backend
  config.optimizer.learning_rate = LEARNING_RATE
  return settings.from_config(config)


def _ours(wanted, tokens, labels):
  """(a training step, memory of its program in MiB, model FLOPs)."""
  size, length = tokens.shape
  ours = compiled.make(
    wanted, Vocabulary(VOCAB_SIZE), NUM_CLASSES, devices=jax.devices()[:1]
  )
  hparams = ours.hparams([wanted])
  state = ours.init(hparams)
  flops = ours.model_flops(tokens.shape)
  batch = jax.device_put(
    Batch(
      tokens,
      np.full(size, length, np.int32),
      labels,
      np.ones(size, np.float32),
    )
  )
  program = ours.train_step.lower(state, batch, hparams).compile()
  memory = program.memory_analysis()
  needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes
  box = [state]

  def step():
    box[0], metrics = program(box[0], batch, hparams)
    return metrics

  return step, round(needed / 2**20), flops
