"""Measures alternatives side by side, in one run.

    bash scripts/run.sh experiments.benchmark --suite=attention
    bash scripts/run.sh experiments.benchmark --suite=attention \
        --length=1024 --positions=none,shaw --backends=reference,chunked

Machines are shared and noisy, so alternatives take turns, and what counts is
their ratio. The last line is one JSON object.

attention  memory and time of the gradient of one attention call by backend
           and position method; memory is what the compiled program needs
           beside its inputs and outputs
"""

from __future__ import annotations

import functools
import statistics
import time

import jax
import jax.numpy as jnp

from experiments import launch
from experiments.choices import UserError, one_of
from selfattn import positions
from selfattn.backends import BACKENDS, attend
from selfattn.kernels import why_not
from selfattn.positions import POSITIONS


def alternate(functions: dict, repetitions: int) -> dict[str, list[float]]:
  """Seconds of every call, by name; each function is called in turn.

  Args:
    functions: by name, without arguments; each returns arrays.
    repetitions: timed calls of each, after one that is not.
  """
  for function in functions.values():
    jax.block_until_ready(function())
  seconds = {name: [] for name in functions}
  for _ in range(repetitions):
    for name, function in functions.items():
      start = time.perf_counter()
      jax.block_until_ready(function())
      seconds[name].append(time.perf_counter() - start)
  return seconds


def attention(values) -> list[dict]:
  """One row for each method and each backend that can serve it."""
  shape = (values.batch, values.length, values.heads, values.head_dim)
  keys = jax.random.split(jax.random.key(0), 3)
  arrays = [jax.random.normal(key, shape) for key in keys]
  compiled, rows = {}, {}
  for name in values.positions:
    method = positions.make(
      {name: {}}, values.heads * values.head_dim, values.heads, False
    )
    params = method.init(jax.random.key(1))
    for backend in values.backends:
      reason = why_not(
        backend,
        platform=jax.default_backend(),
        dtype=jnp.float32,
        head_dim=values.head_dim,
        has_dropout=False,
        has_softcap=False,
        has_value=method.has_value,
      )
      if reason:
        raise UserError(f'--backends = {backend} cannot serve {name}: {reason}')
      program = compile_gradient(method, backend, arrays, params)
      key = f'{name}/{backend}'
      compiled[key] = functools.partial(program, *arrays, params)
      needed = program.memory_analysis().temp_size_in_bytes
      rows[key] = {
        'position': name,
        'backend': backend,
        'temporary_mib': round(needed / 2**20, 1),
      }
  seconds = alternate(compiled, values.repetitions)
  fastest = min(statistics.median(times) for times in seconds.values())
  for key, row in rows.items():
    median = statistics.median(seconds[key])
    row['median_ms'] = round(1e3 * median, 2)
    row['spread_ms'] = round(1e3 * (max(seconds[key]) - min(seconds[key])), 2)
    row['ratio'] = round(median / fastest, 2)
  return list(rows.values())


def compile_gradient(method, backend, arrays, params):
  """The gradient with respect to queries, keys, values and parameters."""

  def total(q, k, v, params):
    output, _ = attend(
      q, k, v, position=method, position_params=params, backend=backend
    )
    return (output**2).sum()

  gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))
  return gradient.lower(*arrays, params).compile()


SUITES = {'attention': attention}


def table(rows: list[dict]) -> str:
  """Columns as wide as their widest entry."""
  header = list(rows[0])
  lines = [header, *([str(row[name]) for name in header] for row in rows)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.rjust(width) for cell, width in zip(line, widths, strict=True)
    )
    for line in lines
  )


def _define(values) -> None:
  flags = launch.flags
  flags.DEFINE_enum(
    'suite',
    'attention',
    sorted(SUITES),
    'What is measured.',
    flag_values=values,
  )
  for name, default, text in (
    ('repetitions', 5, 'Timed calls of each alternative.'),
    ('batch', 1, 'B.'),
    ('length', 8192, 'L, tokens.'),
    ('heads', 4, 'H.'),
    ('head_dim', 32, 'K.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)
  for name, default, text in (
    ('positions', ['alibi'], 'Position methods.'),
    ('backends', ['chunked', 'xla'], 'Backends of attention.'),
  ):
    flags.DEFINE_list(name, default, text, flag_values=values)


def main(values) -> None:
  """Measures, prints."""
  for name in values.positions:
    one_of(name, POSITIONS, '--positions')
  for backend in values.backends:
    one_of(backend, BACKENDS, '--backends')
  device = jax.devices()[0]
  launch.log(
    f'backend {jax.default_backend()}, {device.device_kind}, '
    f'jax {jax.__version__}, {values.repetitions} repetitions'
  )
  rows = SUITES[values.suite](values)
  launch.log(table(rows))
  launch.print_result(
    {
      'suite': values.suite,
      'device': device.device_kind,
      'jax': jax.__version__,
      'rows': rows,
    }
  )


if __name__ == '__main__':
  launch.run(main, _define, __doc__)
