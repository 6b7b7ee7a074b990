"""Comparison of the settings of a sweep, with confidence intervals.

Settings are ranked by their means over seeds on validation. Test scores are
only reported, so selection does not bias them. Trials of a sweep see the same
batches, so trials with equal seeds are paired, and the interval of their
difference is narrower than those of the two means.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from experiments.command import app
from experiments.command.errors import UserError, nearest, one_of
from experiments.command.values import flat_keys
from experiments.learning.tasks import TASKS
from experiments.sweeps.distinct import overrides
from experiments.sweeps.plan import Spec, describe

SPLITS = ('validation', 'test')
_CONFIDENCE = 0.95
# Rounding error of the difference of equal accuracies.
_ROUNDING = 1e-9
# The default baseline, if it is one of several settings.
_WITHOUT = ('model.position.name', 'none')
_UNKNOWN = '± ?'
# Columns of the table beside the keys that a setting changes.
_COLUMNS = ('setting', 'n', 'missing', *SPLITS, 'difference')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The settings of a sweep, compared.

  Attributes:
    metric: what settings are ranked by.
    over: the key that distinguishes repetitions of a setting.
    baseline: the setting that others are compared with; None if no other is
      done.
    table: one entry per setting, the best first: `setting`, the keys that it
      changes, the number `n` of trials that are done and of those `missing`; if
      n > 0 also `validation`, `test`, and the `difference` to the baseline on
      test, each as returned by `interval`.
    sign: 1 for a metric to maximise, -1 for one to minimise.
  """

  metric: str
  over: str
  baseline: str | None
  table: list[dict[str, Any]]
  sign: int


def define(values) -> None:
  """Adds the flags of the comparison of settings."""
  for name, default, text in (
    (
      'metric',
      '',
      'Metric to rank settings by: accuracy, loss, or another of the task; if '
      'not given, config.checkpoint.best_metric.',
    ),
    (
      'over',
      'seed',
      'Config key that distinguishes repetitions of a setting; scores are '
      'averaged over it.',
    ),
    (
      'baseline',
      '',
      'Setting to compare others with, KEY=VALUE, ... as in table.md; if not '
      'given, the one without positions, or else the first.',
    ),
  ):
    app.flags.DEFINE_string(name, default, text, flag_values=values)


def metrics(specs: list[Spec]) -> Mapping[str, Callable]:
  """Metrics of the task of all trials, and whether max or min is the best.

  Raises:
    UserError: they have several tasks.
  """
  tasks = list(dict.fromkeys(spec.settings.task.name for spec in specs))
  if len(tasks) > 1:
    raise UserError(
      f'config.task.name is {", ".join(tasks)}: scores of different tasks '
      'cannot be compared; make one sweep per task'
    )
  return TASKS[tasks[0]].metrics


def check(specs: list[Spec], metric: str, over: str, baseline: str) -> None:
  """Checks that trials can be compared; '' stands for a flag not given.

  Raises:
    UserError: several tasks, or an unknown metric, key or setting.
  """
  known = metrics(specs)
  one_of(metric or next(iter(known)), known, '--metric')
  keys = flat_keys(specs[0].config)
  if over not in keys:
    raise UserError(f'--over={over} is not a key{nearest(over, list(keys))}')
  names = dict.fromkeys(setting_of(spec, over)[0] for spec in specs)
  if baseline and baseline not in names:
    raise UserError(f'--baseline={baseline} is not one of {"; ".join(names)}')


def setting_of(spec: Spec, over: str) -> tuple[str, dict[str, Any]]:
  """The setting of a trial, shared by all repetitions: (name, overrides)."""
  rest = {k: v for k, v in overrides(spec).items() if k != over}
  return describe(rest) or 'all', rest


def interval(values: list[float]) -> dict[str, float | int | None]:
  """Mean, standard deviation, half-width of the 95% interval, and n.

  Student's t interval (1908). A single value has neither deviation nor
  interval. Equal values have no interval: its width would be 0, and accuracies
  on few texts coincide easily.
  """
  count = len(values)
  found = {'mean': statistics.fmean(values), 'std': None, 'half_width': None}
  if count > 1 and max(values) - min(values) <= _ROUNDING:
    found['std'] = 0.0
  elif count > 1:
    # Imported late: it takes half a second.
    import scipy.stats

    found['std'] = statistics.stdev(values)
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)
    found['half_width'] = float(quantile * found['std'] / math.sqrt(count))
  return found | {'n': count}


def compare(
  rows: list[dict], specs: list[Spec], metric: str, over: str, baseline: str
) -> Comparison:
  """Ranks the settings; incomplete ones come after complete ones.

  Args:
    rows: returned by results.collect.
    metric: one of `metrics`, or '' for config.checkpoint.best_metric.
    over: the key that distinguishes repetitions, such as `seed`.
    baseline: 'KEY=VALUE, ...' of the setting to compare others with, or ''.

  Raises:
    UserError: several tasks, or an unknown metric, key or setting.
  """
  check(specs, metric, over, baseline)
  metric = metric or specs[0].settings.checkpoint.best_metric
  sign = 1 if metrics(specs)[metric] is max else -1
  # By setting, split and repetition.
  values: dict[str, dict[str, dict[str, float]]] = {}
  table: dict[str, dict[str, Any]] = {}
  for row, spec in zip(rows, specs, strict=True):
    name, changed = setting_of(spec, over)
    entry = table.setdefault(
      name, {'setting': name, **changed, 'n': 0, 'missing': 0}
    )
    found = values.setdefault(name, {split: {} for split in SPLITS})
    scores = {split: row[f'best/{split}/{metric}'] for split in SPLITS}
    is_done = None not in scores.values()
    entry['n' if is_done else 'missing'] += 1
    for split, score in scores.items() if is_done else ():
      found[split][str(spec.overrides.get(over))] = score
  for name, entry in table.items():
    for split, scores in values[name].items() if entry['n'] else ():
      entry[split] = interval(list(scores.values()))
  ranked = sorted(table.values(), key=lambda entry: _rank(entry, sign))
  chosen = baseline or _natural_baseline(list(table.values()), ranked)
  for name, entry in table.items():
    scores, base = values[name]['test'], values.get(chosen, {}).get('test', {})
    pairs = sorted(scores.keys() & base.keys())
    if name != chosen and pairs:
      entry['difference'] = interval([scores[k] - base[k] for k in pairs])
  return Comparison(metric, over, chosen, ranked, sign)


def _rank(entry: dict, sign: int) -> tuple:
  # Complete settings first: a mean over the trials that are done is biased.
  mean = entry['validation']['mean'] if entry['n'] else 0.0
  return entry['n'] == 0, entry['missing'], -sign * mean


def _natural_baseline(table: list[dict], ranked: list[dict]) -> str | None:
  """Default baseline: the best without positions, or else the first one done.

  Args:
    table: entries in the order of the sweep.
    ranked: the same entries, the best first.
  """
  key, name = _WITHOUT
  done = [entry for entry in table if entry['n']]
  without = [entry for entry in ranked if entry['n'] and entry.get(key) == name]
  if 0 < len(without) < len(done):
    return without[0]['setting']
  return done[0]['setting'] if len(done) > 1 else None


def conclusion(found: Comparison) -> str | None:
  """Whether the best setting differs significantly from the baseline, or None.

  If the baseline is the best setting, the second best is compared with it.
  """
  first = next((e for e in found.table if e['setting'] != found.baseline), {})
  if 'difference' not in first:
    return None
  entry = first
  difference = entry['difference']
  mean, half_width = difference['mean'], difference['half_width']
  seeds = _repetitions(difference['n'], found.over)
  verdict = 'better' if found.sign * mean > 0 else 'worse'
  if difference['n'] == 1 or (half_width and abs(mean) <= half_width):
    verdict = 'no significant difference'
  elif half_width is None and abs(mean) <= _ROUNDING:
    return f'{_against(entry, found)}, equal in {seeds}'
  elif half_width is None:
    verdict = 'no interval from the same difference in'
    return f'{_against(entry, found)}, {verdict} {seeds}'
  return f'{_against(entry, found)}, {verdict} with {seeds}'


def _against(entry: dict, found: Comparison) -> str:
  shown = _plus_minus(entry['difference'], '+')
  return (
    f'{entry["setting"]} against {found.baseline}: {found.metric} on test '
    f'{shown}'
  )


def _repetitions(count: int, over: str) -> str:
  if over == 'seed':
    return f'{count} seed{"s" * (count > 1)}'
  return f'{count} value{"s" * (count > 1)} of {over}'


def cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the table, as text."""
  header = ['setting', 'n', *SPLITS]
  if found.baseline is not None:
    header.append('test - baseline')
  body = []
  for entry in found.table:
    of = f' of {entry["n"] + entry["missing"]}' if entry['missing'] else ''
    row = [entry['setting'], f'{entry["n"]}{of}']
    row += [_plus_minus(entry.get(split)) for split in SPLITS]
    if entry['setting'] == found.baseline:
      row.append('baseline')
    elif found.baseline is not None:
      row.append(_plus_minus(entry.get('difference'), '+'))
    body.append(row)
  return header, body


def _plus_minus(found: dict | None, sign: str = '') -> str:
  if found is None:
    return ''
  shown = f'{found["mean"]:{sign}.4f}'
  if found['half_width'] is not None:
    return f'{shown} ± {found["half_width"]:.4f}'
  return shown if found['std'] is None else f'{shown} {_UNKNOWN}'


def caption(found: Comparison) -> str:
  """A caption of the table."""
  over = 'seeds' if found.over == 'seed' else f'values of {found.over}'
  text = (
    f'{found.metric} of the checkpoint that is best on validation, mean over '
    f'{over} ± half-width of its 95% interval (Student), over other {over} on '
    'the same data; the best setting on validation first.'
  )
  if any(_UNKNOWN in cell for row in cells(found)[1] for cell in row):
    text += f' {_UNKNOWN}: equal in all {over}, so without interval.'
  return text


def markdown(found: Comparison) -> str:
  """The table, its caption and the conclusion, as Markdown."""
  header, body = cells(found)
  lines = [header, ['---'] * len(header), *body]
  text = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  parts = [text, caption(found), conclusion(found)]
  return '\n\n'.join(filter(None, parts)) + '\n'


def terminal(found: Comparison):
  """The table for rich to print, with a column per key."""
  from rich import box
  from rich.table import Column, Table

  (first, *header), body = cells(found)
  keys = dict.fromkeys(k for e in found.table for k in e if k not in _COLUMNS)
  shown = Table(
    *[Column(name, overflow='fold') for name in keys or [first]],
    *[Column(name, no_wrap=True) for name in header],
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    caption=caption(found),
    caption_justify='left',
  )
  for entry, (name, *scores) in zip(found.table, body, strict=True):
    values = [str(entry.get(key, '')) for key in keys] or [name]
    shown.add_row(*values, *scores)
  return shown
