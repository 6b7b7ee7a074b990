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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.command.errors import UserError, one_of
from experiments.sweeps import names
from experiments.sweeps.plan import Spec

SPLITS = ('validation', 'test')
# A metric of streams; that of windows of 256 tokens ends in _256.
LENGTH = 'bits_per_byte'
_CONFIDENCE = 0.95
# Of fewer values there is no interval: of two, it is that of one difference.
LEAST = 3
# Rounding error of the difference of equal accuracies.
ROUNDING = 1e-9
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
    table: one entry per setting, the best first: `setting`, its name; its
      values of all keys that the sweep changes; the number `n` of trials that
      have the metric and of those `missing`, which are not done; if n > 0 also
      `validation`, `test`, and the `difference` to the baseline on test, each
      as returned by `interval`, the former two with the `values` of each seed
      or fold; and of config.train.eval_lengths `by_length`, bits per byte on
      test in windows of each length, where the model can read them, as the
      former two, and of config.train.measures `measures_by_length`, the same
      of each measure.
    sign: 1 for a metric to maximise, -1 for one to minimise.
    of_trials: the name of the setting of each trial.
  """

  metric: str
  over: tuple[str, ...]
  units: tuple[str, ...]
  baseline: str | None
  table: list[dict[str, Any]]
  sign: int
  of_trials: tuple[str, ...] = ()


# For command_line.define.
FLAGS = (
  ('metric', '', 'Metric to rank settings by: accuracy, loss, or another of '
   'the task; if not given, config.checkpoint.best_metric.'),
  ('baseline', '', 'Setting to compare others with, as table.md names it; if '
   'not given, the one without positions, or else the first.'),
)  # fmt: skip


def metrics(specs: list[Spec]) -> Mapping[str, Callable]:
  """Metrics of the trials, and whether max or min is the best.

  They are those of their task, and the measures of any trial. Tasks that read
  the same labels and have the same metrics may be several; their losses are not
  compared, unless the tasks differ in an option of training alone.

  Raises:
    UserError: they have tasks whose scores are of different things.
  """
  calls = (spec.settings.task for spec in specs)
  scored_as = (call.without(call.entry.training_option) for call in calls)
  tasks = {str(call): call for call in scored_as}
  scored = [
    (call.entry.labels or name, dict(call.entry.metrics))
    for name, call in tasks.items()
  ]
  if any(other != scored[0] for other in scored):
    raise UserError(
      f'config.task is {", ".join(tasks)}: scores of different tasks '
      'cannot be compared; make one sweep per task'
    )
  of_trials = [spec.settings.metrics for spec in specs]
  known = {name: best for of in of_trials for name, best in of.items()}
  if len(tasks) > 1:
    known.pop('loss', None)
  return known


def interval(values: list[float]) -> dict[str, Any]:
  """Mean, standard deviation, half-width of the 95% interval, and n.

  Student's t interval (1908). Fewer than three values have none. Equal values
  have none, too: its width would be 0, and accuracies on few texts coincide
  easily.
  """
  count, mean = len(values), statistics.fmean(values)
  std = half_width = None
  if count > 1 and max(values) - min(values) <= ROUNDING:
    std = 0.0
  elif count > 1:
    std = statistics.stdev(values)
  if std and count >= LEAST:
    # Imported late: it takes half a second.
    import scipy.stats

    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)
    half_width = float(quantile * std / math.sqrt(count))
  return {'mean': mean, 'std': std, 'half_width': half_width, 'n': count}


def check(specs: list[Spec], metric: str, baseline: str) -> names.Naming:
  """The settings of trials; UserError if `compare` cannot compare them so."""
  known = metrics(specs)
  metric = metric or specs[0].settings.checkpoint.best_metric
  one_of(metric, known, '--metric')
  naming = names.of_specs(specs)
  if baseline and baseline not in naming.names:
    allowed = '; '.join(dict.fromkeys(naming.names))
    raise UserError(f'--baseline={baseline} is not one of {allowed}')
  return naming


def compare(
  rows: list[dict], specs: list[Spec], metric: str, baseline: str
) -> Comparison:
  """Ranks the settings; incomplete ones come after complete ones.

  Args:
    rows: returned by results.collect.
    metric: one of `metrics`, or '' for config.checkpoint.best_metric.
    baseline: the name of the setting to compare others with, or ''.

  Raises:
    UserError: several tasks, or an unknown metric or setting.
  """
  naming = check(specs, metric, baseline)
  over = naming.over
  metric = metric or specs[0].settings.checkpoint.best_metric
  sign = 1 if metrics(specs)[metric] is max else -1
  # Seeds of one fold, or of one split of the data, have the same test texts:
  # their mean is one of the independent values, which folds and splits are.
  units = tuple(key for key in over if key != 'seed') or over
  trials: dict[str, list[tuple[dict, Spec]]] = {}
  for row, spec, name in zip(rows, specs, naming.names, strict=True):
    trials.setdefault(name, []).append((row, spec))
  table: dict[str, dict[str, Any]] = {}
  scores = {}
  for name, of_setting in trials.items():
    setting = naming.settings[naming.names.index(name)]
    entry = _entry(of_setting, metric, units)
    scores[name] = _of_trials(of_setting, metric, over)
    table[name] = {'setting': name, **setting, **entry}
  ranked = sorted(table.values(), key=lambda entry: _rank(entry, sign))
  chosen = baseline or _natural_baseline(list(table.values()), ranked)
  base = scores[chosen] if chosen else {}
  for name, entry in table.items():
    test = scores[name]
    differences: dict[tuple, list[float]] = {}
    for trial in sorted(test.keys() & base.keys()):
      unit = tuple(dict(trial)[key] for key in units)
      differences.setdefault(unit, []).append(test[trial] - base[trial])
    if name != chosen and differences:
      means = [statistics.fmean(of_unit) for of_unit in differences.values()]
      entry['difference'] = interval(means)
  of_trials = tuple(naming.names)
  return Comparison(metric, over, units, chosen, ranked, sign, of_trials)


def _entry(
  trials: list[tuple[dict, Spec]], metric: str, units: Sequence[str]
) -> dict[str, Any]:
  """What the table has of the trials of a setting."""
  columns = {split: f'best/{split}/{metric}' for split in SPLITS}
  scored, missing = [], 0
  for row, spec in trials:
    if None not in [row[column] for column in columns.values()]:
      scored.append((row, spec))
    # A model that cannot read windows of a length has no metric of it.
    elif row['status'] != 'DONE':
      missing += 1
  entry: dict[str, Any] = {'n': len(scored), 'missing': missing}
  for split, column in columns.items() if scored else ():
    entry[split] = _of_units(scored, column, units)
  if by_length := _by_length(trials, LENGTH, units):
    entry['by_length'] = by_length
  measures = [call.label for call in trials[0][1].settings.train.measures]
  of_measures = {name: _by_length(trials, name, units) for name in measures}
  if any(of_measures.values()):
    entry['measures_by_length'] = of_measures
  return entry


def _by_length(
  trials: list[tuple[dict, Spec]], metric: str, units: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """A metric on test by length of the windows, where some trial has it."""
  by_length = {}
  for length in trials[0][1].settings.train.eval_lengths:
    column = f'best/test/{metric}_{length}'
    read = [trial for trial in trials if trial[0][column] is not None]
    if read:
      by_length[str(length)] = _of_units(read, column, units)
  return by_length


def _of_trials(
  trials: list[tuple[dict, Spec]], metric: str, over: Sequence[str]
) -> dict[tuple, float]:
  """Test scores of trials by what they differ in, ((key, value), ...)."""
  scores = {}
  for row, spec in trials:
    of_splits = {split: row[f'best/{split}/{metric}'] for split in SPLITS}
    if None not in of_splits.values():
      flat = spec.settings.flat()
      key = tuple((name, str(flat[name])) for name in over)
      scores[key] = of_splits['test']
  return scores


def _of_units(
  trials: list[tuple[dict, Spec]], column: str, units: Sequence[str]
) -> dict[str, Any]:
  """The `interval` of the means of all units, and their `values`."""
  values: dict[str, list[float]] = {}
  for row, spec in trials:
    flat = spec.settings.flat()
    unit = ', '.join(str(flat[key]) for key in units)
    values.setdefault(unit, []).append(row[column])
  means = [statistics.fmean(of_unit) for of_unit in values.values()]
  return interval(means) | {'values': values}


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
