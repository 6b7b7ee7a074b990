"""Figures of a sweep: settings, and scores against swept hyperparameters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from experiments.sweeps.comparison import SPLITS, Comparison
from experiments.sweeps.plan import Spec, describe
from experiments.workdir import workdir as workdir_lib
from selfattn.plots import COLOURS, MARKERS, style

# Settings or curves that a figure can show, and that still can be told apart.
MOST = 24


def figure(found: Comparison, key: str, keys: Iterable[str]):
  """Means on validation against config.`key`, a numeric hyperparameter.

  Args:
    keys: all swept keys except those of repetitions; one curve per setting of
      the others.
  """
  from matplotlib.figure import Figure

  shown = Figure(figsize=(6.4, 4.2), layout='constrained')
  axes = shown.add_subplot()
  curves: dict[str, list[dict]] = {}
  others = [name for name in keys if name != key]
  for entry in found.table:
    if entry['n'] and key in entry:
      name = describe({k: entry[k] for k in others if k in entry})
      curves.setdefault(name, []).append(entry)
  for index, (name, entries) in enumerate(list(curves.items())[:MOST]):
    entries = sorted(entries, key=lambda entry: entry[key])
    means = [entry['validation']['mean'] for entry in entries]
    axes.errorbar(
      [entry[key] for entry in entries],
      means,
      [entry['validation']['half_width'] or 0 for entry in entries],
      label=name or None,
      color=COLOURS[index % len(COLOURS)],
      marker=MARKERS[index % len(MARKERS)],
      capsize=3,
    )
  values = [entry[key] for entry in found.table if key in entry]
  if min(values) > 0 and max(values) / min(values) >= 10:
    axes.set_xscale('log')
  _say_best(axes, len(curves))
  axes.set_xlabel(key)
  axes.set_ylabel(f'{found.metric} on validation (mean, 95% interval)')
  if len(curves) > 1:
    axes.legend(fontsize='small')
  return shown


def settings(found: Comparison):
  """Means and intervals of each setting, the best on top."""
  from matplotlib.figure import Figure

  done = [entry for entry in found.table if entry['n']]
  entries = done[:MOST][::-1]
  shown = Figure(figsize=(8.4, 1.4 + 0.28 * len(entries)), layout='constrained')
  axes = shown.add_subplot()
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
  axes.set_xlabel(f'{found.metric} (mean, 95% interval)')
  axes.grid(axis='x', alpha=0.3)
  axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  return shown


def curves(means: Mapping[str, Mapping[int, float]], ylabel: str):
  """Means over steps, one curve per setting.

  Args:
    means: by setting and step; the best settings first.
  """
  from matplotlib.figure import Figure

  height = max(4.2, 1.0 + 0.2 * min(len(means), MOST))
  shown = Figure(figsize=(8.4, height), layout='constrained')
  axes = shown.add_subplot()
  for index, (name, values) in enumerate(list(means.items())[:MOST]):
    axes.plot(list(values), list(values.values()), label=name, **style(index))
  _say_best(axes, len(means))
  axes.set_xlabel('steps')
  axes.set_ylabel(ylabel)
  axes.grid(alpha=0.3)
  axes.legend(fontsize=7, loc='upper left', bbox_to_anchor=(1, 1))
  return shown


def _say_best(axes, count: int) -> None:
  if count > MOST:
    axes.set_title(f'the best {MOST} of {count} settings', fontsize=9)


def swept(specs: list[Spec], over: Sequence[str]) -> list[str]:
  """The keys that trials override, except those in `over`."""
  keys = dict.fromkeys(key for spec in specs for key in spec.overrides)
  return [key for key in keys if key not in over]


def numeric_keys(table: list[dict], keys: Iterable[str]) -> list[str]:
  """The keys with several values, all of them numeric."""
  found = []
  for key in keys:
    # A setting that does not use a key has no value of it.
    values = {entry[key] for entry in table if key in entry}
    numeric = all(
      isinstance(value, int | float) and not isinstance(value, bool)
      for value in values
    )
    if numeric and len(values) > 1:
      found.append(key)
  return found


def write(workdir: str, found: Comparison, specs: list[Spec]) -> None:
  """Writes a PNG and an SVG per numeric hyperparameter, and of all settings."""
  keys = swept(specs, found.over)
  figures = {
    re.sub('[^a-z0-9]+', '_', key): figure(found, key, keys)
    for key in numeric_keys(found.table, keys)
  }
  if any(entry['n'] for entry in found.table):
    figures['settings'] = settings(found)
  for name, shown in figures.items():
    for kind in ('png', 'svg'):
      path = os.path.join(workdir, f'{name}.{kind}')
      workdir_lib.write_figure(path, shown, dpi=150)
