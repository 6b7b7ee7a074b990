"""Figures of a sweep: settings, and scores against swept hyperparameters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from experiments.sweeps.comparison import SPLITS, Comparison
from experiments.sweeps.plan import Spec, describe
from experiments.workdir import workdir as workdir_lib
from selfattn.plots import COLOURS, MARKERS, show_heatmaps, style, write_cells

# Settings or curves that a figure can show, and that still can be told apart.
MOST = 24
# Metrics from 0 to 1, which an interval of few seeds may leave.
_SHARES = ('accuracy', 'macro_f1')
# Maps that a figure has room for, and cells of a map that show their values.
_MOST_MAPS, _MOST_VALUES = 4, 100


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
  axes.set_ylim(*_limits(found.metric, axes.get_ylim()))
  axes.set_xlabel(key)
  axes.set_ylabel(f'{found.metric} on validation (mean, 95% interval)')
  if len(curves) > 1:
    axes.legend(fontsize='small')
  return shown


def surface(found: Comparison, pair: tuple[str, str], keys: Iterable[str]):
  """Means on validation over two numeric hyperparameters, as a heat map.

  The darkest cell is the best; cells without a trial that is done are grey.

  Args:
    pair: keys of the rows and of the columns.
    keys: as of `figure`; one map per setting of the others, the best first.
  """
  row, column = pair
  others = [name for name in keys if name not in pair]
  ticks = [_values(found.table, key) for key in pair]
  shape = tuple(map(len, ticks))
  means: dict[str, np.ndarray] = {}
  texts: dict[str, np.ndarray] = {}
  for entry in _done(found.table, pair):
    name = describe({k: entry[k] for k in others if k in entry})
    cell = ticks[0].index(entry[row]), ticks[1].index(entry[column])
    score = entry['validation']
    width = score['half_width']
    shown = f'{score["mean"]:#.3g}' + (f'\n± {width:.2g}' if width else '')
    means.setdefault(name, np.full(shape, np.nan))[cell] = score['mean']
    texts.setdefault(name, np.full(shape, '', object))[cell] = shown
  names = list(means)[:_MOST_MAPS]
  maps = np.stack([means[name] for name in names])
  height, width = (max(2.4, 0.75 * count) for count in shape)
  drawn = show_heatmaps(
    maps[None],
    xlabel=column,
    ylabel=row,
    titles=names if names != [''] else None,
    figsize=(max(6.4, width * len(names) + 2.0), max(4.2, 0.8 * height + 1.2)),
    cmap='Blues' if found.sign > 0 else 'Blues_r',
    xticks=[f'{value:g}' for value in ticks[1]],
    yticks=[f'{value:g}' for value in ticks[0]],
    limits=(float(np.nanmin(maps)), float(np.nanmax(maps))),
  )
  *axes, scale = drawn.axes
  for axis, name in zip(axes, names, strict=True):
    axis.set_facecolor('0.85')
    axis.title.set_fontsize(9)
    if maps[0].size <= _MOST_VALUES:
      write_cells(axis, texts[name], 8)
  scale.set_ylabel(f'{found.metric} on validation (mean, 95% interval)')
  if len(means) > len(names):
    drawn.suptitle(f'the best {len(names)} of {len(means)}', fontsize=9)
  return drawn


def _done(table: list[dict], keys: Iterable[str]) -> list[dict]:
  """Settings with a trial that is done and with all these keys."""
  return [e for e in table if e['n'] and all(key in e for key in keys)]


def _values(table: list[dict], key: str) -> list:
  """Values of a key, ascending; a setting that does not use it has none."""
  return sorted({entry[key] for entry in table if key in entry})


def against(found: Comparison, keys: list[str]) -> dict:
  """Figures of the metric against numeric hyperparameters, by their keys.

  Two that are crossed are one surface; otherwise, each has a figure.

  Args:
    keys: all swept keys except those of repetitions.
  """
  numeric = numeric_keys(found.table, keys)
  if len(numeric) == 2:
    done = _done(found.table, numeric)
    cells = {tuple(entry[key] for key in numeric) for entry in done}
    every = [_values(found.table, key) for key in numeric]
    if 2 * len(cells) >= len(every[0]) * len(every[1]):
      return {' and '.join(numeric): surface(found, tuple(numeric), keys)}
  return {key: figure(found, key, keys) for key in numeric}


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
  axes.set_xlim(*_limits(found.metric, axes.get_xlim()))
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


def _limits(metric: str, shown: tuple[float, float]) -> tuple[float, float]:
  """Limits of an axis, without values that the metric cannot have."""
  low, high = shown
  # Room for the marker of a mean of 0 or 1.
  return (max(low, -0.02), min(high, 1.02)) if metric in _SHARES else shown


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
    values = {entry[key] for entry in table if key in entry}
    numeric = all(
      isinstance(value, int | float) and not isinstance(value, bool)
      for value in values
    )
    if numeric and len(values) > 1:
      found.append(key)
  return found


def write(workdir: str, found: Comparison, specs: list[Spec]) -> None:
  """Writes a PNG per figure of `against`, and of all settings."""
  keys = swept(specs, found.over)
  figures = {
    re.sub('[^a-z0-9]+', '_', name): shown
    for name, shown in against(found, keys).items()
  }
  if any(entry['n'] for entry in found.table):
    figures['settings'] = settings(found)
  for name, shown in figures.items():
    path = os.path.join(workdir, f'{name}.png')
    workdir_lib.write_figure(path, shown, dpi=150)
