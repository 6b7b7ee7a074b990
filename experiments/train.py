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

import jax
import jax.numpy as jnp

from experiments import build, checkpoints, data, launch, peak, steps
from experiments import settings as settings_lib
from experiments import workdir as workdir_lib
from experiments.batches import TrainBatches
from experiments.evaluate import summarize
from experiments.launch import Diverged, Interrupted, Signals, log
from experiments.metrics import MetricWriter
from experiments.optimizers import schedule
from experiments.settings import Settings
from experiments.steps import State
from experiments.workdir import Workdir


def train(
  settings: Settings, loaded: data.Data, workdir: Workdir, signals: Signals
) -> dict[str, float]:
  """Trains to the end; returns the scores of the best state on test.

  Raises:
    Interrupted: a signal came; the state after the last update is saved.
    Diverged: a loss or a gradient is not finite; no such state is saved.
  """
  classifier = build.model(settings, loaded.vocab_size, len(loaded.labels))
  hyper = jax.device_put(build.hyper(settings))
  batches = TrainBatches(
    loaded.splits['train'],
    settings.train.batch_size,
    settings.seed,
    loaded.bucket_lengths,
  )
  train_step = jax.jit(build.train_step(settings, classifier), donate_argnums=0)
  eval_step = jax.jit(steps.make_eval_step(classifier))

  def evaluated(params, split):
    batch_size = settings.train.eval_batch_size
    return summarize(
      eval_step,
      params,
      loaded.splits[split],
      batch_size,
      loaded.bucket_lengths,
    )[0]

  with contextlib.ExitStack() as on_exit:
    manager = checkpoints.open_manager(workdir.path, settings.checkpoint)
    on_exit.callback(manager.close)
    state = _initial_state(settings, classifier, hyper, manager)
    start = int(state.step)
    _print_header(settings, loaded, workdir, batches.steps_per_epoch, state)
    writer = MetricWriter(workdir, start, settings.train.steps)
    on_exit.callback(writer.close)

    shapes = jax.eval_shape(lambda: state.params)
    model_flops = functools.cache(
      functools.partial(steps.model_flops, classifier, shapes)
    )

    def update(state, step):
      batch = batches(step)
      writer.count(model_flops(batch.tokens.shape))
      return train_step(state, batch, hyper)

    state = _loop(
      settings,
      state,
      update,
      lambda params: evaluated(params, 'validation'),
      workdir,
      manager,
      writer,
      signals,
    )
    manager.wait_until_finished()
    best = checkpoints.best_step(manager, settings.checkpoint)
    state = checkpoints.restore(manager, best, state)
    return evaluated(state.params, 'test') | {'step': best}


def _loop(
  settings, state, update, validate, workdir, manager, writer, signals
) -> State:
  """One update after another; `step` counts those that are applied."""
  every, last = settings.train, settings.train.steps
  start = int(state.step)

  def due(step, interval):
    return step % interval == 0 or step == last

  for step in range(start + 1, last + 1):
    state, metrics = update(state, step - 1)
    # Read one step late: this update runs while the last one is written down.
    writer.flush()
    if step == start + 1:
      jax.block_until_ready(state)
      log('compiled; first update done')
      most, source = peak.flops_per_second(jax.devices()[0])
      log(f'mfu is of {most / 1e9:.0f} GFLOP/s ({source})')
      writer.start_clock(step, most)
    evaluation = None
    if due(step, every.log_every):
      writer.keep(step, _train_row(settings, metrics, step))
    if due(step, every.eval_every):
      evaluation = validate(state.params)
      writer.keep(step, {f'validation/{k}': v for k, v in evaluation.items()})
    if due(step, settings.checkpoint.every_steps) or evaluation:
      writer.flush()
      _save(manager, state, metrics, evaluation)
      workdir.set_status('RUNNING', step)
    if signals.received and step < last:
      writer.flush()
      if manager.latest_step() != step:
        _save(manager, state, metrics, None)
      manager.wait_until_finished()
      raise Interrupted(f'{signals.received}; saved after step {step}')
  return state


def _train_row(settings, metrics, step) -> dict[str, object]:
  warmup = settings.optimizer.warmup_steps
  factor = schedule(
    settings.optimizer.schedule, step - 1, warmup, settings.train.steps
  )
  rate = settings.optimizer.learning_rate * factor
  row = metrics | {'learning_rate': rate}
  return {f'train/{name}': value for name, value in row.items()}


def _save(manager, state, metrics, evaluation) -> None:
  for name, value in metrics.items():
    if not jnp.isfinite(value):
      raise Diverged(f'train/{name} is {value} at step {int(state.step)}')
  checkpoints.save(manager, state, evaluation)


def _initial_state(settings, classifier, hyper, manager) -> State:
  """The newest checkpoint, or a fresh state."""
  init = jax.jit(
    lambda key: build.init_state(settings, classifier, hyper.replace(key=key))
  )
  step = manager.latest_step()
  if step is None:
    log('starting fresh')
    return init(hyper.key)
  log(f'resuming after step {step}')
  template = jax.eval_shape(init, hyper.key)
  return checkpoints.restore(manager, step, template)


def _print_header(settings, loaded, workdir, steps_per_epoch, state) -> None:
  devices = jax.devices()
  batch, last = settings.train.batch_size, settings.train.steps
  counts = ', '.join(f'{len(e)} {s}' for s, e in loaded.splits.items())
  padded = ', '.join(map(str, loaded.bucket_lengths))
  workdir_lib.record_environment(workdir, devices)
  log(
    f'backend {jax.default_backend()}, {len(devices)} x '
    f'{devices[0].device_kind}; jax {jax.__version__}; '
    f'workdir {workdir.path}'
  )
  log(
    f'data {settings.data.source.name}: {counts}; {len(loaded.labels)} '
    f'classes, {loaded.vocab_size} token ids, padded to {padded}'
  )
  log(
    f'model: {settings.model.encoder.name} encoder, '
    f'{settings.model.position.name} positions, '
    f'{build.count_parameters(state.params):,} parameters'
  )
  log(
    f'batch {batch} on one device; {steps_per_epoch} steps an epoch, '
    f'{last} steps are {last / steps_per_epoch:.1f} epochs'
  )


def run(config, path: str, signals: Signals) -> dict[str, object]:
  """Checks everything, trains in the workdir `path`, returns the result.

  Args:
    config: a ConfigDict.
    path: an empty or new folder, or one of the same run.

  Raises:
    UserError: before a device is touched.
    Interrupted, Diverged: as `train`.
  """
  settings = settings_lib.from_config(config)
  workdir_lib.check(path, settings)
  status = workdir_lib.read_status(path)
  if status.get('status') == 'DONE':
    log(f'{path} is done after {status["step"]} steps')
    return status['result']
  loaded = data.load(settings.data, path)
  workdir = workdir_lib.open_workdir(path, config.to_dict(), loaded.files)
  reached = status.get('step', 0)
  workdir.set_status('RUNNING', reached)
  try:
    scores = train(settings, loaded, workdir, signals)
  except BaseException as error:
    ended = {Interrupted: 'INTERRUPTED', Diverged: 'DIVERGED'}
    reached = workdir_lib.read_status(path)['step']
    workdir.set_status(ended.get(type(error), 'FAILED'), reached)
    raise
  result = {'split': 'test', **scores, 'workdir': workdir.path}
  workdir.set_status('DONE', settings.train.steps, result=result)
  return result


def default_workdir(config, config_path: str) -> str:
  """runs/NAME-DIGEST: the same for the same settings, else another."""
  name = os.path.splitext(os.path.basename(config_path))[0]
  digest = settings_lib.from_config(config).digest()
  return os.path.join('runs', f'{name}-{digest}')


def _define(values) -> None:
  launch.flags.DEFINE_string(
    'workdir',
    None,
    'Folder of the run; runs/NAME-DIGEST if not given.',
    flag_values=values,
  )


def main(values) -> None:
  """Trains as the flags say."""
  config = values.config
  path = values.workdir or default_workdir(config, values.config_path)
  signals = Signals()
  signals.install()
  launch.print_result(run(config, path, signals))


if __name__ == '__main__':
  launch.run(main, _define, __doc__, takes_config=True)
