"""The loop: batch, step, log, evaluate, save.

One loop trains a run alone or a group of runs that share a program.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.command import calls
from experiments.command.errors import Interrupted
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.data import loading, streams
from experiments.data.batches import Batch, TrainBatches
from experiments.learning import curricula
from experiments.learning.steps import State
from experiments.learning.text_tasks import TextTask
from experiments.training import callbacks, lengths
from experiments.training.evaluation import RunAhead, evaluate
from experiments.training.groups import Group
from experiments.workdir import buckets


def train(
  group: Group,
  state: State,
  loaded: loading.Data,
  signals: Signals,
) -> list[dict[str, float | None] | None]:
  """Trains to the end; returns the test scores of each best State.

  They are None for a trial that diverged.

  Args:
    state: to go on from.

  Raises:
    Interrupted: a signal was received; the State after the last step is saved.
    Diverged: all trials did; a State that is not finite is never saved.
    Failed: a checkpoint could not be written.
  """
  batches = _batches(group, loaded)
  _print_header(group, loaded, batches[0].steps_per_epoch)
  evaluated = functools.partial(_evaluated, group, loaded, signals)
  batch = _cut(group, batches, loaded.longest)
  with group.progress.bar:
    _loop(group, state, batch, evaluated, signals)
  group.flush()
  group.wait()
  best, params = group.restore_best()
  fits, task = None, group.program.task
  if isinstance(task, TextTask):
    examples = loaded.splits['validation']
    rows = group.program.settings.train.eval_batch_size
    of_validation = _outputs(
      group, signals, params, examples, rows, loaded.bucket_lengths
    )
    fits = [task.fit(of_task, examples.labels) for of_task, _ in of_validation]
    group.keep_fits(best, fits)
  scores = iter(evaluated('test', params, fits))
  return [
    None if step is None else next(scores) | {'step': step} for step in best
  ]


def _batches(group: Group, loaded: loading.Data) -> list[TrainBatches]:
  """The batches of training: of all trials, or of each, see put_train."""
  program = group.program
  settings = program.settings
  of_all = TrainBatches(
    loaded.splits['train'],
    settings.train.batch_size,
    settings.data.seed,
    loaded.bucket_lengths,
    program.share,
    max_shift=settings.data.max_length * settings.data.is_stream,
  )
  if not settings.train.shuffle_by_seed:
    return [of_all]
  return [
    dataclasses.replace(of_all, order_seed=trial.settings.seed)
    for trial in group.trials
  ]


def _cut(
  group: Group, batches: list[TrainBatches], most: int
) -> list[Callable]:
  """Functions from a step to its batch, as the curriculum cuts it.

  Args:
    most: tokens of the longest text.
  """
  data, train = group.program.settings.data, group.program.settings.train
  if train.curriculum.name == 'whole':
    return [*batches]
  with train.curriculum.checked():
    changes = curricula.changes(train.curriculum.make(), train.steps, most)
  said = (f'{n} from step {step + 1} on' for step, n in changes.items())
  log(f'tokens of a text, at most: {", ".join(said)}')
  if min(changes.values(), default=0) >= most:
    log(
      f'WARNING: config.train.curriculum = {train.curriculum} cuts no text: '
      f'the longest has {most} tokens'
    )
  cut_from = [*changes]

  def batch(of_trial: TrainBatches, step: int) -> Batch:
    start = cut_from[bisect.bisect_right(cut_from, step) - 1]
    # A window of a stream has a token more, which is predicted alone.
    return curricula.cut(of_trial(step), changes[start] + data.is_stream)

  return [functools.partial(batch, of_trial) for of_trial in batches]


def _evaluated(
  group: Group,
  loaded: loading.Data,
  signals: Signals,
  split: str,
  params,
  fits: list[dict[str, Any]] | None = None,
) -> list[dict[str, float | None]]:
  """The metrics of a split, of each trial; raises as loading.Data.scores.

  Args:
    fits: what was fitted for each trial; None: nothing.
  """
  program = group.program
  examples, lengths_of_data = loaded.splits[split], loaded.bucket_lengths
  train = program.settings.train
  measures = [call.label for call in train.measures]
  rows = train.eval_batch_size

  def scores_of(examples, rows, padded) -> list[dict[str, float | None]]:
    of_trials = _outputs(group, signals, params, examples, rows, padded)
    fits_of = fits or itertools.repeat({})
    scores = []
    for (outputs, measured), fit in zip(of_trials, fits_of, strict=False):
      task = program.task
      if isinstance(task, TextTask):
        outputs = task.average([outputs], [fit], examples.labels)
        task = task.fitted([fit])
      means = (float(of_texts.mean()) for of_texts in measured)
      scores.append(
        loaded.scores(split, task, outputs, examples)
        | dict(zip(measures, means, strict=True))
      )
    return scores

  scores = scores_of(examples, rows, lengths_of_data)
  for length in train.eval_lengths:
    if lengths.unsupported(program, length):
      continue
    # A text may have fewer tokens than a window.
    most = min(length, len(examples.tokens) - 1)
    windows = streams.windows(examples.tokens, most)
    fewer = max(rows * program.settings.data.max_length // most, 1)
    of_length = scores_of(windows, fewer, (most + 1,))
    for of_trial, more in zip(scores, of_length, strict=True):
      for name in ('bits_per_byte', *measures):
        of_trial[f'{name}_{length}'] = more[name]
  return scores


def _outputs(
  group: Group, signals: Signals, params, examples, rows: int, padded
) -> list[tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]]:
  """(Task.outputs, measures) of examples, of each trial."""
  program = group.program
  outputs = evaluate(program, params, examples, rows, padded, signals.check)
  if program.size is None:
    outputs = tuple(array[None] for array in outputs)
  count = len(outputs) - len(program.settings.train.measures)
  return [
    (tuple(arrays[:count]), tuple(arrays[count:]))
    for _, *arrays in zip(group.trials, *outputs, strict=False)
  ]


def _loop(
  group: Group,
  state: State,
  batches: list[Callable],
  evaluated: Callable,
  signals: Signals,
) -> None:
  """Trains from `state` on; `step` counts the steps applied."""
  program, every = group.program, group.program.settings.train
  saves = program.settings.checkpoint.every_steps
  callback = callbacks.named(every.callback)
  start = int(np.max(state.step))

  def due(step, interval):
    return step % interval == 0 or step == every.steps

  def validate(step) -> list[dict]:
    scores = evaluated('validation', state.eval_params)
    group.keep(step, evaluations=scores)
    return scores

  def call(step, scores):
    if callback and scores:
      callbacks.call(callback, group, step, scores, state.eval_params)

  has_scores = all(
    trial.has_stopped or trial.writer.has_evaluation(start)
    for trial in group.trials
  )
  is_due = due(start, every.eval_every) and (start > 0 or every.steps == 0)
  scores = []
  if is_due and not has_scores:
    # It was interrupted before this evaluation, or has no step.
    scores = validate(start)
    group.flush()
  if every.steps == 0:
    group.save(state, {})
  call(start, scores)
  ahead = RunAhead()
  for step in range(start + 1, every.steps + 1):
    if group.has_stopped:
      log(
        f'stopped after step {step - 1}: config.train.patience = '
        f'{every.patience} evaluations without a better score'
      )
      break
    batch = program.put_train([one(step - 1) for one in batches])
    state, measured = program.train_step(state, batch, group.hparams)
    ahead.add(measured)
    group.progress.bar.add(1)
    # Read one step late: this step runs while the last one is written.
    group.flush()
    if step == start + 1:
      jax.block_until_ready(state)
      log('compiled; first update done')
      group.progress.start_clock(step)
    if due(step, every.log_every):
      group.keep(step, measured=measured)
    scores = []
    try:
      if due(step, every.eval_every):
        scores = validate(step)
      if step < every.steps:
        signals.check()
    except Interrupted as error:
      group.flush()
      group.save(state, measured)
      group.wait()
      call(step, scores)
      raise Interrupted(
        f'{error}; saved after step {step}, from which the same command resumes'
      ) from None
    if any(due(step, interval) for interval in (every.eval_every, saves)):
      group.flush()
      group.save(state, measured)
    # It may fail, and the step is saved.
    call(step, scores)


def _print_header(group: Group, loaded: loading.Data, epoch: int) -> None:
  """Logs what is trained, on what.

  Args:
    epoch: steps of an epoch.
  """
  program, trials = group.program, group.trials
  settings, devices = program.settings, list(program.mesh.devices.flat)
  splits = loaded.splits.items()
  counts = ', '.join(f'{len(part)} {split}' for split, part in splits)
  num_labels = len(loaded.label_facts.names)
  labels = f'{num_labels} labels, ' if num_labels > 1 else ''
  log(
    f'backend {devices[0].platform}, {len(devices)} x '
    f'{devices[0].device_kind}; jax {jax.__version__}; '
    f'workdir {", ".join(trial.workdir.path for trial in trials)}'
  )
  if len(trials) == 1:
    folder = buckets.origin(trials[0].workdir.path)
    log(f'curves: tensorboard --logdir={folder}')
  log(
    f'data {settings.data.source.name}: {counts}; {labels}'
    f'{loaded.vocabulary.size} token ids, padded to '
    f'{", ".join(map(str, loaded.bucket_lengths))}'
  )
  log(
    f'model: {settings.model.encoder} encoder, '
    f'{calls.text(settings.model.position)} positions, '
    f'{program.num_parameters:,} parameters'
  )
  batch, parts = settings.train.batch_size, program.mesh.shape['data']
  where = 'on one device'
  if parts > 1:
    where = f'over {parts} devices, {-(-batch // parts)} rows each'
  if program.size is not None:
    where += f', for each of {len(trials)} trials'
  # The last token of a window of a stream is only predicted.
  longest = min(loaded.bucket_lengths[-1], settings.data.max_length)
  count, rows = program.microbatches(longest)
  if count > 1:
    where += f', in {count} microbatches of {rows}'
  log(f'batch {batch} {where}')
  if attention := program.attention(longest):
    log(f'attention over {longest} tokens: {attention}')
  steps = settings.train.steps
  log(
    f'{settings.task}: {steps} steps are {steps / epoch:.1f} epochs of {epoch}'
  )
