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

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, peers, summary
from experiments.benchmarks.models import Size
from experiments.benchmarks.peers import (
  DROPOUT_RATE,
  LEARNING_RATE,
  NUM_CLASSES,
  NUM_HEADS,
)
from experiments.benchmarks.startup import DEFAULT_DATA
from experiments.command import app
from experiments.command.log import log
from experiments.data.batches import Batch
from experiments.data.vocabularies import Vocabulary
from experiments.settings import settings
from experiments.training import compiled

# (batch, length, vocabulary, width); sizes of the tutorial.
SHAPES = (
  (64, 32, 500, 64),
  (32, 50, 10_000, 256),
  (32, 128, 10_000, 256),
)
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
  for shape in SHAPES:
    size = Size(1, NUM_HEADS, shape[-1], 4 * shape[-1], *shape[:2])
    rows += _rows('tutorial', size, shape[2], values.repetitions)
  config = app.load_config(app.DEFAULT_CONFIG)
  vocab_size, length = DEFAULT_DATA
  size = size_of(config, length)
  return rows + _rows('default config', size, vocab_size, values.repetitions)


def size_of(config, length: int) -> Size:
  """The sizes of the model of a config, with texts of this length."""
  names = 'num_layers', 'num_heads', 'embed_dim', 'mlp_dim'
  sizes = (config.model[name] for name in names)
  return Size(*sizes, config.train.batch_size, length)


def texts(size: Size, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Random tokens and labels of a batch."""
  rng = np.random.default_rng(0)
  shape = (size.batch, size.length)
  tokens = rng.integers(vocab_size, size=shape, dtype=np.int32)
  return tokens, rng.integers(NUM_CLASSES, size=size.batch, dtype=np.int32)


def _rows(model: str, size: Size, vocab_size: int, repetitions: int):
  tokens, labels = texts(size, vocab_size)
  is_tutorial = model == 'tutorial'
  make = _tutorial if is_tutorial else _default
  matmul, flops_of_matmul = large_matmul()
  seconds = alternate(
    make(size, tokens, labels, vocab_size) | {'matmuls': matmul}, repetitions
  )
  share = flops(size) / flops_of_matmul
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
  task = (tokens, labels, vocab_size, size.embed_dim)
  steps = {
    'ours': make_step(*task, DROPOUT_RATE),
    'without dropout': make_step(*task, 0.0),
    'flax layers': peers.make_flax_step(*task),
  }
  if peers.has_torch():
    for name, is_compiled in peers.TORCH_STEPS.items():
      steps[name] = peers.make_torch_step(*task, is_compiled=is_compiled)
  return steps


def _default(size: Size, tokens, labels, vocab_size) -> dict[str, Callable]:
  config = app.load_config(app.DEFAULT_CONFIG)
  steps = {}
  for name in ('ours', 'without dropout'):
    steps[name], _ = step_of(config, tokens, labels, vocab_size)
    config.model.dropout_rate = 0.0
  if peers.has_torch():
    for name, is_compiled in peers.TORCH_STEPS.items():
      steps[name] = peers.make_torch_encoder_step(
        size,
        tokens,
        labels,
        vocab_size,
        is_compiled=is_compiled,
        dtype=config.model.dtype,
      )
  return steps


def make_step(tokens, labels, vocab_size, width, dropout_rate):
  """The training step of the tutorial's classifier in this package."""
  config = app.load_config(app.DEFAULT_CONFIG)
  config.model.num_layers = 1
  config.model.num_heads = NUM_HEADS
  config.model.embed_dim = width
  config.model.mlp_dim = 4 * width
  config.model.dropout_rate = dropout_rate
  config.model.encoder.attention.norm = 'post'
  config.model.encoder.attention.activation = 'relu'
  config.optimizer.name = 'adam'
  config.optimizer.learning_rate = LEARNING_RATE
  config.optimizer.schedule = 'constant'
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  config.optimizer.clip_norm = 0.0
  return step_of(config, tokens, labels, vocab_size)[0]


def step_of(config, tokens, labels, vocab_size) -> tuple[Callable, Callable]:
  """A training step of a config, as in experiments.train.

  Also a function that returns its compiled program.
  """
  wanted = settings.from_config(config)
  program = compiled.make(
    wanted, Vocabulary(vocab_size), NUM_CLASSES, devices=jax.devices()[:1]
  )
  hparams = program.hparams([wanted])
  state = program.init(hparams)
  size, length = tokens.shape
  batch = Batch(
    tokens,
    np.full(size, length, np.int32),
    labels,
    np.ones(size, np.float32),
  )

  def step():
    nonlocal state
    state, metrics = program.train_step(state, batch, hparams)
    return state, metrics

  def compile_it():
    # Shapes alone: each step donates its state.
    shapes = program.template, batch, hparams
    return program.train_step.lower(*shapes).compile()

  return step, compile_it


def large_matmul() -> tuple[Callable, int]:
  """A compiled matmul that reaches the peak of the machine, and its FLOPs."""
  x = jnp.ones((_SQUARE, _SQUARE))
  matmul = jax.jit(jnp.matmul).lower(x, x).compile()
  return functools.partial(matmul, x, x), 2 * _SQUARE**3


def flops(size: Size) -> int:
  """FLOPs of the matmuls of one training step, twice of them backward."""
  return 3 * (flops_of_weights(size) + flops_of_attention(size))


def flops_of_weights(size: Size) -> int:
  """FLOPs forward of four projections and two layers of the feed-forward."""
  weights = 4 * size.embed_dim**2 + 2 * size.embed_dim * size.mlp_dim
  return 2 * size.num_layers * size.batch * size.length * weights


def flops_of_attention(size: Size) -> int:
  """FLOPs forward of scores and weighted sums of values."""
  of_layer = 2 * size.batch * size.length**2 * size.embed_dim
  return 2 * size.num_layers * of_layer
