"""Memory and time of the gradient of one attention call, by length.

One row for each position method, backend and length. Memory is that of the
temporary buffers of the compiled program; rows above --memory_gib are not run.
The slope is that of log time over log length, from the previous length: 2 is
quadratic.
"""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from experiments.benchmarks import alternate, summary
from experiments.command.errors import UserError
from selfattn import positions
from selfattn.backends import attend
from selfattn.kernels import unsupported_reason
from selfattn.masks import Tokens
from selfattn.positions.contract import parts_with


def measure(values) -> list[dict]:
  """One row each; ratios are to the first backend, same method and length.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    UserError: a backend does not support a method.
  """
  for name, backend in itertools.product(values.positions, values.backends):
    method = _make(name, values)
    reason = unsupported_reason(
      backend,
      platform=jax.default_backend(),
      dtype=jnp.float32,
      head_dim=values.head_dim,
      has_dropout=False,
      has_softcap=False,
      hooks=method.hooks,
      rotated_dim=method.rotated_dim,
    )
    if reason:
      raise UserError(f'--backends={backend} does not support {name}: {reason}')
  rows, before = [], {}
  for name, length in itertools.product(values.positions, values.lengths):
    for row in _at(name, int(length), values):
      key = (name, row['backend'])
      row['slope'] = _slope(before.get(key), row)
      before[key] = row
      rows.append(row)
  return rows


def _make(name, values):
  width = values.heads * values.head_dim
  # No word is embedded here: one is as good as many.
  return positions.make({name: {}}, width, values.heads, False, vocab_size=1)


def _at(name, length, values):
  """One row per backend."""
  method = _make(name, values)
  params = method.init(jax.random.key(1))
  shape = (values.batch, length, values.heads, values.head_dim)
  keys = jax.random.split(jax.random.key(0), 3)
  arrays = [jax.random.normal(key, shape) for key in keys]
  compiled, needed = {}, {}
  for backend in values.backends:
    program = compile_gradient(method, backend, arrays, params)
    needed[backend] = program.memory_analysis().temp_size_in_bytes / 2**20
    if needed[backend] <= 1024 * values.memory_gib:
      compiled[backend] = functools.partial(program, *arrays, params)
  seconds = alternate(compiled, values.repetitions)
  for backend, mib in needed.items():
    row = {'position': name, 'length': length, 'backend': backend}
    row |= {'temporary_mib': round(mib, 1)}
    if backend in seconds:
      base = seconds.get(values.backends[0], seconds[backend])
      row |= summary(seconds[backend], base)
    yield row


def _slope(before, row):
  if not before or 'median_ms' not in before or 'median_ms' not in row:
    return ''
  times = row['median_ms'] / before['median_ms']
  lengths = row['length'] / before['length']
  return round(math.log(times) / math.log(lengths), 2)


def compile_gradient(method, backend, arrays, params):
  """The gradient with respect to queries, keys, values and parameters."""

  def total(q, k, v, params):
    # The input of a layer is as wide as its queries.
    rows, length = q.shape[:2]
    x, tokens = q.reshape(rows, length, -1), Tokens().with_defaults(length)
    state = {
      name: part.state(part_params, x, tokens)
      for name, part, part_params in parts_with(method, 'state', params)
    }
    output, _ = attend(
      q,
      k,
      v,
      query=tokens.replace(state=state or None),
      position=method,
      position_params=params,
      backend=backend,
    )
    return (output**2).sum()

  gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))
  return gradient.lower(*arrays, params).compile()
