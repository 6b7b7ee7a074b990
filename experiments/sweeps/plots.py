"""Figures of a sweep: settings, and scores against swept hyperparameters."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.sweeps import names
from experiments.sweeps.comparison import SPLITS, Comparison
from experiments.sweeps.plan import Spec
from experiments.workdir import workdir as workdir_lib
from selfattn.plots import COLOURS, MARKERS, style

# Settings or curves that a figure can show, and that still can be told apart.
MOST = 24


def figure(compared: Comparison, key: str, keys: Iterable[str]):
  """Means on validation against config.`key`, a numeric hyperparameter.

  Args:
    keys: all swept keys except those of repetitions; one curve per setting of
      the others.
  """
  lines = {
    name: [
      (entry[key], entry['validation'])
      for entry in sorted(entries, key=lambda entry: entry[key])
    ]
    for name, entries in by_others(compared, key, keys).items()
  }
  shown, axes = _curves(
    lines, key, f'{compared.metric} on validation (mean, 95% interval)'
  )
  if is_logarithmic(entry[key] for entry in compared.table):
    axes.set_xscale('log')
  return shown


def by_others(
  compared: Comparison, key: str, keys: Iterable[str]
) -> dict[str, list[dict]]:
  """Settings that are done, by their name without one of the keys."""
  done = _done(compared)
  others = [other for other in keys if other != key]
  named = names.of(
    [{other: entry[other] for other in others} for entry in done]
  )
  groups: dict[str, list[dict]] = {}
  for name, entry in zip(named, done, strict=True):
    groups.setdefault(name, []).append(entry)
  return groups


def _done(compared: Comparison) -> list[dict]:
  return [entry for entry in compared.table if entry['n']]


def against(compared: Comparison, keys: list[str]) -> dict:
  """Figures of the metric against numeric hyperparameters, by their keys.

  Args:
    keys: all swept keys except those of repetitions.
  """
  numeric = numeric_keys(compared.table, keys)
  return {key: figure(compared, key, keys) for key in numeric}


def settings(compared: Comparison):
  """Means and intervals of each setting, the best on top."""
  done = _done(compared)
  entries = done[:MOST][::-1]
  shown, axes = _figure(8.4, 1.4 + 0.28 * len(entries))
  for index, split in enumerate(SPLITS):
    axes.errorbar(
      [entry[split]['mean'] for entry in entries],
      # Splits are offset, so that they do not overlap.
      [row - 0.2 * index for row in range(len(entries))],
      xerr=[entry[split]['half_width'] or 0 for entry in entries],
      fmt=MARKERS[index],
      label=split,
      color=COLOURS[index],
      capsize=3,
    )
  axes.set_yticks(
    range(len(entries)),
    [entry['setting'] for entry in entries],
    fontsize=8,
    parse_math=False,
  )
  _say_best(axes, len(done))
  axes.set_xlabel(f'{compared.metric} (mean, 95% interval)')
  axes.grid(axis='x', alpha=0.3)
  axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  return shown


def by_length(compared: Comparison):
  """Bits per byte on test by length of the window, a curve per setting."""
  lines = {
    entry['setting']: [(int(n), s) for n, s in entry['by_length'].items()]
    for entry in compared.table
    if 'by_length' in entry
  }
  shown, axes = _curves(
    lines, 'tokens of the window', 'bits per byte on test (mean, 95% interval)'
  )
  axes.set_xscale('log', base=2)
  return shown


def _curves(
  lines: Mapping[str, Sequence[tuple[float, Mapping]]], xlabel: str, ylabel: str
) -> tuple[Any, Any]:
  """A figure, and its axes, of the first settings.

  Args:
    lines: pairs of a number and a score, as of comparison.interval, by setting.
  """
  shown, axes = _figure(8.4, max(4.2, 1.0 + 0.2 * min(len(lines), MOST)))
  for index, (name, points) in enumerate(list(lines.items())[:MOST]):
    axes.errorbar(
      [x for x, _ in points],
      [score['mean'] for _, score in points],
      [score.get('half_width') or 0 for _, score in points],
      label=name,
      **style(index),
    )
  _say_best(axes, len(lines))
  axes.set_xlabel(xlabel)
  axes.set_ylabel(ylabel)
  axes.grid(alpha=0.3)
  if len(lines) > 1:
    axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  return shown, axes


def _figure(width: float, height: float) -> tuple[Any, Any]:
  """A figure of one plot, in inches, and its axes."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout='constrained')
  return figure, figure.add_subplot()


def _say_best(axes, count: int) -> None:
  if count > MOST:
    axes.set_title(f'the best {MOST} of {count} settings', fontsize=9)


def is_logarithmic(values: Iterable[float]) -> bool:
  """Whether they reach over a factor of ten, or grow by factors, as 1, 2, 4."""
  low, *others = sorted(set(values))
  if low <= 0 or not others:
    return False
  pairs = list(itertools.pairwise([low, *others]))
  steps = [b - a for a, b in pairs]
  factors = [math.log(b / a) for a, b in pairs]
  is_geometric = max(factors) / min(factors) < max(steps) / min(steps)
  return others[-1] / low >= 10 or is_geometric


def numeric_keys(table: list[dict], keys: Iterable[str]) -> list[str]:
  """The keys with several values, all of them numeric."""
  numeric = []
  for key in keys:
    values = [entry[key] for entry in table]
    is_numeric = all(type(value) in (int, float) for value in values)
    if is_numeric and len(set(values)) > 1:
      numeric.append(key)
  return numeric


def of_sweep(compared: Comparison, specs: list[Spec]) -> dict:
  """All figures by name: `settings`, `by_length`, and those of `against`."""
  of_settings = {'settings': settings(compared)} if _done(compared) else {}
  if any('by_length' in entry for entry in compared.table):
    of_settings['by_length'] = by_length(compared)
  return of_settings | against(compared, names.swept(specs, compared.over))


def write(workdir: str, compared: Comparison, specs: list[Spec]) -> None:
  """Writes a PNG per figure of the sweep."""
  for name, shown in of_sweep(compared, specs).items():
    stem = re.sub('[^a-z0-9]+', '_', name)
    path = os.path.join(workdir, f'{stem}.png')
    workdir_lib.write_figure(path, shown, dpi=150)
