"""Pictures of a sweep: the metric against each number that was swept."""

from __future__ import annotations

import os
import re

from experiments.sweeps.plan import describe

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ('#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00')
_MARKERS = 'osD^vP'


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
    if entry.get('mean') is not None:
      name = describe({k: entry[k] for k in others if k in entry})
      curves.setdefault(name, []).append(entry)
  for index, (name, entries) in enumerate(curves.items()):
    entries = sorted(entries, key=lambda entry: entry[key])
    axes.errorbar(
      [entry[key] for entry in entries],
      [entry['mean'] for entry in entries],
      [entry['half_width'] or 0 for entry in entries],
      label=name or None,
      color=_COLOURS[index % len(_COLOURS)],
      marker=_MARKERS[index % len(_MARKERS)],
      capsize=3,
    )
  values = [entry[key] for entry in table]
  if min(values) > 0 and max(values) / min(values) >= 10:
    axes.set_xscale('log')
  axes.set_xlabel(key)
  axes.set_ylabel(f'{metric} (mean, 95% interval)')
  if len(curves) > 1:
    axes.legend(fontsize='small')
  return shown


def write(workdir: str, table: list[dict], metric: str, keys) -> list[str]:
  """A PNG and an SVG for every swept number; their names."""
  names = []
  for key in keys:
    values = {entry.get(key) for entry in table}
    numeric = all(
      isinstance(value, int | float) and not isinstance(value, bool)
      for value in values
    )
    if numeric and len(values) > 1:
      shown = figure(table, key, metric, list(keys))
      for kind in ('png', 'svg'):
        name = f'{re.sub("[^a-z0-9]+", "_", key)}.{kind}'
        shown.savefig(os.path.join(workdir, name), dpi=150)
        names.append(name)
  return names
