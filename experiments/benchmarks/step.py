"""A training step of several models, in several libraries.

The tutorial's classifier is one block of post-norm self-attention with 8 heads,
a feed-forward network four times as wide, mean pooling, dropout 0.1 and Adam,
at several shapes. The default config's classifier is measured on its longest
texts, and the language model of configs/language_model.py, with sinusoidal
positions, on windows of its bytes. MiniLM is the encoder of all-MiniLM-L6-v2,
with drawn weights, fine-tuned with the recipe of configs/minilm.py. On a GPU,
there is a language model of the size of GPT-2 small in bfloat16, too. Texts
have no padding.

`ours` is this package, `without dropout` the same at rate 0. `pytorch` is its
encoder layers, eager, with fused attention and a fused optimizer; on a GPU,
`pytorch, compiled` is a language model by torch.compile. `transformers` is the
same model in transformers, eager. `matmuls` is a lower bound: the time of the
matmuls of one step at the rate that this machine reaches on a large square one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, peers, summary
from experiments.benchmarks.peers import LEARNING_RATE, NUM_CLASSES
from experiments.command.config_files import DEFAULT_CONFIG, load_config
from experiments.command.log import log
from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.settings import open_models
from experiments.settings.settings import Settings, from_config
from experiments.training import compiled, cpu_devices
from selfattn import pretrained

# Sizes of the tutorial: (batch, length, vocabulary, width).
SHAPES = (
  (64, 32, 500, 64),
  (32, 50, 10_000, 256),
  (32, 128, 10_000, 256),
)
# MiniLM as its config.json describes it, and lengths of texts.
MINILM = {
  'model_type': 'bert', 'vocab_size': 30_522, 'hidden_size': 384,
  'intermediate_size': 1536, 'num_hidden_layers': 6, 'num_attention_heads': 12,
}  # fmt: skip
MINILM_LENGTHS = (16, 64)
# Vocabulary size and length, of the default data, of windows of bytes and of
# those of GPT-2.
_DEFAULT_DATA, _WINDOWS, _LARGE_WINDOWS = (73, 17), (258, 128), (50_257, 1024)
_LARGE = {
  'model.num_layers': 12, 'model.num_heads': 12, 'model.embed_dim': 768,
  'model.mlp_dim': 3072, 'model.dtype': 'bfloat16', 'train.batch_size': 8,
}  # fmt: skip
# Width of the square matmul that measures the peak rate of the machine.
_SQUARE, _SQUARE_OF_GPUS = 2048, 8192


def measure(values) -> list[dict]:
  """One row per model, size and library; ratios are to ours."""
  for name in ('torch', 'x_transformers', 'transformers'):
    if not peers.installed(name):
      log(f'not installed: {name}')
  rows = functools.partial(_rows, values.repetitions)
  measured = []
  for batch, length, vocab_size, width in SHAPES:
    measured += rows('tutorial', _tutorial(batch, width), vocab_size, length)
  default = load_config(DEFAULT_CONFIG)
  measured += rows('default config', default, *_DEFAULT_DATA)
  config = load_config('configs/language_model.py')
  config.model.position = 'sinusoidal'
  measured += rows('language model', config, *_WINDOWS)
  for length in MINILM_LENGTHS:
    sizes = MINILM['vocab_size'], length
    measured += rows('MiniLM', _minilm(), *sizes)
  if jax.default_backend() == 'gpu':
    config.update_from_flattened_dict(_LARGE)
    measured += rows('GPT-2 small', config, *_LARGE_WINDOWS)
  return measured


def _minilm():
  """The config of MiniLM's fine-tuning."""
  config: Any = load_config('configs/minilm.py')
  model = pretrained.ARCHITECTURES['bert'](pretrained.Config(MINILM))
  values = open_models.values_of(model) | {'data.max_length': 64}
  config.update_from_flattened_dict(values)
  config.data.source = 'word_order'
  return config


def _tutorial(batch: int, width: int):
  """The config of the tutorial's classifier."""
  config: Any = load_config(DEFAULT_CONFIG)
  config.update_from_flattened_dict(
    {
      'model.num_layers': 1,
      'model.num_heads': 8,
      'model.embed_dim': width,
      'model.mlp_dim': 4 * width,
      'model.dropout_rate': 0.1,
      'model.block': 'post(feed_forward=relu)',
      'optimizer.method': 'adam',
      'optimizer.learning_rate': LEARNING_RATE,
      'optimizer.schedule': 'constant',
      'optimizer.warmup_steps': 0,
      'optimizer.weight_decay': 0.0,
      'optimizer.clip_norm': 0.0,
      'train.batch_size': batch,
    }
  )
  return config


def _rows(
  repetitions: int, name: str, config, vocab_size: int, length: int
) -> list[dict]:
  settings = from_config(config)
  model, batch = settings.model, settings.train.batch_size
  width = _SQUARE_OF_GPUS if jax.default_backend() == 'gpu' else _SQUARE
  x = jax.random.normal(jax.random.key(0), (width, width), model.dtype)
  matmul = jax.jit(jnp.matmul).lower(x, x).compile()
  steps = _steps(config, settings, vocab_size, length)
  steps['matmuls'] = functools.partial(matmul, x, x)
  seconds = alternate(steps, repetitions)
  share = _flops(settings, vocab_size, length) / (2 * width**3)
  seconds['matmuls'] = [share * took for took in seconds['matmuls']]
  columns = {
    'model': name,
    'batch': batch,
    'length': length,
    'vocab_size': vocab_size,
    'width': model.embed_dim,
  }
  return [
    columns | {'step': step} | summary(times, seconds['ours'])
    for step, times in seconds.items()
  ]


def _steps(
  config, settings: Settings, vocab_size: int, length: int
) -> dict[str, Callable]:
  """The steps by name, of the libraries that are installed."""
  rng = np.random.default_rng(0)
  model, batch = settings.model, settings.train.batch_size
  is_causal = settings.task.entry.is_causal
  # A language model predicts one more token than it reads.
  shape = batch, length + is_causal
  tokens = rng.integers(vocab_size, size=shape, dtype=np.int32)
  labels = rng.integers(NUM_CLASSES, size=batch, dtype=np.int32)
  steps = {'ours': make_step(settings, tokens, labels, vocab_size)}
  if model.dropout_rate:
    config.model.dropout_rate = 0.0
    other = make_step(from_config(config), tokens, labels, vocab_size)
    steps['without dropout'] = other
  if config.model.head.startswith('mlp'):
    if peers.installed('transformers'):
      steps['transformers'] = peers.make_transformers_step(
        MINILM, tokens, labels
      )
    return steps
  if is_causal:
    tokens, labels = tokens[:, :-1], tokens[:, 1:]
  if peers.installed('torch'):
    make = functools.partial(
      peers.make_torch_step, model, vocab_size, tokens, labels
    )
    steps['pytorch'] = make()
    if is_causal and peers.set_up_torch() == 'cuda':
      steps['pytorch, compiled'] = make(is_compiled=True)
  if is_causal and peers.installed('x_transformers'):
    steps['x-transformers'] = peers.make_x_transformers_step(
      model, vocab_size, tokens, labels
    )
  return steps


def make_step(settings: Settings, tokens, labels, vocab_size: int) -> Callable:
  """A training step on one batch, without arguments."""
  facts = LabelFacts(tuple(map(str, range(NUM_CLASSES))))
  devices = jax.devices()
  count = 1
  if devices[0].platform == 'cpu':
    count = cpu_devices.paying(settings, tokens.size, len(devices))
  program = compiled.make(
    settings, Vocabulary(vocab_size), facts, devices=devices[:count]
  )
  hparams = program.hparams([settings])
  state = program.init(hparams)
  size, length = tokens.shape
  lengths, weights = np.full(size, length, np.int32), np.ones(size, np.float32)
  batch = Batch(tokens, lengths, labels, weights)

  def step():
    nonlocal state
    put = program.put_train([batch])
    state, metrics = program.train_step(state, put, hparams)
    return state, metrics

  return step


def _flops(settings: Settings, vocab_size: int, length: int) -> int:
  """FLOPs of the matmuls of one training step, two thirds of them backward."""
  # Four projections and two layers of the feed-forward network; scores and
  # weighted sums of values; the logits of each token of a language model.
  model = settings.model
  weights = 4 * model.embed_dim**2 + 2 * model.embed_dim * model.mlp_dim
  attention = 2 * length * model.embed_dim
  of_token = model.num_layers * (weights + attention)
  if settings.task.entry.is_causal:
    of_token += model.embed_dim * vocab_size
  return 3 * 2 * settings.train.batch_size * length * of_token
