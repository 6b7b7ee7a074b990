"""Gradients of one causal attention call in bfloat16, by backend and length.

One row for each position method, length and implementation: --backends, and on
a GPU `sdpa` and `flex` of PyTorch, its scaled_dot_product_attention and its
FlexAttention, compiled. A call has 16,384 tokens, whatever the length of a
text. Ratios are to the first one that is run, timed alternately. Backends that
need more temporary memory than --memory_gib are not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, peers, summary, temporary_bytes
from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from selfattn.backends import attend
from selfattn.kernels import unsupported_reason
from selfattn.positions import POSITIONS, Position

METHODS = ('none', 'alibi')
TOKENS, NUM_HEADS, HEAD_DIM = 16_384, 16, 64
# Calls of one repetition, among which the device does not wait for the host.
_CALLS = 10


def measure(values) -> list[dict]:
  """One row per method, length and implementation.

  Raises:
    UserError: a length or a method has no such call, a backend does not support
      it, or none has the memory.
  """
  for name in values.positions:
    one_of(name, METHODS, '--positions')
  for length in map(int, values.lengths):
    if length > TOKENS:
      raise UserError(f'--lengths={length} must be at most {TOKENS}')
  rows = []
  for name in values.positions:
    for length in sorted(map(int, values.lengths)):
      rows += _rows(name, length, values)
  return rows


def _rows(name: str, length: int, values) -> list[dict]:
  calls = {
    kernel: functools.partial(_repeat, gradient)
    for kernel, gradient in _gradients(name, length, values).items()
  }
  if not calls:
    raise UserError(
      f'--memory_gib={values.memory_gib} is too little for --lengths={length}'
    )
  seconds = alternate(calls, values.repetitions)
  base = next(iter(seconds.values()))
  rows = [
    {'position': name, 'length': length, 'backend': kernel}
    | summary(
      [took / _CALLS for took in times], [took / _CALLS for took in base]
    )
    for kernel, times in seconds.items()
  ]
  for row in rows:
    log(' '.join(f'{key}={value}' for key, value in row.items()))
  return rows


def _repeat(gradient: Callable):
  arrays = None
  for _ in range(_CALLS):
    arrays = gradient()
  if arrays is None:
    peers.synchronize()
  return arrays


def _gradients(name: str, length: int, values) -> dict[str, Callable]:
  """Gradients by implementation, without arguments, not waited for."""
  method = POSITIONS[name](NUM_HEADS * HEAD_DIM, NUM_HEADS, True, vocab_size=1)
  shape = (TOKENS // length, length, NUM_HEADS, HEAD_DIM)
  gradients = {}
  for backend in values.backends:
    reason = unsupported_reason(
      backend,
      platform=jax.default_backend(),
      dtype=jnp.bfloat16,
      head_dim=HEAD_DIM,
      has_dropout=False,
      has_softcap=False,
      hooks=method.hooks,
    )
    if reason:
      raise UserError(f'--backends={backend} does not support {name}: {reason}')
    program, arrays = _compile(method, backend, shape)
    if temporary_bytes(program) <= values.memory_gib * 2**30:
      gradients[backend] = functools.partial(program, *arrays)
  # FlexAttention has gradients on a GPU alone.
  if peers.installed('torch') and peers.set_up_torch() == 'cuda':
    slopes = None
    if name == 'alibi':
      exponents = -8 * np.arange(1, NUM_HEADS + 1) / NUM_HEADS
      slopes = (2.0**exponents).astype(np.float32)
    size = (shape[0], NUM_HEADS, length, HEAD_DIM)
    for kernel in ('sdpa', 'flex'):
      gradients[kernel] = peers.make_torch_gradient(kernel, slopes, size)
  return gradients


def _compile(method: Position, backend: str, shape):
  """The gradient of queries, keys and values, compiled, and its arguments."""
  keys = jax.random.split(jax.random.key(0), 4)
  arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key in keys]

  def gradient(q, k, v, cotangent):
    def output(q, k, v):
      return attend(q, k, v, causal=True, position=method, backend=backend)[0]

    return jax.vjp(output, q, k, v)[1](cotangent)

  return jax.jit(gradient).lower(*arrays).compile(), arrays
