"""What came of a sweep: a row a trial, and means over seeds with intervals.

Trials of a sweep see the same batches, so two of them with the same seed are
a pair, and the interval of their difference is narrower than that of either.
"""

from __future__ import annotations

import collections
import csv
import io
import json
import math
import os
import statistics
from collections.abc import Mapping
from typing import Any

import scipy.stats

from experiments import workdir as workdir_lib
from experiments.choices import UserError
from experiments.metrics import read_rows
from experiments.sweeps.distinct import overrides
from experiments.sweeps.plan import Spec, describe

METRICS = ('accuracy', 'macro_f1', 'loss')
_CONFIDENCE = 0.95


def collect(specs: list[Spec]) -> list[dict[str, Any]]:
  """One row a trial: what it changed, how it ended, and its numbers.

  `best/` is the checkpoint that validation chose, on `validation` and on
  `test`; `last/` the last evaluation on validation.
  """
  rows = []
  for spec in specs:
    status = workdir_lib.read_status(spec.path)
    result = status.get('result', {})
    evaluations = _evaluations(spec.path)
    row = {
      'trial': spec.index,
      'name': spec.name,
      **spec.overrides,
      'status': status.get('status', 'WAITING'),
      'step': status.get('step', 0),
      'best/step': result.get('step'),
    }
    best = evaluations.get(result.get('step'), {})
    last = evaluations[max(evaluations)] if evaluations else {}
    for metric in METRICS:
      row[f'best/test/{metric}'] = result.get(metric)
      row[f'best/validation/{metric}'] = best.get(metric)
      row[f'last/validation/{metric}'] = last.get(metric)
    row['parameters'] = status.get('parameters')
    row['seconds'] = status.get('seconds')
    row['reason'] = status.get('reason')
    rows.append(row)
  return rows


def evaluation(path: str, step: int, metric: str) -> float:
  """A metric on validation at a step; the worst there is if it has none."""
  value = _evaluations(path).get(step, {}).get(metric)
  worst = math.inf if metric == 'loss' else -math.inf
  return worst if value is None else value


def _evaluations(path: str) -> dict[int, dict[str, float]]:
  """Metrics on validation, by step."""
  found = {}
  prefix = 'validation/'
  for row in read_rows(os.path.join(path, 'metrics.jsonl')):
    values = {
      name.removeprefix(prefix): value
      for name, value in row.items()
      if name.startswith(prefix)
    }
    if values:
      found[row['step']] = values
  return found


def interval(values: list[float]) -> dict[str, float | int | None]:
  """Mean, standard deviation, half the width of the 95% interval, and n.

  The interval is Student's; one value has neither spread nor interval.
  """
  count = len(values)
  found = {'mean': statistics.fmean(values), 'std': None, 'half_width': None}
  if count > 1:
    found['std'] = statistics.stdev(values)
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)
    found['half_width'] = float(quantile * found['std'] / math.sqrt(count))
  return found | {'n': count}


def grouped(
  rows: list[dict], specs: list[Spec], metric: str, over: str, baseline: str
) -> list[dict[str, Any]]:
  """One row for each setting: its interval over `over`, and against another.

  Args:
    metric: a column of `collect`.
    over: the key that only repeats a setting, as `seed`.
    baseline: 'KEY=VALUE, ...' of the setting that differences are to, or ''.

  Raises:
    UserError: no setting is called that.
  """
  check_baseline(specs, over, baseline)
  values: dict[str, dict[str, float]] = {}
  settings: dict[str, Mapping[str, Any]] = {}
  missing: collections.Counter = collections.Counter()
  for row, spec in zip(rows, specs, strict=True):
    name, settings[name] = setting_of(spec, over)
    found = values.setdefault(name, {})
    if row[metric] is None:
      missing[name] += 1
    else:
      found[str(spec.overrides.get(over))] = row[metric]
  table = []
  for name, found in values.items():
    entry = {'setting': name, **settings[name], 'missing': missing[name]}
    if found:
      entry |= interval(list(found.values()))
    pairs = values.get(baseline, {}).keys() & found.keys()
    if baseline and name != baseline and pairs:
      differences = [found[k] - values[baseline][k] for k in sorted(pairs)]
      paired = interval(differences)
      entry |= {f'difference/{k}': v for k, v in paired.items()}
    table.append(entry)
  return table


def check_baseline(specs: list[Spec], over: str, baseline: str) -> None:
  """UserError if no setting is called that."""
  names = dict.fromkeys(setting_of(spec, over)[0] for spec in specs)
  if baseline and baseline not in names:
    raise UserError(f'--baseline={baseline} is not one of {"; ".join(names)}')


def setting_of(spec: Spec, over: str):
  """What all repetitions of a trial share: (name, overrides)."""
  rest = {k: v for k, v in overrides(spec).items() if k != over}
  return describe(rest) or 'all', rest


def cells(table: list[dict]) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the grouped table, as text."""
  with_pairs = any('difference/mean' in entry for entry in table)
  header = ['setting', 'n', 'mean', 'std', '95% interval']
  header += ['difference to baseline'] if with_pairs else []
  body = []
  for entry in table:
    row = [entry['setting'], str(entry.get('n', 0))]
    row += [_number(entry.get('mean')), _number(entry.get('std'))]
    row.append(_plus_minus(entry, ''))
    if with_pairs:
      row.append(_plus_minus(entry, 'difference/'))
    body.append(row)
  return header, body


def _number(value) -> str:
  return '' if value is None else f'{value:.4f}'


def _plus_minus(entry, prefix) -> str:
  mean, half = entry.get(f'{prefix}mean'), entry.get(f'{prefix}half_width')
  if mean is None:
    return ''
  shown = f'{mean:+.4f}' if prefix else f'{mean:.4f}'
  return shown if half is None else f'{shown} ± {half:.4f}'


def markdown(table: list[dict]) -> str:
  """The grouped table, for a page."""
  header, body = cells(table)
  lines = [header, ['---'] * len(header), *body]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines) + '\n'


def terminal(table: list[dict], title: str):
  """The grouped table, for rich to print."""
  from rich.table import Column, Table

  header, body = cells(table)
  columns = [Column(name, overflow='fold') for name in header]
  shown = Table(*columns, title=title)
  for row in body:
    shown.add_row(*row)
  return shown


def write(workdir: str, rows: list[dict], table: list[dict]) -> None:
  """results.csv, results.json and table.md, each whole or not at all."""
  names = list(dict.fromkeys(name for row in rows for name in row))
  text = io.StringIO()
  writer = csv.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  files = {
    'results.csv': text.getvalue(),
    'results.json': json.dumps({'trials': rows, 'table': table}, indent=2),
    'table.md': markdown(table),
  }
  for name, content in files.items():
    workdir_lib.write_whole(os.path.join(workdir, name), content)
