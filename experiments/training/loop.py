"""The loop: batch, step, log, evaluate, save.

One loop trains a run alone or a group of runs that share a program.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from experiments.command import calls
from experiments.command.errors import Interrupted, UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.data.batches import TrainBatches
from experiments.learning.steps import State
from experiments.training import compiled
from experiments.training.evaluation import evaluate
from experiments.training.groups import Group
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib


def train(
  group: Group, loaded: loading.Data, signals: Signals, until: int | None = None
) -> list[dict[str, float] | None]:
  """Trains to the end; returns the test scores of each best State.

  They are None for a trial that diverged, or that stops before the last step.

  Args:
    until: a step with an evaluation, to stop after; None: the last one.

  Raises:
    Interrupted: a signal was received; the State after the last step is saved.
    Diverged: all trials did; a State that is not finite is never saved.
    Failed: a checkpoint could not be written.
  """
  settings = group.trials[0].settings
  batches = _batches(group, loaded)
  state = group.initial_state()
  _print_header(group, loaded, batches[0].steps_per_epoch)
  last = until or settings.train.steps
  validate = functools.partial(_evaluated, group, loaded, 'validation', signals)
  state = _loop(group, state, batches, validate, signals, last)
  group.flush()
  group.wait()
  if last < settings.train.steps:
    return [None] * len(group.trials)
  trained = [trial for trial in group.trials if trial.diverged is None]
  best, state = group.restore_best(trained)
  scores = _evaluated(group, loaded, 'test', signals, state.eval_params)
  found = {
    trial.workdir: own | {'step': step}
    for trial, own, step in zip(trained, scores, best, strict=False)
  }
  return [found.get(trial.workdir) for trial in group.trials]


def _batches(group, loaded) -> list[TrainBatches]:
  """The batches of training: of all trials, or of each, see put_train."""
  settings, program = group.trials[0].settings, group.program
  reads_labels = program.task.reads_labels
  of_all = TrainBatches(
    loaded.splits['train'] if reads_labels else loaded.with_unlabelled,
    settings.train.batch_size,
    settings.data.seed,
    loaded.bucket_lengths,
    program.share,
  )
  if not settings.train.shuffle_by_seed:
    return [of_all]
  return [
    dataclasses.replace(of_all, order_seed=trial.settings.seed)
    for trial in group.trials
  ]


def _evaluated(group, loaded, split, signals, params) -> list[dict]:
  """The metrics of a split, of each trial."""
  settings, program = group.trials[0].settings, group.program
  examples = loaded.splits[split]
  found = evaluate(
    program,
    params,
    examples,
    settings.train.eval_batch_size,
    loaded.bucket_lengths,
    signals.check,
  )
  if program.size is None:
    found = [array[None] for array in found]
  return [
    _scores(program.task, outputs, examples.labels)
    for _, *outputs in zip(group.trials, *found, strict=False)
  ]


def _scores(task, outputs, labels) -> dict[str, float]:
  """The metrics of a task.

  Raises:
    UserError: one of a task of one's own lacks some.
  """
  found = task.scores(outputs, labels)
  if missing := sorted(task.metrics.keys() - found.keys()):
    raise UserError(
      f'{type(task).__name__}.scores returns {sorted(found)}, without '
      f'{missing} of its metrics'
    )
  return found


def _loop(group, state, batches, validate, signals, until) -> State:
  """Trains from `state` on; `step` counts the steps applied."""
  settings, program = group.trials[0].settings, group.program
  hparams = group.hparams()
  every, saves = settings.train, settings.checkpoint.every_steps
  start = int(np.max(state.step))

  def due(step, interval):
    return step % interval == 0 or step == every.steps

  def save(step):
    group.flush()
    if group.newest_saved() != step:
      group.save(state, measured)

  is_due = start > 0 and due(start, every.eval_every)
  if is_due and group.lacks_evaluation(start):
    group.keep(start, evaluations=validate(state.eval_params))
  ahead = compiled.RunAhead()
  for step in range(start + 1, until + 1):
    batch = program.put_train([batch_of(step - 1) for batch_of in batches])
    state, measured = program.train_step(state, batch, hparams)
    ahead.add(measured)
    # Read one step late: this step runs while the last one is written.
    group.flush()
    if step == start + 1:
      _start_clock(group, step, state)
    if due(step, every.log_every):
      group.keep(step, measured=measured)
    try:
      if due(step, every.eval_every):
        group.keep(step, evaluations=validate(state.eval_params))
      if step < until:
        signals.check()
    except Interrupted as error:
      save(step)
      group.wait()
      raise Interrupted(
        f'{error}; saved after step {step}, from which the same command resumes'
      ) from None
    if any(due(step, n) for n in (every.eval_every, saves)):
      save(step)
  return state


def _start_clock(group, step, state) -> None:
  """Measures speed from here on, when the first step is done."""
  jax.block_until_ready(state)
  log('compiled; first update done')
  group.progress.start_clock(step)


def _print_header(group, loaded, epoch: int) -> None:
  settings, program = group.trials[0].settings, group.program
  devices = list(program.mesh.devices.flat)
  batch = settings.train.batch_size
  sizes = {split: len(part) for split, part in loaded.splits.items()}
  if unlabelled := len(loaded.with_unlabelled) - sizes['train']:
    is_read = program.task.reads_labels
    sizes['for the vocabulary' if is_read else 'unlabelled'] = unlabelled
  counts = ', '.join(f'{count} {split}' for split, count in sizes.items())
  padded = ', '.join(map(str, loaded.bucket_lengths))
  for trial in group.trials:
    workdir_lib.record_environment(trial.workdir, devices)
  log(
    f'backend {devices[0].platform}, {len(devices)} x '
    f'{devices[0].device_kind}; jax {jax.__version__}; '
    f'workdir {", ".join(trial.workdir.path for trial in group.trials)}'
  )
  if len(group.trials) == 1:
    folder = buckets.origin(group.trials[0].workdir.path)
    log(f'curves: tensorboard --logdir={folder}')
  log(
    f'data {settings.data.source.name}: {counts}; {len(loaded.labels)} '
    f'classes, {loaded.vocabulary.size} token ids, padded to {padded}'
  )
  log(
    f'model: {settings.model.encoder} encoder, '
    f'{calls.layers_text(settings.model.position)} positions, '
    f'{program.num_parameters:,} parameters'
  )
  parts = program.mesh.shape['data']
  where = 'on one device'
  if parts > 1:
    where = f'over {parts} devices, {-(-batch // parts)} rows each'
  if program.size is not None:
    where += f', for each of {len(group.trials)} trials'
  log(f'batch {batch} {where}')
  longest = loaded.bucket_lengths[-1]
  if choice := program.attention_choice(longest):
    log(f'attention over {longest} tokens: {choice}')
  steps = settings.train.steps
  log(
    f'{settings.task}: {steps} steps are {steps / epoch:.1f} epochs of {epoch}'
  )
