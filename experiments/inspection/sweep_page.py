"""The page of a sweep."""

from __future__ import annotations

import collections
import itertools
import math
import os
import statistics
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from experiments.inspection import charts, origin, pages
from experiments.inspection.charts import Point
from experiments.inspection.pages import Html, Shaded
from experiments.sweeps import (
  comparison,
  folder,
  names,
  results,
  tables,
)
from experiments.sweeps.comparison import Comparison
from experiments.sweeps.plan import Spec
from experiments.workdir import buckets
from experiments.workdir.metrics import scores

# Curves of a chart that can be told apart.
_MOST = 24


def write(values, path: str, output: str) -> dict:
  """Writes the tables and figures of the sweep in `path` as a page.

  Args:
    values: flags of experiments.inspect.
    output: folder for the page.

  Raises:
    UserError: no such metric or baseline.
  """
  specs = folder.read(path)
  rows = results.collect(specs)
  compared = comparison.compare(rows, specs, values.metric, values.baseline)
  statuses = collections.Counter(row['status'] for row in rows)
  trials = ', '.join(f'{count} {status}' for status, count in statuses.items())
  metric = compared.metric
  sections = [
    pages.section(f'Settings, by {metric} on validation', _settings(compared)),
    pages.section('Figures', _figures(specs, compared)),
    pages.section('Trials', _trials(rows, specs, compared, output)),
    pages.section(
      'Sweep', origin.table([s.path for s in specs], {'trials': trials})
    ),
    pages.section('Config', pages.config(_shared(specs))),
  ]
  title = os.path.basename(os.path.abspath(values.workdir))
  pages.write(os.path.join(output, pages.NAME), title, sections)
  return {'files': [pages.NAME]}


def _settings(compared: Comparison) -> str:
  """The table of settings, with the values of all repetitions drawn; HTML."""
  header, body = tables.cells(compared)
  done = [entry for entry in compared.table if entry['n']]
  seen = [v for e in done for s in comparison.SPLITS for v in _values(e[s])]
  drawn = [
    charts.strip([_values(entry[split]) for split in comparison.SPLITS], seen)
    if entry['n']
    else ''
    for entry in compared.table
  ]
  rows = [
    [name, *cells, strip]
    for (name, *cells), strip in zip(body, drawn, strict=True)
  ]
  texts = [tables.caption(compared), tables.conclusion(compared) or '']
  if seen:
    header = [*header, f'{compared.metric}: {min(seen):.4g} to {max(seen):.4g}']
    texts.append(
      'A disc is a trial: blue on validation, orange on test. The heading has '
      'the least and the greatest value.'
    )
  return pages.table(header, rows) + ''.join(map(pages.paragraph, texts))


def _values(score: Mapping) -> list[float]:
  """The scores of all trials of a setting that is done."""
  return [value for unit in score['values'].values() for value in unit]


def _figures(specs: list[Spec], compared: Comparison) -> str:
  keys = names.swept(specs, compared.over)
  done = [entry for entry in compared.table if entry['n']]
  numeric = _numeric_keys(done, keys)
  over_steps = _over_steps(specs, compared)
  drawn = [over_steps] if over_steps else []
  if any('by_length' in entry for entry in compared.table):
    drawn.append(_by_length(compared))
  drawn += [_against(compared, key, keys) for key in numeric]
  pairs = itertools.combinations(numeric, 2)
  drawn += [_surface(compared, *pair) for pair in pairs]
  return pages.figures(drawn, 24)


def _over_steps(specs: list[Spec], compared: Comparison) -> str:
  """The metric on validation over steps: mean and range of repetitions.

  Of the best settings, and no more than a chart shows.
  """
  best = [entry['setting'] for entry in compared.table][:_MOST]
  values = {setting: collections.defaultdict(list) for setting in best}
  for setting, spec in zip(compared.of_trials, specs, strict=True):
    if setting in values:
      path = os.path.join(spec.path, 'metrics.jsonl')
      for step, value in scores(path, compared.metric).items():
        if value is not None:
          values[setting][step].append(value)
  curves = {
    setting: [_point(step, by_step[step]) for step in sorted(by_step)]
    for setting, by_step in values.items()
    if by_step
  }
  return _lines(curves, 'steps', compared) if curves else ''


def _point(x: float, values: Sequence[float]) -> Point:
  """The mean of repetitions, and their range."""
  low, high = min(values), max(values)
  note = f'({", ".join(f"{value:.4g}" for value in values)})'
  return Point(x, statistics.fmean(values), low, high, note)


def _lines(curves, xlabel: str, compared: Comparison, log=False) -> str:
  ylabel = f'{compared.metric} on validation (mean, range)'
  return charts.lines(curves, xlabel, ylabel, log=log)


def _by_length(compared: Comparison) -> str:
  """Bits per byte on test by length of the window, a curve per setting."""
  curves = {
    entry['setting']: [
      _point(int(length), _values(score))
      for length, score in entry['by_length'].items()
    ]
    for entry in compared.table[:_MOST]
    if 'by_length' in entry
  }
  ylabel = 'bits per byte on test (mean, range)'
  return charts.lines(curves, 'tokens of the window', ylabel, log=True)


def _against(compared: Comparison, key: str, keys: Sequence[str]) -> str:
  """The metric against a swept number, a curve per setting of the others."""
  done = [entry for entry in compared.table if entry['n']]
  others = [other for other in keys if other != key]
  named = names.of([{k: entry[k] for k in others} for entry in done])
  if len(set(named)) == 1:
    named = ['all settings'] * len(done)
  curves: dict[str, list[Point]] = {}
  for name, entry in zip(named, done, strict=True):
    point = _point(entry[key], _values(entry['validation']))
    curves.setdefault(name, []).append(point)
  shown = {
    name: sorted(points, key=lambda point: point.x)
    for name, points in [*curves.items()][:_MOST]
  }
  log = is_logarithmic(entry[key] for entry in compared.table)
  return _lines(shown, key, compared, log)


def _numeric_keys(table: Sequence[Mapping], keys: Sequence[str]) -> list[str]:
  """The keys with several values, all of them numeric."""
  columns = {key: [entry[key] for entry in table] for key in keys}
  return [
    key
    for key, values in columns.items()
    if {*map(type, values)} <= {int, float} and len(set(values)) > 1
  ]


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


def _surface(compared: Comparison, key: str, other: str) -> str:
  """The metric by two swept numbers, of their best setting; HTML."""
  best = {}
  for entry in (entry for entry in compared.table if entry['n']):
    point = _point(0, _values(entry['validation']))
    best.setdefault((entry[key], entry[other]), point)
  seen = [point.y for point in best.values()]
  worst = min(seen) if compared.sign > 0 else max(seen)
  width, digits = (max(seen) - min(seen)) or 1, pages.decimals(seen)
  columns = sorted({column for _, column in best})
  rows = []
  for row in sorted({row for row, _ in best}):
    rows.append([charts.number(row)])
    for point in (best.get((row, column)) for column in columns):
      if point is None:
        rows[-1].append(None)
        continue
      shown = f'{point.y:.{digits}f}'
      cell = Html(f'<span title="{point.note}">{shown}</span>')
      rows[-1].append(Shaded(cell, abs(point.y - worst) / width))
  caption = (
    f'{compared.metric} on validation by {key} (rows) and {other} (columns), '
    'of the best setting with both; the deeper, the better'
  )
  header = ['', *map(charts.number, columns)]
  return pages.table(header, rows, caption=caption, kind='matrix')


def _trials(
  rows: list[dict], specs: list[Spec], compared: Comparison, output: str
) -> str:
  """The table of trials, each with a link to its page or its folder; HTML."""
  scores = {
    f'best/{split}/{compared.metric}': split for split in comparison.SPLITS
  }
  columns = ['setting', *compared.over, 'status', *scores]
  columns += ['parameters', 'seconds', 'reason']
  shown = results.named(rows, compared)
  columns = [c for c in columns if any(row.get(c) is not None for row in shown)]
  table = [
    [_link(spec, output), *(row.get(column) for column in columns)]
    for row, spec in zip(shown, specs, strict=True)
  ]
  ended = [n for n, row in enumerate(rows) if row['status'] != 'DONE']
  header = ['trial', *(scores.get(column, column) for column in columns)]
  note = pages.paragraph(
    'A trial is a link to its page, where experiments.inspect has written one, '
    'or to its folder.'
  )
  return note + pages.table(header, table, ended)


def _link(spec: Spec, output: str) -> Html:
  if buckets.origin(spec.path) != spec.path:
    # The copy of a bucket is gone when this command ends.
    return Html(f'{spec.index}')
  page = os.path.join(spec.path, 'inspect', pages.NAME)
  target = page if os.path.exists(page) else spec.path
  address = urllib.parse.quote(os.path.relpath(target, output))
  return Html(f'<a href="{address}">{spec.index}</a>')


def _shared(specs) -> dict:
  """Settings of a sweep that no trial overrides."""
  flat = specs[0].settings.flat()
  changed = {key for spec in specs for key in spec.overrides}
  return {key: flat[key] for key in flat if key not in changed}
