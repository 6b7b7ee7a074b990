"""One layer of each encoder, as Dive into Deep Learning, 11.6.2, compares them.

And the tutorial's two classifiers, with an LSTM and with self-attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import (
  alternate,
  peers,
  summary,
  temporary_bytes,
)
from experiments.training import build
from selfattn.attention import Attention
from selfattn.baselines import ConvolutionEncoder, RecurrentEncoder
from selfattn.classifier import TextClassifier
from selfattn.linear import LinearAttention

NUM_HEADS = 4
_WIDTH = 16  # where a width does not matter
# The tutorial's "Performance Comparison with RNN".
_BATCH, _LENGTH, _VOCAB_SIZE, _CLASSIFIER_WIDTH = 32, 100, 10_000, 256


class AttentionAlone(nn.Module):
  """An encoder of a single self-attention layer.

  Attributes:
    num_heads: number of heads H.
    layer: makes the layer, from embed_dim, num_heads and dtype.
  """

  num_heads: int = NUM_HEADS
  layer: Callable[..., Attention] = functools.partial(
    Attention, backend='reference'
  )

  @nn.compact
  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    """(B, L, D) to (B, L, D)."""
    del dropout
    attention = self.layer(x_BLD.shape[-1], self.num_heads, dtype=x_BLD.dtype)
    return attention(x_BLD, query_tokens=tokens, dropout=attention_dropout)[0]


def cnn(k: int, num_layers: int = 1) -> nn.Module:
  """Convolutions of width k."""
  return ConvolutionEncoder(num_layers, jnp.float32, kernel_size=k)


def rnn(k: int) -> nn.Module:
  """An LSTM, from the first token to the last."""
  del k
  return RecurrentEncoder(1, jnp.float32, bidirectional=False)


def attention(k: int) -> nn.Module:
  """Self-attention without a window."""
  del k
  return AttentionAlone()


def linear_attention(k: int) -> nn.Module:
  """Linear attention to all keys."""
  del k
  return AttentionAlone(layer=LinearAttention)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
  'cnn': cnn,
  'rnn': rnn,
  'attention': attention,
  'linear_attention': linear_attention,
}
# The complexities of the chapter, as O(); linear attention has projections.
THEORETICAL = {
  'cnn': {'operations': 'k n d^2', 'sequential': '1', 'path': 'n / k'},
  'rnn': {'operations': 'n d^2', 'sequential': 'n', 'path': 'n'},
  'attention': {'operations': 'n^2 d', 'sequential': '1', 'path': '1'},
  'linear_attention': {'operations': 'n d^2', 'sequential': '1', 'path': '1'},
}


# Without jit, initialisation compiles one program for each operation.
@functools.partial(jax.jit, static_argnums=0)
def _init(module, key, x):
  return module.init(key, x, jnp.ones(x.shape[:2], bool))


@functools.partial(jax.jit, static_argnums=0)
def _run(module, variables, x):
  return module.apply(variables, x, jnp.ones(x.shape[:2], bool))


def operations(name: str, n: int, d: int, k: int) -> float:
  """FLOPs of one layer for one text, as XLA counts them; nothing is run."""
  # XLA counts the body of a loop once, so it counts one step of the LSTM.
  length, steps = (1, n) if name == 'rnn' else (n, 1)
  x = jax.ShapeDtypeStruct((1, length, d), jnp.float32)
  module = LAYERS[name](k)
  variables = jax.eval_shape(
    functools.partial(_init, module), jax.random.key(0), x
  )
  cost: Any = _run.lower(module, variables, x).cost_analysis()
  return steps * cost['flops']


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
  """Exponent p of values ~ sizes^p, by least squares of the logarithms."""
  return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def connections(name: str, n: int, k: int) -> np.ndarray:
  """Whether each output of one layer depends on each input, (n, n).

  An output depends on an input if its gradient in the untrained layer is not 0.
  """
  module = LAYERS[name](k)
  x, mix = (
    jax.random.normal(jax.random.key(1), shape)
    for shape in ((1, n, _WIDTH), (_WIDTH,))
  )
  variables = _init(module, jax.random.key(0), x)
  # A random mixture of the channels, one of which may be off.
  slopes = jax.jacobian(lambda x: _run(module, variables, x)[0] @ mix)(x)
  return np.any(np.asarray(slopes) != 0, axis=(1, 3))


def path_length(name: str, n: int, k: int) -> int:
  """Number of layers, or RNN steps, between the first and the last token."""
  if name == 'rnn':
    return n
  one_layer = reached = connections(name, n, k)
  count = 1
  while not reached[0, -1]:
    reached, count = reached @ one_layer, count + 1
  return count


def reach(n: int, k: int, depth: int) -> dict[str, np.ndarray]:
  """Gradient norms of the last output by input, of untrained layers, (n,).

  Relative to the greatest norm.

  Args:
    depth: number of layers of the CNN.
  """
  modules = {'attention': attention(k), 'rnn': rnn(k)}
  modules |= {f'cnn, {depth} layers': cnn(k, depth)}
  found = {}
  for name, module in modules.items():
    x = jax.random.normal(jax.random.key(1), (1, n, _WIDTH))
    variables = _init(module, jax.random.key(0), x)

    def read(x, module=module, variables=variables):
      return _run(module, variables, x)[0, -1].sum()

    norms = np.linalg.norm(jax.jit(jax.grad(read))(x)[0], axis=-1)
    found[name] = norms / norms.max()
  return found


def speed(
  lengths: Sequence[int], d: int, k: int, repetitions: int
) -> list[dict]:
  """One row per layer and length, of the forward pass of one text."""
  rows = []
  for n in lengths:
    calls, memory = {}, {}
    for name, make in LAYERS.items():
      module = make(k)
      x = jax.random.normal(jax.random.key(1), (1, n, d))
      variables = _init(module, jax.random.key(0), x)
      program = _run.lower(module, variables, x).compile()
      calls[name] = functools.partial(program, variables, x)
      memory[name] = temporary_bytes(program)
    seconds = alternate(calls, repetitions)
    rows += [
      {
        'layer': name,
        'n': n,
        'operations': operations(name, n, d, k),
        'temporary_kib': round(memory[name] / 2**10, 1),
      }
      | summary(seconds[name], seconds['attention'])
      for name in LAYERS
    ]
  return rows


def classifiers(repetitions: int) -> list[dict]:
  """The tutorial's two classifiers: parameters, forward time, gradient time."""
  tokens = jax.random.randint(
    jax.random.key(0), (_BATCH, _LENGTH), 0, _VOCAB_SIZE
  )
  padding_mask = jnp.ones(tokens.shape, bool)
  rows, calls = [], {}
  for name, encoder in (
    ('lstm', rnn(0)),
    ('attention', AttentionAlone(peers.NUM_HEADS)),
  ):
    model = TextClassifier(
      _VOCAB_SIZE, peers.NUM_CLASSES, _CLASSIFIER_WIDTH, encoder
    )
    params = jax.jit(model.init)(jax.random.key(1), tokens, padding_mask)

    def predict(params, model=model):
      return model.apply(params, tokens, padding_mask)

    def loss(params, predict=predict):
      return (predict(params) ** 2).sum()

    calls[name, 'prediction'] = functools.partial(jax.jit(predict), params)
    calls[name, 'gradient'] = functools.partial(jax.jit(jax.grad(loss)), params)
    rows.append(
      {'classifier': name, 'parameters': build.count_parameters(params)}
    )
  seconds = alternate(calls, repetitions)
  for row in rows:
    for what in ('prediction', 'gradient'):
      times = seconds[row['classifier'], what]
      timed = summary(times, seconds['attention', what])
      row |= {f'{what}_ms': timed['median_ms'], f'{what}_ratio': timed['ratio']}
  return rows
