"""A training step of several models, in several libraries.

The tutorial's classifier is one block of post-norm self-attention with 8 heads,
a feed-forward network four times as wide, mean pooling, dropout 0.1 and Adam,
at several shapes. The default config's classifier is measured on its longest
texts, and the language model of configs/language_model.py, with sinusoidal
positions, on windows of its bytes. On a GPU, there is a language model of the
size of GPT-2 small in bfloat16, too. Texts have no padding.

`ours` is this package, `without dropout` the same at rate 0. `pytorch` is its
encoder layers, eager, with fused attention and a fused optimizer; on a GPU,
`pytorch, compiled` is a language model by torch.compile. `matmuls` is a lower
bound: the time of the matmuls of one step at the rate that this machine reaches
on a large square one.
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
class Model:
  """The properties of a model that all libraries share.

  Attributes:
    name: the name of the model, in rows.
    is_pre_norm: whether blocks have their norm first, and gelu for relu.
    dropout_rate: of embeddings, branches and pooled vectors.
    is_causal: whether each next token is predicted, and not a class.
    dtype: of the computations, as in config.model.
  """

  name: str
  is_pre_norm: bool
  dropout_rate: float
  is_causal: bool
  dtype: str = 'float32'


@dataclasses.dataclass(frozen=True)
class Size:
  """Sizes of a model, as in config.model, and of its batch.

  A batch has `batch` texts of `length` tokens.
  """

  vocab_size: int
  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  batch: int
  length: int


TUTORIAL = Model('tutorial', False, DROPOUT_RATE, False)
DEFAULT = Model('default config', True, DROPOUT_RATE, False)
LANGUAGE_MODEL = Model('language model', True, 0.0, True)
LARGE = Model('GPT-2 small', True, 0.0, True, 'bfloat16')
# Sizes of the tutorial: (batch, length, vocabulary, width).
SHAPES = (
  (64, 32, 500, 64),
  (32, 50, 10_000, 256),
  (32, 128, 10_000, 256),
)
# Vocabulary size and longest text, of the default data and of windows.
_DEFAULT_DATA = 73, 17
_WINDOWS = 259, 128
_LARGE_SIZE = Size(50_257, 12, 12, 768, 3072, 8, 1024)
# Width of the square matmul that measures the peak rate of the machine.
_SQUARE, _SQUARE_OF_GPUS = 2048, 8192


def measure(values) -> list[dict]:
  """One row per model, size and library; ratios are to ours.

  Args:
    values: flags of experiments.benchmark.
  """
  for name in ('torch', 'x_transformers'):
    if not peers.installed(name):
      log(f'not installed: {name}')
  rows = []
  for batch, length, vocab_size, width in SHAPES:
    size = Size(vocab_size, 1, NUM_HEADS, width, 4 * width, batch, length)
    rows += _rows(TUTORIAL, _tutorial(size), size, values.repetitions)
  default = app.load_config(app.DEFAULT_CONFIG)
  language_model = app.load_config('configs/language_model.py')
  language_model.model.position = 'sinusoidal'
  for model, config, data in (
    (DEFAULT, default, _DEFAULT_DATA),
    (LANGUAGE_MODEL, language_model, _WINDOWS),
  ):
    rows += _rows(model, config, _size(config, *data), values.repetitions)
  if jax.default_backend() == 'gpu':
    _set_sizes(language_model, _LARGE_SIZE)
    language_model.model.dtype = LARGE.dtype
    rows += _rows(LARGE, language_model, _LARGE_SIZE, values.repetitions)
  return rows


def _size(config, vocab_size: int, length: int) -> Size:
  model = config.model
  return Size(
    vocab_size,
    model.num_layers,
    model.num_heads,
    model.embed_dim,
    model.mlp_dim,
    config.train.batch_size,
    length,
  )


def _set_sizes(config, size: Size) -> None:
  for name in ('num_layers', 'num_heads', 'embed_dim', 'mlp_dim'):
    config.model[name] = getattr(size, name)


def _tutorial(size: Size):
  """The config of the tutorial's classifier."""
  config: Any = app.load_config(app.DEFAULT_CONFIG)
  _set_sizes(config, size)
  config.model.dropout_rate = DROPOUT_RATE
  config.model.block = 'post(feed_forward=relu)'
  config.optimizer.method = 'adam'
  config.optimizer.learning_rate = LEARNING_RATE
  config.optimizer.schedule = 'constant'
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay = 0.0
  config.optimizer.clip_norm = 0.0
  return config


def _rows(model: Model, config, size: Size, repetitions: int) -> list[dict]:
  width = _SQUARE_OF_GPUS if jax.default_backend() == 'gpu' else _SQUARE
  x = jax.random.normal(jax.random.key(0), (width, width), model.dtype)
  matmul = jax.jit(jnp.matmul).lower(x, x).compile()
  steps = _steps(model, config, size)
  steps['matmuls'] = functools.partial(matmul, x, x)
  seconds = alternate(steps, repetitions)
  share = _flops(model, size) / (2 * width**3)
  seconds['matmuls'] = [share * took for took in seconds['matmuls']]
  columns = {
    'model': model.name,
    'batch': size.batch,
    'length': size.length,
    'vocab_size': size.vocab_size,
    'width': size.embed_dim,
  }
  return [
    columns | {'step': name} | summary(times, seconds['ours'])
    for name, times in seconds.items()
  ]


def _steps(model: Model, config, size: Size) -> dict[str, Callable]:
  """The steps by name, of the libraries that are installed."""
  rng = np.random.default_rng(0)
  # A language model predicts one more token than it reads.
  shape = size.batch, size.length + model.is_causal
  tokens = rng.integers(size.vocab_size, size=shape, dtype=np.int32)
  labels = rng.integers(NUM_CLASSES, size=size.batch, dtype=np.int32)
  steps = {'ours': make_step(config, tokens, labels, size.vocab_size)}
  if model.dropout_rate:
    config.model.dropout_rate = 0.0
    other = make_step(config, tokens, labels, size.vocab_size)
    steps['without dropout'] = other
  if model.is_causal:
    tokens, labels = tokens[:, :-1], tokens[:, 1:]
  if peers.installed('torch'):
    make = functools.partial(peers.make_torch_step, model, size, tokens, labels)
    steps['pytorch'] = make()
    if model.is_causal and peers.set_up_torch() == 'cuda':
      steps['pytorch, compiled'] = make(is_compiled=True)
  if model.is_causal and peers.installed('x_transformers'):
    steps['x-transformers'] = peers.make_x_transformers_step(
      size, tokens, labels, model.dtype
    )
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


def _flops(model: Model, size: Size) -> int:
  """FLOPs of the matmuls of one training step, two thirds of them backward."""
  # Four projections and two layers of the feed-forward network; scores and
  # weighted sums of values; the logits of each token of a language model.
  weights = 4 * size.embed_dim**2 + 2 * size.embed_dim * size.mlp_dim
  attention = 2 * size.length * size.embed_dim
  of_token = size.num_layers * (weights + attention)
  if model.is_causal:
    of_token += size.embed_dim * size.vocab_size
  return 3 * 2 * size.batch * size.length * of_token
