"""Restoring a trained run, and evaluating it on a split."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import Reporter
from experiments.data import encoding, loading
from experiments.data.batches import Examples, eval_batches
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import compiled
from experiments.training.compiled import Program
from experiments.workdir import checkpoints as checkpoints_lib
from experiments.workdir.workdir import check_json, read_json

# What was chosen on validation after training, in a workdir.
CALIBRATION = 'calibration.json'
_OF_FIT = {'step': int, 'temperature': int | float}


class RunAhead:
  """Limits how many calls the host dispatches ahead of the devices.

  The CPU backend queues at most 32 programs with collectives; beyond that,
  devices of one process have been seen to deadlock.
  """

  _MOST = 16

  def __init__(self):
    self._results = collections.deque()

  def add(self, result) -> None:
    """Adds a result; waits for the oldest one if there are many."""
    self._results.append(result)
    if len(self._results) > self._MOST:
      jax.block_until_ready(self._results.popleft())


def evaluate(
  program: Program,
  params,
  examples: Examples,
  batch_size: int,
  lengths,
  check: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, ...]:
  """Task.outputs of every example, in the order of the split.

  `classify` has losses and logits. Values of config.train.measures come last.

  Args:
    program: of a run, or of a group; then outputs have its leading axis.
    lengths: bucket lengths of the data.
    check: is called between batches, and may raise.
  """
  ahead, outputs = RunAhead(), []
  batches = eval_batches(examples, batch_size, lengths, program.share)
  with Reporter(
    'evaluated {} examples', len(examples), has_lines=False
  ) as report:
    for rows, batch in batches:
      check()
      outputs.append((rows, program.eval_step(params, program.put(batch))))
      ahead.add(outputs[-1][1])
      report.add(len(rows))
  return _gathered(outputs, program.size, len(examples))


def _gathered(outputs, size: int | None, count: int) -> tuple[np.ndarray, ...]:
  """Results of batches, [(rows, arrays), ...], in the order of the split.

  Args:
    size: trials of the program.
    count: number of examples.
  """
  of_trials = (slice(None),) * (size is not None)
  gathered = []
  for index, first in enumerate(outputs[0][1]):
    shape = list(first.shape)
    shape[len(of_trials)] = count
    if first.ndim > len(of_trials) + 1:
      # Of labels of words there are no more than tokens of the batch.
      shape[-1] = max(arrays[index].shape[-1] for _, arrays in outputs)
    gathered.append(np.zeros(shape))
    for rows, arrays in outputs:
      part = np.asarray(arrays[index])[(*of_trials, slice(len(rows)))]
      place = (*of_trials, rows)
      if part.ndim > len(place):
        place = (*place, slice(part.shape[-1]))
      gathered[-1][place] = part
  return tuple(gathered)


def load_data(
  settings: Settings, path: str, directory: str | None
) -> loading.Data:
  """The data of the run in `path`; UserError if it is gone, or has changed.

  Args:
    directory: its folder, if it has moved; None: config.data.dir of the run.
  """
  data = settings.data
  if directory is not None:
    data = data.moved_to(directory)
  try:
    return loading.load(data, path, labels=settings.task.entry.labels)
  except UserError as error:
    if directory is not None or not data.dir or os.path.exists(data.dir):
      raise
    raise UserError(f'{error}; if it has moved, give --data_dir') from error


class Evaluated(NamedTuple):
  """A trained run, restored for evaluation.

  Attributes:
    settings: of the run.
    program: of the run.
    step: of the checkpoint.
    params: State.eval_params of the checkpoint.
    fit: what was chosen for it on validation, see TextTask.fit.
  """

  settings: Settings
  program: Program
  step: int
  params: chex.ArrayTree
  fit: dict[str, Any]


def restore_params(
  path: str,
  which: str,
  programs: dict[str, Program] | None = None,
  calibrated: bool = True,
) -> Evaluated:
  """Restores a trained run without the state that only training needs.

  Args:
    which: 'best', 'last' or a number of steps.
    programs: of runs of the same vocabulary and labels, by compiled.key; that
      of this run is taken from them, or added.
    calibrated: whether what was fitted on validation is used.

  Raises:
    UserError: there is no such checkpoint, or it does not match the settings.
    Corrupt: it cannot be read; with another one to read, if there is any.
  """
  settings = stored.read_settings(path)
  programs = {} if programs is None else programs
  # The task of a program has the mean and the deviation of numbers.
  facts = LabelFacts.of(loading.read_facts(path))
  key = f'{compiled.key(settings)} {facts.mean} {facts.std}'
  if key not in programs:
    programs[key] = program_of(path, settings)
  program = programs[key]
  template = program.template.eval_params
  with checkpoints_lib.reading(
    path, settings.checkpoint, settings.best
  ) as saved:
    step = _step(path, saved, which)
    try:
      is_part = program.settings.task != settings.task
      leaves = saved.restore_params(step, template, is_part)
    except checkpoints_lib.Corrupt as error:
      others = [other for other in saved.steps() if other != step]
      hint = f'; checkpoint {others[-1]} is another one' if others else ''
      raise checkpoints_lib.Corrupt(f'{error}{hint}') from error
  params = jax.tree.unflatten(jax.tree.structure(template), leaves.values())
  fit = _fit(path, step, len(facts.names)) if calibrated else {}
  return Evaluated(settings, program, step, params, fit)


def program_of(path: str, settings: Settings) -> Program:
  """The program of a trained workdir, with its vocabulary and labels.

  It has no measures, and no option of the task, that are of training alone.
  """
  train = dataclasses.replace(settings.train, measures=())
  task = settings.task.without(settings.task.entry.training_option)
  settings = dataclasses.replace(settings, train=train, task=task)
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  facts = LabelFacts.of(loading.read_facts(path))
  return compiled.make(settings, vocabulary, facts)


def _fit(path: str, step: int, num_labels: int) -> dict[str, Any]:
  """What a run has fitted on validation for the checkpoint of this step."""
  fit = read_json(path, CALIBRATION, {})
  kinds = _OF_FIT | {'thresholds': tuple[(int | float,) * num_labels]}
  check_json(path, CALIBRATION, fit, kinds, ())
  temperature = fit.get('temperature', 1.0)
  if not 0 < temperature < math.inf:
    raise UserError(
      f'{path}/{CALIBRATION} is damaged: temperature is {temperature}; restore '
      'it from a copy of the folder'
    )
  return fit if fit.pop('step', None) == step else {}


def _step(path: str, saved: checkpoints_lib.Checkpoints, which: str) -> int:
  """The step of 'best', 'last' or a number, of which there is a checkpoint."""
  steps = saved.steps()
  if not steps:
    raise UserError(f'{path} has no checkpoint yet')
  if which == 'last':
    return max(steps)
  if which == 'best':
    return saved.best() or max(steps)
  if which not in map(str, steps):
    names = ', '.join(map(str, ['best', 'last', *steps]))
    raise UserError(f'checkpoint = {which!r} of {path} is not one of {names}')
  return int(which)
