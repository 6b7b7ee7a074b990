"""The page of a sweep."""

from __future__ import annotations

import collections
import os
import statistics

from experiments.inspection import pages
from experiments.sweeps import (
  comparison,
  folder,
  plots,
  results,
  tables,
)
from experiments.workdir.metrics import read_rows


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
  metric = compared.metric
  drawn = [
    pages.figure(figure, f'{metric} by {name}')
    for name, figure in plots.of_sweep(compared, specs).items()
  ]
  figure = plots.over_steps(
    _mean_curves(specs, compared), f'{metric} on validation'
  )
  drawn.append(pages.figure(figure, f'{metric} over steps'))
  header, body = tables.cells(compared)
  texts = [tables.caption(compared), tables.conclusion(compared) or '']
  columns = ['trial', 'name', 'setting', *compared.over, 'status']
  columns += [f'best/{split}/{metric}' for split in comparison.SPLITS]
  columns += ['parameters', 'seconds', 'reason']
  rows = results.named(rows, compared)
  columns = [c for c in columns if any(row.get(c) is not None for row in rows)]
  trials = [[row.get(column) for column in columns] for row in rows]
  ended = [n for n, row in enumerate(rows) if row['status'] != 'DONE']
  sections = [
    pages.section(
      f'Settings, by {metric} on validation',
      pages.table(header, body)
      + ''.join(f'<p>{pages.escape(text)}</p>' for text in texts),
    ),
    pages.section('Figures', pages.figures(drawn, 30)),
    pages.section('Trials', pages.table(columns, trials, ended)),
    pages.section('Config', pages.config(_shared(specs))),
  ]
  title = os.path.basename(os.path.abspath(values.workdir))
  pages.write(os.path.join(output, pages.NAME), title, sections)
  return {'files': [pages.NAME]}


def _shared(specs) -> dict:
  """Settings of a sweep that no trial overrides."""
  flat = specs[0].settings.flat()
  changed = {key for spec in specs for key in spec.overrides}
  return {key: flat[key] for key in flat if key not in changed}


def _mean_curves(specs, compared) -> dict[str, dict[int, float]]:
  """Validation metric, mean over repetitions, by setting and step.

  The best settings first, and no more than a figure shows.
  """
  best = [entry['setting'] for entry in compared.table]
  values = {setting: collections.defaultdict(list) for setting in best}
  for setting, spec in zip(compared.of_trials, specs, strict=True):
    if setting not in best[: plots.MOST]:
      continue
    points = values[setting]
    for row in read_rows(os.path.join(spec.path, 'metrics.jsonl')):
      value = row.get(f'validation/{compared.metric}')
      if value is not None:
        points[row['step']].append(value)
  return {
    setting: {step: statistics.fmean(points[step]) for step in sorted(points)}
    for setting, points in values.items()
  }
