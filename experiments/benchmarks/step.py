"""A training step of the tutorial's classifier, in several libraries.

One block of post-norm self-attention with 8 heads, a feed-forward network
four times as wide, mean pooling, dropout 0.1 and Adam; texts without padding.
`ours` is this package, `without dropout` the same at rate 0; the others compute
the same in PyTorch, eager and compiled, and with the layers of Flax and
nn.Dropout. `matmuls` is a lower bound: the time of the matmuls of one step at
the rate that this machine reaches on a large square one.
"""

from __future__ import annotations

import functools

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
    names = ('batch', 'length', 'vocab_size', 'width')
    sizes = dict(zip(names, shape, strict=True))
    functions = _functions(**sizes)
    seconds = alternate(functions, values.repetitions)
    share = flops(**sizes) / (2 * _SQUARE**3)
    seconds['matmuls'] = [share * took for took in seconds['matmuls']]
    rows += [
      sizes | {'step': name} | summary(times, seconds['ours'])
      for name, times in seconds.items()
    ]
  return rows


def _functions(batch, length, vocab_size, width):
  """The steps by name, of the libraries that are installed."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(vocab_size, size=(batch, length), dtype=np.int32)
  labels = rng.integers(NUM_CLASSES, size=batch, dtype=np.int32)
  task = (tokens, labels, vocab_size, width)
  x = jnp.ones((_SQUARE, _SQUARE))
  matmul = jax.jit(jnp.matmul).lower(x, x).compile()
  steps = {
    'ours': make_step(*task, DROPOUT_RATE),
    'without dropout': make_step(*task, 0.0),
    'flax layers': peers.make_flax_step(*task),
    'matmuls': functools.partial(matmul, x, x),
  }
  if peers.has_torch():
    for name, is_compiled in peers.TORCH_STEPS.items():
      steps[name] = peers.make_torch_step(*task, is_compiled=is_compiled)
  return steps


def make_step(tokens, labels, vocab_size, width, dropout_rate):
  """The training step of this package, as in experiments.train."""
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
  wanted = settings.from_config(config)
  program = compiled.make(
    wanted, vocab_size, NUM_CLASSES, devices=jax.devices()[:1]
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

  return step


def flops(batch, length, vocab_size, width) -> int:
  """FLOPs of the matmuls of one training step.

  Four projections, two layers of the feed-forward network, scores and weighted
  sums of values, each once forward and twice backward; 2 per multiply-add.
  """
  del vocab_size
  weights = 4 * width * width + 2 * width * 4 * width
  return 6 * batch * length * (weights + 2 * length * width)
