"""One layer of each encoder, as Dive into Deep Learning, 11.6.2, compares them.

Operations and steps are counted on the program, so they are exact and take no
time; seconds and memory are those of the compiled forward pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks import alternate, summary
from experiments.learning import flops
from selfattn.attention import Attention
from selfattn.baselines import CELLS, ConvolutionEncoder, RecurrentEncoder

NUM_HEADS = 4
_WIDTH = 16  # where a width does not matter


class AttentionAlone(nn.Module):
  """Self-attention and nothing else, as an encoder.

  Attributes:
    num_heads: H.
  """

  num_heads: int = NUM_HEADS

  @nn.compact
  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    """(B, L, D) to (B, L, D)."""
    del dropout
    attention = Attention(
      x_BLD.shape[-1],
      self.num_heads,
      backend='reference',
      dtype=x_BLD.dtype,
    )
    return attention(x_BLD, query=tokens, dropout=attention_dropout)[0]


def cnn(k: int, num_layers: int = 1) -> nn.Module:
  """Convolutions of width k."""
  return ConvolutionEncoder(num_layers, jnp.float32, kernel_size=k)


def rnn(k: int) -> nn.Module:
  """An LSTM, from the first token to the last."""
  del k
  return RecurrentEncoder(1, jnp.float32, bidirectional=False)


def attention(k: int) -> nn.Module:
  """Attention of all tokens to all."""
  del k
  return AttentionAlone()


LAYERS: dict[str, Callable[[int], nn.Module]] = {
  'cnn': cnn,
  'rnn': rnn,
  'attention': attention,
}
# What the chapter states, as O().
STATED = {
  'cnn': {'operations': 'k n d^2', 'sequential': '1', 'path': 'n / k'},
  'rnn': {'operations': 'n d^2', 'sequential': 'n', 'path': 'n'},
  'attention': {'operations': 'n^2 d', 'sequential': '1', 'path': '1'},
}


def shapes(module: nn.Module, n: int, d: int):
  """(function of variables and tokens' vectors, their shapes)."""
  x = jax.ShapeDtypeStruct((1, n, d), jnp.float32)
  variables = jax.eval_shape(
    functools.partial(_init, module), jax.random.key(0), x
  )
  return functools.partial(_run, module), (variables, x)


def _init(module, key, x):
  return module.init(key, x, jnp.ones(x.shape[:2], bool))


def _run(module, variables, x):
  return module.apply(variables, x, jnp.ones(x.shape[:2], bool))


def operations(name: str, n: int, d: int, k: int) -> int:
  """Of the products of one layer, for one text; two a multiply-add."""
  function, args = shapes(LAYERS[name](k), n, d)
  return flops.count(function, *args)


def sequential(name: str, n: int, d: int, k: int) -> int:
  """Products of one layer that wait for one another."""
  function, args = shapes(LAYERS[name](k), n, d)
  return flops.depth(function, *args)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
  """Exponent p of values ~ sizes^p, by least squares of the logarithms."""
  return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def path_length(name: str, n: int, k: int, output: int | None = None) -> int:
  """Layers, or steps of the RNN, until an output feels its farthest input.

  The gradient of the output is carried back through one fresh layer, or one
  step of the cell, after another, until that input has some. How much that
  is, is another matter: see `reach`.

  Args:
    output: place of the output; None: the one at the end, which for an RNN is
      the last and has all before it.

  Raises:
    ValueError: 2 n of them are not enough.
  """
  back = _step_back(n) if name == 'rnn' else _layer_back(name, n, k)
  output = (n - 1 if name == 'rnn' else 0) if output is None else output
  far = 0 if name == 'rnn' or output > n // 2 else n - 1
  gradient = back(None, output)
  for count in range(1, 2 * n + 1):
    by_input, gradient = gradient
    if by_input[far] > 0:
      return count
    gradient = back(gradient, output)
  raise ValueError(f'{name}: no path from {far} to {output} in {2 * n} steps')


def _layer_back(name: str, n: int, k: int):
  """Carries a gradient of all places, (1, n, D), through one layer."""
  with jax.enable_x64(True):
    module = LAYERS[name](k)
    if name == 'cnn':
      module = module.clone(dtype=jnp.float64)
    x = jax.random.normal(jax.random.key(1), (1, n, _WIDTH))
    variables = _init(module, jax.random.key(0), x)

    @jax.jit
    def pull(y_bar):
      _, back = jax.vjp(functools.partial(_run, module, variables), x)
      return back(y_bar)[0]

  def back(y_bar, output):
    if y_bar is None:
      y_bar = np.zeros(x.shape)
      y_bar[0, output] = 1.0
    # At the front of the wave it shrinks with every layer: 64 bits.
    with jax.enable_x64(True):
      x_bar = np.asarray(pull(y_bar))
    return np.linalg.norm(x_bar[0], axis=-1), x_bar

  return back


def _step_back(n: int):
  """Carries a gradient of the state through one step of an LSTM."""
  cell = CELLS['lstm'](_WIDTH)
  x = jax.random.normal(jax.random.key(1), (n, _WIDTH))
  state = cell.initialize_carry(jax.random.key(2), (_WIDTH,))
  variables = cell.init(jax.random.key(0), state, x[0])

  @jax.jit
  def pull(state_bar, x):
    def step(state, x):
      return cell.apply(variables, state, x)[0]

    _, back = jax.vjp(step, state, x)
    state_bar, x_bar = back(state_bar)
    # It vanishes, but is nowhere zero.
    scale = 1 / optax.tree.norm(state_bar)
    return jax.tree.map(lambda leaf: leaf * scale, state_bar), x_bar

  def back(gradient, output):
    if gradient is None:
      gradient = jax.tree.map(jnp.ones_like, state), output
    state_bar, place = gradient
    state_bar, x_bar = pull(state_bar, x[place])
    by_input = np.zeros(n)
    by_input[place] = np.linalg.norm(x_bar)
    return by_input, (state_bar, place - 1)

  return back


def expected_path(name: str, n: int, k: int) -> int:
  """What the table's O() is exactly: 1, n, or (k - 1) / 2 places a layer."""
  if name == 'cnn':
    return math.ceil(2 * (n - 1) / (k - 1))
  return n if name == 'rnn' else 1


def reach(n: int, k: int, depth: int) -> dict[str, np.ndarray]:
  """How much the last output of fresh layers feels each input, (n,).

  Norms of gradients over the greatest of them.

  Args:
    depth: layers of the CNN.
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
  """A row a layer and length: time, memory, and operations as XLA has them."""
  rows = []
  for n in lengths:
    calls, found = {}, {}
    for name, make in LAYERS.items():
      module = make(k)
      function, (_, shape) = shapes(module, n, d)
      x = jax.random.normal(jax.random.key(1), shape.shape)
      variables = _init(module, jax.random.key(0), x)
      program = jax.jit(function).lower(variables, x).compile()
      calls[name] = functools.partial(program, variables, x)
      memory = program.memory_analysis().temp_size_in_bytes
      xla = program.cost_analysis()['flops']
      found[name] = {
        'layer': name,
        'n': n,
        'temporary_kib': round(memory / 2**10, 1),
        'xla_to_counted': float(f'{xla / operations(name, n, d, k):.3g}'),
      }
    seconds = alternate(calls, repetitions)
    rows += [
      row | summary(seconds[name], seconds['attention'])
      for name, row in found.items()
    ]
  return rows
