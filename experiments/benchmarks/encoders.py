"""One layer of each encoder, as Dive into Deep Learning, 11.6.2, compares them.

Operations and sequential operations are counted in the jaxpr, so they are exact
and nothing is run; seconds and memory are those of the compiled forward pass.
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
from selfattn.linear import LinearAttention

NUM_HEADS = 4
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
# The table of the chapter, as O(); of linear attention, with its projections.
THEORETICAL = {
  'cnn': {'operations': 'k n d^2', 'sequential': '1', 'path': 'n / k'},
  'rnn': {'operations': 'n d^2', 'sequential': 'n', 'path': 'n'},
  'attention': {'operations': 'n^2 d', 'sequential': '1', 'path': '1'},
  'linear_attention': {'operations': 'n d^2', 'sequential': '1', 'path': '1'},
}


def shapes(module: nn.Module, n: int, d: int):
  """(function of variables and token vectors, the shapes of both)."""
  x = jax.ShapeDtypeStruct((1, n, d), jnp.float32)
  variables = jax.eval_shape(
    functools.partial(_init, module), jax.random.key(0), x
  )
  return functools.partial(_run, module), (variables, x)


# One program: initialised op by op, a layer compiles one for each operation.
@functools.partial(jax.jit, static_argnums=0)
def _init(module, key, x):
  return module.init(key, x, jnp.ones(x.shape[:2], bool))


def _run(module, variables, x):
  return module.apply(variables, x, jnp.ones(x.shape[:2], bool))


def operations(name: str, n: int, d: int, k: int) -> int:
  """FLOPs of the matmuls of one layer, for one text; 2 per multiply-add."""
  function, args = shapes(LAYERS[name](k), n, d)
  return flops.count(function, *args)


def sequential(name: str, n: int, d: int, k: int) -> int:
  """Sequential operations: the longest chain of dependent matmuls."""
  function, args = shapes(LAYERS[name](k), n, d)
  return flops.depth(function, *args)


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
  """Exponent p of values ~ sizes^p, by least squares of the logarithms."""
  return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def path_length(name: str, n: int, k: int, output: int | None = None) -> int:
  """Number of layers, or RNN steps, between an output and its farthest input.

  The gradient of the output is propagated back through untrained layers, or
  steps of the cell, until it is nonzero at that input. For its magnitude, see
  `reach`.

  Args:
    output: position of the output; None: the last one for an RNN, else the
      first one.

  Raises:
    ValueError: the path is longer than 2 n.
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
  """Returns a function that backpropagates (1, n, D) through one layer."""
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
    # float64: the gradient at the farthest inputs shrinks with every layer.
    with jax.enable_x64(True):
      x_bar = np.asarray(pull(y_bar))
    return np.linalg.norm(x_bar[0], axis=-1), x_bar

  return back


def _step_back(n: int):
  """Returns a function that backpropagates through one step of an LSTM."""
  cell = CELLS['lstm'](_WIDTH)
  x = jax.random.normal(jax.random.key(1), (n, _WIDTH))
  state = cell.initialize_carry(jax.random.key(2), (_WIDTH,))
  variables = jax.jit(cell.init)(jax.random.key(0), state, x[0])

  @jax.jit
  def pull(state_bar, x):
    def step(state, x):
      return cell.apply(variables, state, x)[0]

    _, back = jax.vjp(step, state, x)
    state_bar, x_bar = back(state_bar)
    # Normalised, since it vanishes without ever being zero.
    scale = 1 / optax.tree.norm(state_bar)
    return jax.tree.map(lambda leaf: leaf * scale, state_bar), x_bar

  def back(gradient, output):
    if gradient is None:
      gradient = jax.tree.map(jnp.ones_like, state), output
    state_bar, position = gradient
    state_bar, x_bar = pull(state_bar, x[position])
    by_input = np.zeros(n)
    by_input[position] = np.linalg.norm(x_bar)
    return by_input, (state_bar, position - 1)

  return back


def expected_path(name: str, n: int, k: int) -> int:
  """Exact path length: 1, n, or for a CNN (k - 1) / 2 tokens per layer."""
  if name == 'cnn':
    return math.ceil(2 * (n - 1) / (k - 1))
  return n if name == 'rnn' else 1


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
  """One row per layer and length: time, memory, operations counted by XLA."""
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
