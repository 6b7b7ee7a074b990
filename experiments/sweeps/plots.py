"""Pictures of a sweep: its settings, and the numbers that were swept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from experiments.sweeps.plan import describe
from selfattn.plots import COLOURS, MARKERS, style


def figure(table: list[dict], key: str, metric: str, overrides: list[str]):
  """The means against config.`key`, a curve for each setting of the others.

  Args:
    table: rows of results.grouped.
    metric: name of the axis.
    overrides: the keys that were swept, without the one of the repetitions.
  """
  from matplotlib.figure import Figure

  shown = Figure(figsize=(6.4, 4.2), layout='constrained')
  axes = shown.add_subplot()
  curves: dict[str, list[dict]] = {}
  others = [name for name in overrides if name != key]
  for entry in table:
    if entry.get('mean') is not None and key in entry:
      name = describe({k: entry[k] for k in others if k in entry})
      curves.setdefault(name, []).append(entry)
  for index, (name, entries) in enumerate(curves.items()):
    entries = sorted(entries, key=lambda entry: entry[key])
    axes.errorbar(
      [entry[key] for entry in entries],
      [entry['mean'] for entry in entries],
      [entry['half_width'] or 0 for entry in entries],
      label=name or None,
      color=COLOURS[index % len(COLOURS)],
      marker=MARKERS[index % len(MARKERS)],
      capsize=3,
    )
  values = [entry[key] for entry in table if key in entry]
  if min(values) > 0 and max(values) / min(values) >= 10:
    axes.set_xscale('log')
  axes.set_xlabel(key)
  axes.set_ylabel(f'{metric} (mean, 95% interval)')
  if len(curves) > 1:
    axes.legend(fontsize='small')
  return shown


def settings(table: list[dict], metric: str):
  """The mean of each setting with its interval, the best one on top."""
  from matplotlib.figure import Figure

  best_last = -1 if metric.endswith('loss') else 1
  entries = [entry for entry in table if entry.get('mean') is not None]
  entries.sort(key=lambda entry: best_last * entry['mean'])
  shown = Figure(figsize=(8.4, 1.2 + 0.28 * len(entries)), layout='constrained')
  axes = shown.add_subplot()
  axes.errorbar(
    [entry['mean'] for entry in entries],
    range(len(entries)),
    xerr=[entry['half_width'] or 0 for entry in entries],
    fmt='o',
    color=COLOURS[0],
    capsize=3,
  )
  axes.set_yticks(
    range(len(entries)),
    [entry['setting'] for entry in entries],
    fontsize=8,
    parse_math=False,
  )
  axes.set_xlabel(f'{metric} (mean, 95% interval)')
  axes.grid(axis='x', alpha=0.3)
  return shown


def curves(means: Mapping[str, Mapping[int, float]], ylabel: str):
  """A curve of means over steps for each setting.

  Args:
    means: by setting and step.
  """
  from matplotlib.figure import Figure

  height = max(4.2, 1.0 + 0.2 * len(means))
  shown = Figure(figsize=(8.4, height), layout='constrained')
  axes = shown.add_subplot()
  for index, (name, values) in enumerate(means.items()):
    axes.plot(list(values), list(values.values()), label=name, **style(index))
  axes.set_xlabel('updates')
  axes.set_ylabel(ylabel)
  axes.grid(alpha=0.3)
  axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  return shown


def swept_numbers(table: list[dict], keys: Iterable[str]) -> list[str]:
  """The keys that have several values, all of them numbers."""
  found = []
  for key in keys:
    # A setting that does not read a key has no value of it.
    values = {entry[key] for entry in table if key in entry}
    numeric = all(
      isinstance(value, int | float) and not isinstance(value, bool)
      for value in values
    )
    if numeric and len(values) > 1:
      found.append(key)
  return found


def write(workdir: str, table: list[dict], metric: str, keys) -> list[str]:
  """A PNG and an SVG for every swept number, and of all settings; names."""
  figures = {
    re.sub('[^a-z0-9]+', '_', key): figure(table, key, metric, list(keys))
    for key in swept_numbers(table, keys)
  }
  if any(entry.get('mean') is not None for entry in table):
    figures['settings'] = settings(table, metric)
  names = []
  for name, shown in figures.items():
    for kind in ('png', 'svg'):
      shown.savefig(os.path.join(workdir, f'{name}.{kind}'), dpi=150)
      names.append(f'{name}.{kind}')
  return names
