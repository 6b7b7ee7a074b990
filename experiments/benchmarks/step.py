"""A training step of two classifiers, in several libraries.

The tutorial's: one block of post-norm self-attention with 8 heads, a
feed-forward network four times as wide, mean pooling, dropout 0.1 and Adam, at
several shapes; and that of the default config, on the longest of its texts.
Texts have no padding. `ours` is this package, `without dropout` the same at
rate 0; the others compute the same in PyTorch, eager and compiled (for the
default config with its encoder layers, whose attention is fused), and with the
layers of Flax and nn.Dropout. `matmuls` is a lower bound: the time of the
matmuls of one step at the rate that this machine reaches on a large square one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, peers, summary
from experiments.benchmarks.peers import (
  DROPOUT_RATE,
  LEARNING_RATE,
  NUM_CLASSES,
  NUM_HEADS,
)
from experiments.command import app
from experiments.command.log import log
from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.settings import settings
from experiments.training import compiled


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


# (batch, length, vocabulary, width); sizes of the tutorial.
SHAPES = (
  (64, 32, 500, 64),
  (32, 50, 10_000, 256),
  (32, 128, 10_000, 256),
)
# Vocabulary size and longest text of the default data.
_DEFAULT_DATA = 73, 17
# Width of the square matmul that measures the peak rate of the machine.
_SQUARE = 2048


def measure(values) -> list[dict]:
  """One row per library; ratios are to ours.

  Args:
    values: flags of experiments.benchmark.
  """
  if not peers.has_torch():
    log('not installed: pytorch')
  rows = []
  for batch, length, vocab_size, width in SHAPES:
    size = Size(1, NUM_HEADS, width, 4 * width, batch, length)
    rows += _rows('tutorial', size, vocab_size, values.repetitions)
  default = settings.from_config(app.load_config(app.DEFAULT_CONFIG))
  model, batch = default.model, default.train.batch_size
  vocab_size, length = _DEFAULT_DATA
  size = Size(
    model.num_layers,
    model.num_heads,
    model.embed_dim,
    model.mlp_dim,
    batch,
    length,
  )
  return rows + _rows('default config', size, vocab_size, values.repetitions)


def _rows(model: str, size: Size, vocab_size: int, repetitions: int):
  rng = np.random.default_rng(0)
  shape = size.batch, size.length
  tokens = rng.integers(vocab_size, size=shape, dtype=np.int32)
  labels = rng.integers(NUM_CLASSES, size=size.batch, dtype=np.int32)
  make = _tutorial if model == 'tutorial' else _default
  x = jnp.ones((_SQUARE, _SQUARE))
  matmul = jax.jit(jnp.matmul).lower(x, x).compile()
  steps = make(size, tokens, labels, vocab_size)
  steps['matmuls'] = functools.partial(matmul, x, x)
  seconds = alternate(steps, repetitions)
  share = _flops(size) / (2 * _SQUARE**3)
  seconds['matmuls'] = [share * took for took in seconds['matmuls']]
  columns = {
    'model': model,
    'batch': size.batch,
    'length': size.length,
    'vocab_size': vocab_size,
    'width': size.embed_dim,
  }
  return [
    columns | {'step': name} | summary(times, seconds['ours'])
    for name, times in seconds.items()
  ]


def _tutorial(size: Size, tokens, labels, vocab_size) -> dict[str, Callable]:
  """The steps by name, of the libraries that are installed."""
  config: Any = app.load_config(app.DEFAULT_CONFIG)
  for name in ('num_layers', 'num_heads', 'embed_dim', 'mlp_dim'):
    config.model[name] = getattr(size, name)
  config.model.dropout_rate = DROPOUT_RATE
  config.model.block = 'post(feed_forward=relu)'
  config.optimizer.method = 'adam'
  config.optimizer.learning_rate = LEARNING_RATE
  config.optimizer.schedule = 'constant'
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  config.optimizer.clip_norm = 0.0
  task = tokens, labels, vocab_size
  steps = _ours(config, *task)
  steps['flax layers'] = peers.make_flax_step(*task, size.embed_dim)
  if peers.has_torch():
    for name, is_compiled in peers.TORCH_STEPS.items():
      steps[name] = peers.make_torch_step(
        *task, size.embed_dim, is_compiled=is_compiled
      )
  return steps


def _default(size: Size, tokens, labels, vocab_size) -> dict[str, Callable]:
  task = tokens, labels, vocab_size
  steps = _ours(app.load_config(app.DEFAULT_CONFIG), *task)
  if peers.has_torch():
    for name, is_compiled in peers.TORCH_STEPS.items():
      steps[name] = peers.make_torch_encoder_step(
        size, *task, is_compiled=is_compiled
      )
  return steps


def _ours(config, tokens, labels, vocab_size) -> dict[str, Callable]:
  """Training steps of a config, as in experiments.train."""
  steps = {}
  for name in ('ours', 'without dropout'):
    steps[name] = make_step(config, tokens, labels, vocab_size)
    config.model.dropout_rate = 0.0
  return steps


def make_step(config, tokens, labels, vocab_size) -> Callable:
  """A training step of a config on one batch, without arguments."""
  made = settings.from_config(config)
  facts = LabelFacts(tuple(map(str, range(NUM_CLASSES))))
  program = compiled.make(
    made, Vocabulary(vocab_size), facts, devices=jax.devices()[:1]
  )
  hparams = program.hparams([made])
  state = program.init(hparams)
  size, length = tokens.shape
  lengths, weights = np.full(size, length, np.int32), np.ones(size, np.float32)
  batch = Batch(tokens, lengths, labels, weights)

  def step():
    nonlocal state
    state, metrics = program.train_step(state, batch, hparams)
    return state, metrics

  return step


def _flops(size: Size) -> int:
  """FLOPs of the matmuls of one training step, twice of them backward."""
  # Four projections and two layers of the feed-forward network; scores and
  # weighted sums of values.
  weights = 4 * size.embed_dim**2 + 2 * size.embed_dim * size.mlp_dim
  attention = 2 * size.length * size.embed_dim
  tokens = size.num_layers * size.batch * size.length
  return 3 * 2 * tokens * (weights + attention)
