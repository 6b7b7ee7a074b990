"""Benchmark suites, and timing by interleaved repetitions.

A suite is a function from the flags of experiments.benchmark to rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from experiments.command import provenance
from experiments.learning import reports

_Name = TypeVar('_Name')


def origin() -> dict[str, Any]:
  """The origin of a result: command, commit and machine.

  Call it before measuring, which may take long enough for files to change.
  """
  return {
    'command': provenance.without_paths(provenance.command()),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'device': jax.devices()[0].device_kind,
    'jax': jax.__version__,
  }


def alternate(
  functions: Mapping[_Name, Callable[[], Any]], repetitions: int
) -> dict[_Name, list[float]]:
  """Seconds of every timed call, by name, with interleaved repetitions.

  Each repetition is two calls, of which the second is timed: the first one
  refills the caches, which the previous function has evicted.

  Args:
    functions: by name, without arguments; each returns arrays, or None if it
      blocks until its work is done.
    repetitions: number of repetitions of each, after a call that compiles.
  """
  for function in functions.values():
    jax.block_until_ready(function())
  seconds: dict[_Name, list[float]] = {name: [] for name in functions}
  for _ in range(repetitions):
    for name, function in functions.items():
      jax.block_until_ready(function())
      start = time.perf_counter()
      jax.block_until_ready(function())
      seconds[name].append(time.perf_counter() - start)
  return seconds


def summary(seconds: list[float], base: list[float]) -> dict[str, float]:
  """Median in milliseconds, and the ratio to the times of `base`.

  The ratio is the median of the ratios per repetition, so that a temporary
  slowdown of the machine affects both sides; `ratio_low` and `ratio_high` are
  its `interval`.
  """
  ratios = [one / other for one, other in zip(seconds, base, strict=True)]
  low, high = interval(ratios)
  return {
    'median_ms': round(1e3 * statistics.median(seconds), 3),
    'ratio': round(statistics.median(ratios), 3),
    'ratio_low': round(low, 3),
    'ratio_high': round(high, 3),
  }


def interval(values: list[float]) -> tuple[float, float]:
  """The 95% interval of a median, from order statistics (the sign test).

  With fewer than six values, the interval is the range, which covers the median
  less often.
  """
  # Late: --help does not wait for it.
  from scipy import stats

  if len(values) < 6:
    return min(values), max(values)
  return stats.quantile_test(values).confidence_interval(0.95)


def temporary_bytes(program: Any) -> int:
  """The size of the temporary buffers of a jax.stages.Compiled."""
  return program.memory_analysis().temp_size_in_bytes


def table(rows: list[dict]) -> str:
  """A table as text, with aligned columns."""
  header = list(dict.fromkeys(name for row in rows for name in row))
  cells = [[str(row.get(name, '')) for name in header] for row in rows]
  return reports.text(reports.Table(header, cells))
