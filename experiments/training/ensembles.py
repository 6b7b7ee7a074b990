"""Several trained runs as one: an ensemble, which averages their answers.

Lakshminarayanan et al. 2017, section 2.4. One run is an ensemble of itself, and
its outputs are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, loading
from experiments.data.batches import Examples
from experiments.learning.tasks import Task
from experiments.learning.text_tasks import TextTask
from experiments.settings import stored
from experiments.training import evaluation
from experiments.training.evaluation import Evaluated
from experiments.workdir import buckets
from experiments.workdir.workdir import read_status


class Answers(NamedTuple):
  """Answers of an ensemble for a number of texts.

  Attributes:
    task: of the runs, with what was fitted for them.
    outputs: Task.outputs of the ensemble, see TextTask.average.
    raw: the same without temperatures.
    of_runs: those of each run alone, with its temperature.
    fits: what was fitted for each run.
    steps: of the checkpoint of each run.
  """

  task: Task
  outputs: tuple[np.ndarray, ...]
  raw: tuple[np.ndarray, ...]
  of_runs: list[tuple[np.ndarray, ...]]
  fits: list[dict[str, Any]]
  steps: list[int]


def check(paths: list[str], has_data: bool = False) -> None:
  """Checks that runs can be one ensemble.

  Args:
    has_data: whether a split of their data is read, which must then be the
      same, too.

  Raises:
    UserError: they differ in their task, vocabulary, labels, longest text or
      data, or their answers are tokens or vectors.
  """
  first, *others = paths
  if not others:
    return
  for path in paths:
    status = read_status(path).get('status', 'PENDING')
    if status != 'DONE':
      log(f'WARNING: {buckets.origin(path)} has the status {status}')
  facts, task = _facts(first, has_data), stored.read_settings(first).task
  if not issubclass(task.entry, TextTask):
    raise UserError(
      f'{", ".join(map(buckets.origin, paths))}: answers of config.task = '
      f'{task} are not averaged; give one run'
    )
  for path in others:
    for name, value in _facts(path, has_data).items():
      if value != facts[name]:
        raise UserError(
          f'{buckets.origin(path)} and {buckets.origin(first)} '
          f'differ in their {name}; runs of an ensemble must agree in it'
        )


def _facts(path: str, has_data: bool) -> dict[str, object]:
  """Facts that must be equal in all runs, by their name in a message."""
  settings, data = stored.read_settings(path), loading.read_facts(path)
  facts = {
    'config.task': str(settings.task),
    'labels': data['labels'],
    'vocabulary': encoding.read_tokenizer(path).to_str(),
    'config.data.max_length': settings.data.max_length,
  }
  if has_data:
    facts['data or its splits'] = data.get('fingerprint')
  return facts


def restored(
  paths: list[str], which: str, calibrated: bool = True
) -> Iterator[Evaluated]:
  """Each of the runs, as evaluation.restore_params, one after another.

  They share a program where they can.
  """
  programs = {}
  for path in paths:
    yield evaluation.restore_params(path, which, programs, calibrated)


def steps(of_runs: list[int]) -> dict[str, int | list[int]]:
  """The `step` or the `steps` of the checkpoints, for a result."""
  first, *others = of_runs
  return {'steps': of_runs} if others else {'step': first}


def evaluate(
  runs: Iterable[Evaluated], examples: Examples, batch_size: int, lengths
) -> Answers:
  """Answers of an ensemble; its runs compute one after another.

  Args:
    runs: that `check` has passed.
    lengths: bucket lengths of the data.
  """
  of_runs, fits, steps, tasks = [], [], [], []
  for run in runs:
    of_runs.append(
      evaluation.evaluate(
        run.program, run.params, examples, batch_size, lengths
      )
    )
    fits.append(run.fit)
    steps.append(run.step)
    tasks.append(run.program.task)
  task = tasks[0]
  if not isinstance(task, TextTask):
    return Answers(task, of_runs[0], of_runs[0], of_runs, fits, steps)
  of_runs = [
    (losses, task.converted(logits, of_run))
    for (losses, logits), of_run in zip(of_runs, tasks, strict=True)
  ]
  labels, no_fits = examples.labels, [{} for _ in fits]
  return Answers(
    task.fitted(fits),
    task.average(of_runs, fits, labels),
    task.average(of_runs, no_fits, labels),
    [
      task.average([outputs], [fit], labels)
      for outputs, fit in zip(of_runs, fits, strict=True)
    ],
    fits,
    steps,
  )
