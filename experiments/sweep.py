"""Trains many runs, and compares settings with confidence intervals.

    bash scripts/run.sh experiments.sweep --config=configs/trec.py \\
        --config.data.dir=PATH --sweep=positions,seeds --workdir=runs/positions
    bash scripts/run.sh experiments.sweep --workdir=runs/lr \\
        --grid config.optimizer.learning_rate=1e-4,3e-4,1e-3 \\
        --grid config.seed=0,1,2
    bash scripts/run.sh experiments.sweep --workdir=runs/lr --report

Every trial is validated before the first one starts. The same command again
skips finished trials and resumes interrupted ones. Settings are ranked by their
means over seeds on validation; test is reported, too. When all trials have
ended, results are in results.csv, results.json and table.md; --report writes
those so far, and experiments.inspect draws them. The last line of standard
output is one JSON object.
"""

from __future__ import annotations

import importlib.util
import os

from experiments.command import app, config_files, provenance
from experiments.command.command_line import define, refuse
from experiments.command.errors import (
  Diverged,
  Failed,
  Interrupted,
  UserError,
)
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.settings import open_models, reference, stored
from experiments.sweeps import (
  comparison,
  engines,
  folder,
  plan,
  ray_cluster,
  results,
  workers,
)
from experiments.sweeps import watch as watch_lib
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib

# Flags that --report, which trains nothing, has no use for.
_OF_TRIALS = (
  'sweep', 'grid', 'trial_ids', 'dry_run', 'retry', 'engine', 'group_size',
  'ray_address', 'ray_resources',
)  # fmt: skip


def _define(values) -> None:
  define(
    values,
    ('workdir', None, "The sweep's folder."),
    ('sweep', [], 'Generators sweep_NAME of the config file to combine, a list '
     'of NAMEs.'),
    ('grid', (), 'Grid over a key: config.KEY=VALUE,VALUE,...; may be '
     'repeated. Quotes or brackets protect commas inside a value.'),
    ('trial_ids', [], 'Ids of the trials to run, from 0, a list; if not given, '
     'all trials.'),
    ('dry_run', False, 'Print the trials without training.'),
    ('report', False, 'Report the results so far without training.'),
    ('retry', False, 'Train FAILED and DIVERGED trials again.'),
    ('engine', 'auto', 'How trials are run; auto: the engine expected to be '
     'fastest.', ('auto', *engines.ENGINES)),
    ('group_size', 32, 'Largest number of trials trained as one program.', 1),
    ('ray_address', '', 'Address of the Ray cluster of engine ray; empty: '
     'start one here.'),
    ('ray_resources', [], 'What a task of engine ray asks for, as a list of '
     'NAME=AMOUNT: CPU=4,GPU=1 or TPU=4; if not given, one CPU, and one GPU if '
     'the cluster has any.'),
    ('output', None, 'File for the table of the sweep as JSON, with the '
     'command, the commit and the machine of its trials; none: no such file.'),
    *comparison.FLAGS,
  )  # fmt: skip


def _specs(values, base: dict, workdir: str) -> list[plan.Spec]:
  module, config = config_files.load_module(values.config_path)
  sweeps = [plan.generated(module, name) for name in values.sweep]
  sweeps += [plan.grid(text, config) for text in values.grid]
  if not sweeps:
    raise UserError(
      '--sweep or --grid is required: give generators of the config, '
      'or config.KEY=VALUE,VALUE'
    )
  points = plan.product(sweeps)
  specs = plan.distinct(plan.make(base, points, workdir))
  return folder.numbered(workdir, specs)


def _chosen(specs, values) -> list[plan.Spec]:
  trial_ids = values.trial_ids
  if not values['trial_ids'].present:
    return specs
  if not trial_ids:
    raise UserError('--trial_ids= has no id; without it, all trials run')
  known = {str(spec.index): spec for spec in specs}
  for text in trial_ids:
    if text not in known:
      first, last = specs[0].index, specs[-1].index
      raise UserError(
        f'--trial_ids={text} is not the id of a trial of this command, which '
        f'are from {first} to {last}'
      )
  return [spec for spec in specs if str(spec.index) in trial_ids]


def _print_plan(specs, counts) -> None:
  programs = plan.programs_of(specs)
  for index, group in enumerate(programs.values()):
    for spec in group:
      log(
        f'trial {spec.index} {spec.name}  program {index}  '
        f'{counts[spec.index]:,} parameters  {plan.describe(spec.overrides)}'
      )
  log(f'{len(specs)} trials, {len(programs)} programs')


def main(values) -> None:
  """Plans, validates, trains and reports."""
  if values.engine in ('serial', 'processes'):
    reason = f'is for groups of trials, and --engine={values.engine} has none'
    refuse(values, ('group_size',), reason)
  if values.output is not None:
    app.check_output(values.output)
  with buckets.staged(app.required(values, 'workdir')) as path:
    workdir = os.path.abspath(path)
    if values.report:
      _check_report(values)
      app.print_result(_report(values, workdir))
    else:
      _sweep(values, workdir)


def _report(values, workdir: str) -> dict:
  """The results so far; if a class of one's own is gone, the last report.

  The settings of the trials need the class, and their results do not.
  """
  try:
    stored.search_modules(workdir)
  except UserError as gone:
    last = workdir_lib.read_json(workdir, 'results.json', {})
    if values.metric or values.baseline or values.output or not last:
      raise
    log(f'WARNING: {gone}; this is the last report')
    with open(os.path.join(workdir, 'table.md'), encoding='utf-8') as file:
      log(file.read())
    return {'workdir': buckets.origin(workdir), 'table': last.get('table')}
  specs = folder.read(workdir)
  plan.check_unchanged(specs)
  return results.report(workdir, values, specs)


def _check_report(values) -> None:
  """UserError for what --report would ignore."""
  refuse(values, _OF_TRIALS, 'and --report exclude one another')
  if app.has_config(values):
    raise UserError('--report has the config of the sweep; drop --config')


def _sweep(values, workdir: str) -> None:
  base = open_models.of_flags(values).to_dict()
  cluster = _cluster(values, workdir)
  specs = _specs(values, base, workdir)
  chosen = _chosen(specs, values)
  # Results are of all trials of the folder.
  all_specs = folder.with_others(workdir, specs)
  comparison.check(all_specs, values.metric, values.baseline)
  plan.check_unchanged(all_specs)
  counts = _check(chosen, values)
  if values.dry_run:
    _print_plan(chosen, counts)
    app.print_result({'trials': len(chosen), 'parameters': counts})
    return
  folder.write(workdir, base, specs)
  for spec in chosen if values.retry else ():
    workdir_lib.reopen(spec.path)
  _train(chosen, values, cluster)
  if buckets.origin(workdir) != workdir:
    # Without a lock, another command may have replaced it.
    folder.write(workdir, base, specs)
  report = results.report_at_end(workdir, values, specs)
  app.print_result(report)
  statuses = [workdir_lib.read_status(spec.path) for spec in chosen]
  failed = sum(status.get('status') == 'FAILED' for status in statuses)
  if failed:
    words = [word for word in provenance.command() if word != '--retry']
    again = provenance.shell_line([*words, '--retry'])
    raise Failed(f'{failed} of {len(chosen)} trials; to retry: {again}')
  diverged = sum(status.get('status') == 'DIVERGED' for status in statuses)
  if chosen and diverged == len(chosen):
    raise Diverged(f'all {diverged} trials')
  unfinished = engines.unfinished(chosen)
  if unfinished:
    raise Interrupted(
      f'{len(unfinished)} trials are unfinished; run the same command again'
    )


def _train(specs: list[plan.Spec], values, cluster) -> None:
  """Trains unfinished trials by the engine of --engine."""
  to_train = engines.unfinished(specs)
  if not to_train:
    log(f'none of {len(specs)} trials has steps left')
    return
  engine, why = values.engine, 'chosen by --engine'
  if engine == 'auto':
    engine, why = engines.choose(specs)
  log(f'{len(to_train)} of {len(specs)} trials to train, {engine}: {why}')
  signals = Signals()
  signals.install()
  metric = values.metric or specs[0].settings.checkpoint.best_metric
  watch = watch_lib.Watch(specs, metric)
  with watch.bar:
    if engine == 'ray':
      ray_cluster.train(specs, values.group_size, cluster, watch, signals)
      return
    if engine == 'processes':
      workers.train(specs, cluster.workdir, watch, signals)
      return
    size = 1 if engine == 'serial' else values.group_size
    shared = engines.Shared()
    for group in plan.groups(specs, size):
      left = engines.unfinished(group)
      watch.begin(left)
      engines.train(group, signals, shared)
      watch.end(left)


def _cluster(values, workdir: str) -> ray_cluster.Cluster:
  """The cluster of engine ray; UserError without Ray."""
  if values.engine == 'ray' and importlib.util.find_spec('ray') is None:
    raise UserError(
      '--engine=ray: Ray is not installed: bash scripts/run.sh pip install ray'
    )
  if values.engine != 'ray':
    names = ('ray_address', 'ray_resources')
    refuse(values, names, f'is for --engine=ray, which is {values.engine}')
  resources = ray_cluster.parse(values.ray_resources)
  return ray_cluster.Cluster(workdir, values.ray_address, resources)


def _check(specs, values) -> dict[int, int]:
  """Parameter counts by trial; loads data only for trials to be trained."""
  counts, to_check = {}, []
  to_train = {spec.index for spec in engines.unfinished(specs)}
  for spec in specs:
    status = workdir_lib.read_status(spec.path)
    is_retried = values.retry and status.get('status') in workdir_lib.RETRIED
    if 'parameters' in status:
      counts[spec.index] = status['parameters']
    elif values.dry_run or spec.index in to_train or is_retried:
      to_check.append(spec)
  counts |= plan.check_data_and_shapes(to_check)
  return dict(sorted(counts.items()))


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
