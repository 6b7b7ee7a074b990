"""One layer of each encoder, as Dive into Deep Learning, 11.6.2, compares them.

Operations, path lengths, time and memory, with exponents fitted to them beside
the theoretical O().
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, summary, temporary_bytes
from selfattn.attention import Attention
from selfattn.baselines import ConvolutionEncoder, RecurrentEncoder
from selfattn.linear import LinearAttention

NUM_HEADS = 4
# Of the layers that are compared: d, k, and the lengths at which they run.
WIDTH, KERNEL, LENGTHS = 64, 3, (256, 512, 1024, 2048, 4096)
# Tokens of a path, and those for which operations are counted: enough for the
# term with the highest power of n to dominate.
PATH = 65
_LONG = (32_768, 65_536, 131_072)
_WIDTH = 16  # where a width does not matter


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


# By the width k of a convolution. The LSTM reads from the first token on.
LAYERS: dict[str, Callable[[int], nn.Module]] = {
  'cnn': cnn,
  'rnn': lambda k: RecurrentEncoder(1, jnp.float32, bidirectional=False),
  'attention': lambda k: AttentionAlone(),
  'linear_attention': lambda k: AttentionAlone(layer=LinearAttention),
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
  modules = {name: LAYERS[name](k) for name in ('attention', 'rnn')}
  modules |= {f'cnn, {depth} layers': cnn(k, depth)}
  norms = {}
  for name, module in modules.items():
    x = jax.random.normal(jax.random.key(1), (1, n, _WIDTH))
    variables = _init(module, jax.random.key(0), x)

    def read(x, module=module, variables=variables):
      return _run(module, variables, x)[0, -1].sum()

    of_input = np.linalg.norm(jax.jit(jax.grad(read))(x)[0], axis=-1)
    norms[name] = of_input / of_input.max()
  return norms


def measure(values) -> list[dict]:
  """One row per layer: theoretical O() and measured exponents."""
  timed = speed(values.repetitions)
  return [
    _layer(name, [row for row in timed if row['layer'] == name])
    for name in LAYERS
  ]


def _layer(name: str, timed: list[dict]) -> dict:
  theory, n, d, k = THEORETICAL[name], _LONG[-1], WIDTH, KERNEL
  widths, kernels = [d, 2 * d, 4 * d], [k, 2 * k + 1, 4 * k + 3]
  counts = {
    'n': (_LONG, [operations(name, m, d, k) for m in _LONG]),
    'd': (widths, [operations(name, n, w, k) for w in widths]),
    'k': (kernels, [operations(name, n, d, w) for w in kernels]),
  }
  milliseconds = [row['median_ms'] for row in timed]
  memory = [row['temporary_kib'] for row in timed]
  return {
    'layer': name,
    'operations': f'O({theory["operations"]})',
    # Without the sign of a zero.
    **{
      f'operations ~ {of}^': round(slope(*counts[of]), 2) + 0.0 for of in counts
    },
    'sequential': f'O({theory["sequential"]})',
    'path': f'O({theory["path"]})',
    f'path of {PATH} tokens': path_length(name, PATH, k),
    'time ~ n^': round(slope(LENGTHS, milliseconds), 2),
    f'ms of {LENGTHS[-1]} tokens': milliseconds[-1],
    'memory ~ n^': round(slope(LENGTHS, memory), 2),
  }


def speed(repetitions: int) -> list[dict]:
  """One row per layer and length, of the forward pass of one text."""
  rows, d, k = [], WIDTH, KERNEL
  for n in LENGTHS:
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
