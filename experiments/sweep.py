"""Trains many runs, and says which setting is best and how sure that is.

    bash scripts/run.sh experiments.sweep --config=configs/trec.py \\
        --config.data.dir=PATH --sweep=positions,seeds --workdir=runs/positions
    bash scripts/run.sh experiments.sweep --workdir=runs/lr \\
        --sweep_over config.optimizer.learning_rate=1e-4,3e-4,1e-3 \\
        --sweep_over config.seed=0,1,2
    bash scripts/run.sh experiments.sweep --workdir=runs/lr --report

Every trial is checked before the first one starts. The same command again
skips those that are done and resumes those that were cut. Settings are ranked
by their means over seeds on validation, with test beside it. Results are in
results.csv, results.json, table.md and pictures; the last line of standard
output is one JSON object.
"""

from __future__ import annotations

import os
import shlex

import jax

from experiments.command import app, config_files
from experiments.command.errors import Failed, Interrupted, UserError
from experiments.command.log import log
from experiments.settings import extensions
from experiments.sweeps import (
  comparison,
  distinct,
  engines,
  folder,
  halving,
  plan,
  ray_cluster,
  running,
  summary,
)
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib


def _define(values) -> None:
  flags = app.flags
  cores = len(os.sched_getaffinity(0))
  flags.DEFINE_string('workdir', None, 'Of the sweep.', flag_values=values)
  flags.DEFINE_list(
    'sweep', [], 'Generators sweep_NAME of the config.', flag_values=values
  )
  flags.DEFINE_multi_string(
    'sweep_over',
    [],
    'config.KEY=VALUE,VALUE,...; quotes or brackets keep commas in a value.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'engine', 'auto', ['auto', *running.ENGINES], 'How.', flag_values=values
  )
  flags.DEFINE_list(
    'only', [], 'Places of the trials to run, from 0.', flag_values=values
  )
  for name, default, text in (
    ('max_parallel', cores, 'Processes at once, of engine processes.'),
    ('group_size', 32, 'Trials trained as one, at most.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)
  flags.DEFINE_string(
    'ray_address', '', 'Cluster of engine ray; empty: here.', flag_values=values
  )
  flags.DEFINE_list(
    'rungs', [], 'Steps after which trials are dropped.', flag_values=values
  )
  flags.DEFINE_float(
    'keep_fraction', 0.5, 'Of trials, at a rung.', 0.0, 1.0, flag_values=values
  )
  for name, text in (
    ('dry_run', 'Print the trials, and train none.'),
    ('report', 'Print what there is, and train none.'),
    ('retry', 'Train those that failed again.'),
  ):
    flags.DEFINE_bool(name, False, text, flag_values=values)
  comparison.define(values)


def _specs(values, base: dict, workdir: str) -> list[plan.Spec]:
  module, config = config_files.load_module(values.config_path)
  sweeps = [plan.named(module, name) for name in values.sweep]
  sweeps += [plan.over(text, config) for text in values.sweep_over]
  if not sweeps:
    raise UserError(
      '--sweep and --sweep_over are missing; give generators of the config, '
      'or config.KEY=VALUE,VALUE'
    )
  return plan.make(base, plan.product(sweeps), workdir)


def _chosen(specs, only: list[str]) -> list[plan.Spec]:
  if not only:
    return specs
  count = sum(1 + len(spec.repeats) for spec in specs)
  for text in only:
    if not text.isdecimal() or int(text) >= count:
      raise UserError(
        f'--only={text} is not the place of a trial, 0 to {count - 1}'
      )
  indices = list(map(int, only))
  for spec in specs:
    for index in sorted(set(indices) & set(spec.repeats)):
      log(f'trial {index} is the same as trial {spec.index}: left to that one')
  return [spec for spec in specs if spec.index in indices]


def _print_plan(specs, counts, values, base) -> None:
  order = list(plan.programs_of(specs))
  groups = plan.programs_of(specs)
  number = {
    spec.index: order.index(key) for key in order for spec in groups[key]
  }
  for spec in specs:
    log(
      f'trial {spec.index} {spec.name}  program {number[spec.index]}  '
      f'{counts[spec.index]:,} parameters  {plan.describe(spec.overrides)}'
    )
    log(f'  {plan.command(spec, values.config_path, base)}')
  log(f'{len(specs)} trials, {len(order)} programs')


def main(values) -> None:
  """Plans, checks, trains, reports."""
  workdir = app.required(values, 'workdir')
  if workdir.startswith(buckets.SCHEMES):
    raise UserError(
      f'--workdir={workdir}: a sweep needs a file system, such as the bucket '
      'mounted by gcsfuse; experiments.train takes the address itself'
    )
  workdir = os.path.abspath(workdir)
  if values.report:
    app.print_result(summary.write(workdir, values))
    return
  extensions.add(values.config, values.config_path)
  base = values.config.to_dict()
  if values.engine == 'ray' and ray_cluster.why_not():
    raise UserError(f'--engine=ray: {ray_cluster.why_not()}')
  planned = _specs(values, base, workdir)
  specs = distinct.distinct(planned)
  chosen = _chosen(specs, values.only)
  rungs = halving.parse(values.rungs, values.keep_fraction, specs)
  comparison.check(specs, values.metric, values.over, values.baseline)
  if values.engine == 'processes':
    # The accelerator belongs to the processes; this one only plans.
    jax.config.update('jax_platforms', 'cpu')
  if (repeated := distinct.warning(specs)) is not None:
    log(repeated)
  counts = _check(chosen, values)
  if values.dry_run:
    _print_plan(chosen, counts, values, base)
    app.print_result({'trials': len(chosen), 'parameters': counts})
    return
  folder.write(workdir, base, planned)
  if values.retry:
    for spec in chosen:
      workdir_lib.forget_failure(spec.path)
  running.train(
    chosen,
    rungs,
    values.engine,
    engines.Options(
      workdir=workdir,
      until=None,
      max_parallel=values.max_parallel,
      group_size=values.group_size,
      ray_address=values.ray_address,
    ),
  )
  report = summary.write(workdir, values)
  app.print_result(report)
  failed = report['trials'].get('FAILED', 0)
  if failed:
    words = [word for word in app.command() if word != '--retry']
    again = shlex.join(['bash', 'scripts/run.sh', *words, '--retry'])
    raise Failed(f'{failed} of {len(specs)} trials; again: {again}')
  unfinished = running.waiting(chosen)
  if unfinished:
    raise Interrupted(
      f'{len(unfinished)} trials have steps to go; run the same command again'
    )


def _check(specs, values) -> dict[int, int]:
  """Parameters by index; reads data only for what is going to be trained."""
  counts, to_check = {}, []
  for spec in specs:
    status = workdir_lib.read_status(spec.path)
    if 'parameters' in status:
      counts[spec.index] = status['parameters']
    elif (
      values.dry_run
      or engines.is_waiting(spec, None)
      or (values.retry and status['status'] == 'FAILED')
    ):
      to_check.append(spec)
  counts |= plan.check_data_and_shapes(to_check)
  return dict(sorted(counts.items()))


if __name__ == '__main__':
  app.run(main, _define, __doc__, takes_config=True)
