"""Trains a text classifier, evaluates it, and keeps what it learnt.

    bash scripts/run.sh experiments.train
    bash scripts/run.sh experiments.train --config=configs/trec.py \
        --config.data.dir=PATH --workdir=runs/trec

The same command again resumes where it stopped, or prints the result at once
if it is done. The last line of standard output is one JSON object: how the
best checkpoint, by the validation split, does on the test split.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time

import jax
import numpy as np

from experiments import build, data, distributed, launch, peak, programs, steps
from experiments import settings as settings_lib
from experiments import workdir as workdir_lib
from experiments.batches import TrainBatches
from experiments.choices import UserError
from experiments.evaluate import evaluate, summarize
from experiments.launch import log
from experiments.settings import Settings
from experiments.signals import Interrupted, Signals
from experiments.steps import State
from experiments.trials import Group


def train(
  group: Group, loaded: data.Data, signals: Signals, until: int | None = None
) -> list[dict[str, float] | None]:
  """Trains to the end; returns how the best state of each does on test.

  None stands for a trial that diverged, or that stopped early.

  Args:
    until: a step that is evaluated, to stop after; None: the last one.

  Raises:
    Interrupted: a signal came; the state after the last update is saved.
    Diverged: all did; no state that is not finite is ever saved.
    Failed: a checkpoint could not be written.
  """
  settings, program = group.trials[0].settings, group.program
  batches = TrainBatches(
    loaded.splits['train'],
    settings.train.batch_size,
    settings.data.seed,
    loaded.bucket_lengths,
    program.share,
  )
  state = group.initial_state()
  shapes = program.template.params
  _print_header(group, loaded, batches.steps_per_epoch, shapes)
  flops = functools.cache(
    functools.partial(steps.model_flops, program.classifier, shapes)
  )

  def update(state, step):
    batch = program.put(batches(step))
    group.progress.count(len(group.trials) * flops(batch.tokens.shape))
    return program.train_step(state, batch, group.hyper)

  def evaluated(params, split):
    found = evaluate(
      program,
      params,
      loaded.splits[split],
      settings.train.eval_batch_size,
      loaded.bucket_lengths,
      signals.check,
    )
    if program.size is None:
      found = [array[None] for array in found]
    labels = loaded.splits[split].labels
    return [
      summarize(labels, losses, logits)
      for _, losses, logits in zip(group.trials, *found, strict=False)
    ]

  state = _loop(
    settings,
    group,
    state,
    update,
    lambda params: evaluated(params, 'validation'),
    signals,
    until or settings.train.steps,
  )
  group.flush()
  group.wait()
  if until is not None and until < settings.train.steps:
    return [None] * len(group.trials)
  trained = [trial for trial in group.trials if trial.diverged is None]
  best = [trial.checkpoints.best() for trial in trained]
  state = group.restore(trained, best)
  found = {
    trial.workdir: scores | {'step': step}
    for trial, scores, step in zip(
      trained, evaluated(state.params, 'test'), best, strict=False
    )
  }
  return [found.get(trial.workdir) for trial in group.trials]


def _loop(settings, group, state, update, validate, signals, until) -> State:
  """One update after another; `step` counts those that are applied."""
  every, last = settings.train, settings.train.steps
  start, saves = int(np.max(state.step)), settings.checkpoint.every_steps

  def due(step, interval):
    return step % interval == 0 or step == last

  def save(step):
    group.flush()
    if group.newest_saved() != step:
      group.save(state)

  if start and due(start, every.eval_every) and group.lacks_evaluation(start):
    group.keep(start, evaluations=validate(state.params))
  ahead = programs.RunAhead()
  for step in range(start + 1, until + 1):
    state, measured = update(state, step - 1)
    ahead.add(measured)
    # Read one step late: this update runs while the last one is written down.
    group.flush()
    if step == start + 1:
      jax.block_until_ready(state)
      log('compiled; first update done')
      most, source = peak.flops_per_second(jax.local_devices()[0])
      most *= group.program.mesh.size
      log(f'mfu is of {most / 1e9:.0f} GFLOP/s ({source})')
      group.progress.start_clock(step, most)
    if due(step, every.log_every):
      group.keep(step, measured=measured)
    try:
      if due(step, every.eval_every):
        group.keep(step, evaluations=validate(state.params))
      if step < until:
        signals.check()
    except Interrupted as error:
      save(step)
      group.wait()
      raise Interrupted(f'{error}; saved after step {step}') from None
    if any(due(step, n) for n in (every.eval_every, saves)):
      save(step)
  return state


def _print_header(group, loaded, steps_per_epoch, params) -> None:
  settings = group.trials[0].settings
  devices = list(group.program.mesh.devices.flat)
  batch, last = settings.train.batch_size, settings.train.steps
  counts = ', '.join(f'{len(e)} {s}' for s, e in loaded.splits.items())
  padded = ', '.join(map(str, loaded.bucket_lengths))
  for trial in group.trials:
    workdir_lib.record_environment(trial.workdir, devices)
  log(
    f'backend {devices[0].platform}, {len(devices)} x '
    f'{devices[0].device_kind}; jax {jax.__version__}; '
    f'workdir {", ".join(trial.workdir.path for trial in group.trials)}'
  )
  log(
    f'data {settings.data.source.name}: {counts}; {len(loaded.labels)} '
    f'classes, {loaded.vocab_size} token ids, padded to {padded}'
  )
  log(
    f'model: {settings.model.encoder.name} encoder, '
    f'{settings.model.position.name} positions, '
    f'{build.count_parameters(params):,} parameters'
  )
  parts = group.program.mesh.shape['data']
  place = 'on one device'
  if parts > 1:
    place = f'over {parts} devices, {-(-batch // parts)} rows each'
  if group.program.size is not None:
    place += f', for each of {len(group.trials)} trials'
  log(
    f'batch {batch} {place}; {steps_per_epoch} steps an epoch, '
    f'{last} steps are {last / steps_per_epoch:.1f} epochs'
  )


def run(config, path: str, signals: Signals) -> dict[str, object]:
  """Checks everything, trains in the workdir `path`, returns the result.

  Args:
    config: a ConfigDict.
    path: an empty or new folder, or one of the same run.

  Raises:
    UserError: before a device is touched.
    Interrupted, Diverged, Failed: as `train`.
  """
  settings = settings_lib.from_config(config)
  result = finished(path, settings)
  if result is not None:
    return result
  loaded = _load(settings, path)
  distributed.check_shared(path)
  signals.check()
  program = programs.make(settings, loaded.vocab_size, len(loaded.labels))
  runs = [(config.to_dict(), settings, path)]
  return run_group(runs, loaded, program, signals)[0]


def _load(settings: Settings, path: str) -> data.Data:
  error = None
  try:
    loaded = data.load(settings.data, path)
  except UserError as wrong:
    error = wrong
  distributed.agree(error)
  return loaded


def finished(path: str, settings: Settings) -> dict[str, object] | None:
  """The result of the run in `path` if it is done, else None.

  Raises:
    UserError: the folder holds something else.
  """
  workdir_lib.check(path, settings)
  status = workdir_lib.read_status(path)
  if status.get('status') != 'DONE':
    return None
  log(f'{path} is done after {status["step"]} steps')
  return status['result']


def run_group(
  runs: list[tuple[dict, Settings, str]],
  loaded: data.Data,
  program: programs.Program,
  signals: Signals,
  until: int | None = None,
) -> list[dict[str, object] | None]:
  """Trains runs that share a program; results, or None as `train` says.

  Args:
    runs: config, settings and workdir of each.
    until: as of `train`; a run that stops there is PAUSED.

  Raises:
    Interrupted, Diverged: as `train`.
  """
  started = time.monotonic()
  workdirs = []
  index = jax.process_index()
  for config, _, path in runs:
    workdir = workdir_lib.open_workdir(path, config, loaded.files, index == 0)
    reached = workdir_lib.read_status(path).get('step', 0)
    workdir.set_status('RUNNING', reached)
    workdirs.append(workdir)
  try:
    with contextlib.ExitStack() as on_exit:
      for workdir in workdirs:
        kept = launch.keep_log(workdir.file(f'log-{index}.txt'))
        on_exit.enter_context(kept)
      settings = [settings for _, settings, _ in runs]
      pairs = list(zip(settings, workdirs, strict=True))
      group = Group(program, pairs, on_exit)
      found = train(group, loaded, signals, until)
  except BaseException as error:
    ended = 'INTERRUPTED' if isinstance(error, Interrupted) else 'FAILED'
    for workdir in workdirs:
      status = workdir_lib.read_status(workdir.path)
      if status.get('status') == 'RUNNING':
        workdir.set_status(ended, status['step'], reason=str(error))
    raise
  results = []
  for (_, settings, _), workdir, scores in zip(
    runs, workdirs, found, strict=True
  ):
    if scores is None:
      if workdir_lib.read_status(workdir.path)['status'] == 'RUNNING':
        workdir.set_status('PAUSED', until)
      results.append(None)
      continue
    result = {'split': 'test', **scores, 'workdir': workdir.path}
    workdir.set_status(
      'DONE',
      settings.train.steps,
      result=result,
      seconds=round(time.monotonic() - started, 1),
      parameters=build.count_parameters(program.template.params),
    )
    results.append(result)
  return results


def default_workdir(config, config_path: str) -> str:
  """runs/NAME-DIGEST: the same for the same settings, else another."""
  name = os.path.splitext(os.path.basename(config_path))[0]
  digest = settings_lib.from_config(config).digest()
  return os.path.join('runs', f'{name}-{digest}')


def _define(values) -> None:
  distributed.define(values)
  launch.flags.DEFINE_string(
    'workdir',
    None,
    'Folder of the run; runs/NAME-DIGEST if not given.',
    flag_values=values,
  )
  launch.flags.DEFINE_string(
    'init_from',
    None,
    'Workdir of a run whose parameters to begin with, as far as they fit.',
    flag_values=values,
  )


def main(values) -> None:
  """Trains as the flags say."""
  config = values.config
  if values.init_from is not None:
    config.train.init_from = os.path.abspath(values.init_from)
  path = values.workdir or default_workdir(config, values.config_path)
  signals = Signals()
  signals.install()
  settings = settings_lib.from_config(config)
  cluster = distributed.find(values, os.environ)
  result = finished(path, settings)
  if result is None:
    if cluster is not None:
      distributed.join(cluster, values.start_timeout, values.peer_timeout)
      signals.share(distributed.is_asked_to_end)
    result = run(config, path, signals)
  if cluster is None or jax.process_index() == 0:
    launch.print_result(result)


if __name__ == '__main__':
  launch.run(main, _define, __doc__, takes_config=True)
