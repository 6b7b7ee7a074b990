"""Comparison of the settings of a sweep, with confidence intervals.

Settings are ranked by their means over seeds on validation. Test scores are
only reported, so selection does not bias them. Trials of a sweep see the same
batches, so trials with equal seeds are paired, and the interval of their
difference is narrower than those of the two means.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.command import app
from experiments.command.errors import UserError, nearest, one_of
from experiments.command.values import flat_keys
from experiments.sweeps.plan import Spec, describe

SPLITS = ('validation', 'test')
_CONFIDENCE = 0.95
# Rounding error of the difference of equal accuracies.
ROUNDING = 1e-9
# Over folds, there is also the accuracy of all their test texts together.
FOLD, _ACCURACY = 'data.fold', 'accuracy'
# Keys that make repetitions of a setting, if they are swept.
_REPEATED = ('seed', FOLD)
# The default baseline, if it is one of several settings.
_WITHOUT = ('model.position', 'none')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The settings of a sweep, compared.

  Attributes:
    metric: what settings are ranked by.
    over: the keys that distinguish repetitions of a setting.
    units: those that distinguish the values of which an interval is.
    baseline: the setting that others are compared with; None if no other is
      done.
    table: one entry per setting, the best first: `setting`, the keys that it
      changes, the number `n` of trials that are done and of those `missing`; if
      n > 0 also `validation`, `test`, and the `difference` to the baseline on
      test, each as returned by `interval`, the former two with the `values`
      of each seed or fold; and over folds `pooled`, the accuracy on the test
      texts of all folds together.
    sign: 1 for a metric to maximise, -1 for one to minimise.
  """

  metric: str
  over: tuple[str, ...]
  units: tuple[str, ...]
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
      'baseline',
      '',
      'Setting to compare others with, KEY=VALUE, ... as in table.md; if not '
      'given, the one without positions, or else the first.',
    ),
  ):
    app.flags.DEFINE_string(name, default, text, flag_values=values)
  app.flags.DEFINE_list(
    'over',
    [],
    'Config keys that distinguish repetitions of a setting; scores are '
    f'averaged over them. If not given, {" and ".join(_REPEATED)}, where they '
    'are swept.',
    flag_values=values,
  )


def metrics(specs: list[Spec]) -> Mapping[str, Callable]:
  """Settings.metrics of all trials: names, and whether max or min is the best.

  Raises:
    UserError: they have several tasks.
  """
  tasks = list(dict.fromkeys(str(spec.settings.task) for spec in specs))
  if len(tasks) > 1:
    raise UserError(
      f'config.task is {", ".join(tasks)}: scores of different tasks '
      'cannot be compared; make one sweep per task'
    )
  return specs[0].settings.metrics


def check(
  specs: list[Spec], metric: str, over: Sequence[str], baseline: str
) -> tuple[str, ...]:
  """Checks that trials can be compared; empty: a flag that is not given.

  Returns:
    The keys that distinguish repetitions.

  Raises:
    UserError: several tasks, or an unknown metric, key or setting.
  """
  known = metrics(specs)
  one_of(metric or next(iter(known)), known, '--metric')
  keys = flat_keys(specs[0].config)
  for key in over:
    if key not in keys:
      raise UserError(f'--over={key} is not a key{nearest(key, list(keys))}')
  if not over:
    swept = {key for spec in specs for key in spec.overrides}
    over = [key for key in _REPEATED if key in swept] or _REPEATED[:1]
  names = dict.fromkeys(setting_of(spec, over)[0] for spec in specs)
  if baseline and baseline not in names:
    raise UserError(f'--baseline={baseline} is not one of {"; ".join(names)}')
  return tuple(over)


def setting_of(spec: Spec, over: Sequence[str]) -> tuple[str, dict[str, Any]]:
  """The setting of a trial, shared by all repetitions: (name, overrides)."""
  rest = {k: v for k, v in spec.overrides.items() if k not in over}
  return describe(rest) or 'all', rest


def interval(values: list[float]) -> dict[str, float | int | None]:
  """Mean, standard deviation, half-width of the 95% interval, and n.

  Student's t interval (1908). A single value has neither deviation nor
  interval. Equal values have no interval: its width would be 0, and accuracies
  on few texts coincide easily.
  """
  count = len(values)
  found = {'mean': statistics.fmean(values), 'std': None, 'half_width': None}
  if count > 1 and max(values) - min(values) <= ROUNDING:
    found['std'] = 0.0
  elif count > 1:
    # Imported late: it takes half a second.
    import scipy.stats

    found['std'] = statistics.stdev(values)
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)
    found['half_width'] = float(quantile * found['std'] / math.sqrt(count))
  return found | {'n': count}


def compare(
  rows: list[dict],
  specs: list[Spec],
  metric: str,
  over: Sequence[str],
  baseline: str,
) -> Comparison:
  """Ranks the settings; incomplete ones come after complete ones.

  Args:
    rows: returned by results.collect.
    metric: one of `metrics`, or '' for config.checkpoint.best_metric.
    over: the keys that distinguish repetitions; empty: the seed and the fold,
      where they are swept.
    baseline: 'KEY=VALUE, ...' of the setting to compare others with, or ''.

  Raises:
    UserError: several tasks, or an unknown metric, key or setting.
  """
  over = check(specs, metric, over, baseline)
  metric = metric or specs[0].settings.checkpoint.best_metric
  sign = 1 if metrics(specs)[metric] is max else -1
  # By setting, split and repetition. Seeds of one fold have the same test
  # texts: their mean is one of the independent values, which folds are.
  units = (FOLD,) if FOLD in over else over
  values: dict[str, dict[str, dict[str, Any]]] = {}
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
      flat = flat_keys(spec.config)
      unit = ', '.join(str(flat[key]) for key in units)
      found[split].setdefault(unit, []).append(score)
  for name, entry in table.items():
    for split, scores in values[name].items() if entry['n'] else ():
      given = {'values': dict(scores)}
      scores |= {unit: statistics.fmean(each) for unit, each in scores.items()}
      entry[split] = interval(list(scores.values())) | given
  is_of_texts = specs[0].settings.task.name == 'classify'
  if FOLD in over and metric == _ACCURACY and is_of_texts:
    _pool(rows, specs, table, over)
  ranked = sorted(table.values(), key=lambda entry: _rank(entry, sign))
  chosen = baseline or _natural_baseline(list(table.values()), ranked)
  for name, entry in table.items():
    scores, base = values[name]['test'], values.get(chosen, {}).get('test', {})
    pairs = sorted(scores.keys() & base.keys())
    if name != chosen and pairs:
      entry['difference'] = interval([scores[k] - base[k] for k in pairs])
  return Comparison(metric, over, units, chosen, ranked, sign)


def _pool(rows, specs, table, over) -> None:
  """Adds `pooled`, the share of the test texts of all folds that are right."""
  right, total = collections.Counter(), collections.Counter()
  for row, spec in zip(rows, specs, strict=True):
    name, _ = setting_of(spec, over)
    if None not in (row[f'best/test/{_ACCURACY}'], row['test_texts']):
      right[name] += row[f'best/test/{_ACCURACY}'] * row['test_texts']
      total[name] += row['test_texts']
  for name in total:
    table[name]['pooled'] = right[name] / total[name]


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
