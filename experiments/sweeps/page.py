"""What a page about a sweep shows."""

from __future__ import annotations

import collections
import os
import statistics

from experiments import pages
from experiments.choices import UserError
from experiments.metrics import read_rows
from experiments.sweeps import distinct, folder, plots, results


def sections(values, path: str) -> list[str]:
  """Tables and pictures of the sweep in `path`, by flags of the report.

  Raises:
    UserError: no such metric or baseline.
  """
  specs = distinct.distinct(folder.read(path))
  rows = results.collect(specs)
  metrics = [name for name in rows[0] if name.count('/') == 2]
  if values.metric not in metrics:
    raise UserError(
      f'--metric={values.metric} is not one of {", ".join(metrics)}'
    )
  table = results.grouped(
    rows, specs, values.metric, values.over, values.baseline
  )
  keys = list(dict.fromkeys(key for spec in specs for key in spec.overrides))
  keys = [key for key in keys if key != values.over]
  drawn = []
  if any(entry.get('mean') is not None for entry in table):
    figure = plots.settings(table, values.metric)
    drawn.append(pages.picture(figure, f'{values.metric} of each setting'))
  for key in plots.swept_numbers(table, keys):
    figure = plots.figure(table, key, values.metric, keys)
    drawn.append(pages.picture(figure, f'{values.metric} against {key}'))
  name = values.metric.rpartition('/')[2]
  figure = plots.curves(
    _mean_curves(specs, values.over, name), f'{name} on validation'
  )
  drawn.append(pages.picture(figure, f'{name} over updates'))
  header, body = results.cells(table)
  columns = ['trial', 'name', *keys, values.over, 'status', values.metric]
  columns += ['parameters', 'seconds', 'reason']
  columns = [c for c in columns if any(row.get(c) is not None for row in rows)]
  trials = [[row.get(column) for column in columns] for row in rows]
  ended = [n for n, row in enumerate(rows) if row['status'] != 'DONE']
  return [
    pages.section(f'Settings, by {values.metric}', pages.table(header, body)),
    pages.section('Pictures', '\n'.join(drawn)),
    pages.section('Trials', pages.table(columns, trials, ended)),
    pages.section('Config', pages.config(_shared(specs))),
  ]


def _shared(specs) -> dict:
  """Settings of a sweep, without what its trials change."""
  flat = specs[0].settings.flat()
  changed = {key for spec in specs for key in spec.overrides}
  return {key: flat[key] for key in flat if key not in changed}


def _mean_curves(specs, over: str, name: str) -> dict[str, dict[int, float]]:
  """Means over repetitions of a metric on validation, by setting and step."""
  found: dict[str, dict[int, list]] = {}
  for spec in specs:
    setting, _ = results.setting_of(spec, over)
    points = found.setdefault(setting, collections.defaultdict(list))
    for row in read_rows(os.path.join(spec.path, 'metrics.jsonl')):
      value = row.get(f'validation/{name}')
      if value is not None:
        points[row['step']].append(value)
  return {
    setting: {step: statistics.fmean(points[step]) for step in sorted(points)}
    for setting, points in found.items()
  }
