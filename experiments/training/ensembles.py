"""Several trained runs as one: an ensemble, which averages probabilities.

Lakshminarayanan et al. 2017, section 2.4. One run is an ensemble of itself, and
its outputs are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, loading
from experiments.data.batches import Examples
from experiments.learning.tasks import Task
from experiments.settings import stored
from experiments.training import evaluation
from experiments.training.evaluation import Evaluated
from experiments.workdir import buckets
from experiments.workdir.workdir import read_status


class Answers(NamedTuple):
  """What an ensemble answers for a number of texts.

  Attributes:
    task: of the runs.
    outputs: Task.outputs of the ensemble. Of several runs, the logits (texts,
      classes) are the logarithms of mean probabilities, and the loss of a text
      is minus the one of its label.
    of_runs: Task.outputs of each run.
    steps: of the checkpoint of each run.
  """

  task: Task
  outputs: tuple[np.ndarray, ...]
  of_runs: list[tuple[np.ndarray, ...]]
  steps: list[int]


def check(paths: list[str], has_data: bool = False) -> None:
  """Checks that runs can be one ensemble.

  Args:
    has_data: whether a split of their data is read, which must then be the
      same, too.

  Raises:
    UserError: they differ in their task, vocabulary, labels, longest text or
      data, or predict tokens.
  """
  first, *others = paths
  if not others:
    return
  for path in paths:
    status = read_status(path).get('status')
    if status != 'DONE':
      log(f'WARNING: {buckets.origin(path)} has the status {status}')
  facts, task = _facts(first, has_data), stored.read_settings(first).task
  if not task.entry.has_labels:
    raise UserError(
      f'--workdir={",".join(map(buckets.origin, paths))}: probabilities of '
      f'config.task = {task}, which predicts '
      'tokens, are not averaged; give one run'
    )
  for path in others:
    for name, value in _facts(path, has_data).items():
      if value != facts[name]:
        raise UserError(
          f'--workdir={buckets.origin(path)} and {buckets.origin(first)} '
          f'differ in their {name}; runs of an ensemble must agree in it'
        )


def _facts(path: str, has_data: bool) -> dict[str, object]:
  """What must be the same in all runs, by what a message says of it."""
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


def restored(paths: list[str], which: str) -> Iterator[Evaluated]:
  """Each of the runs, restored one after another.

  Those that can share a program do.
  """
  programs = {}
  for path in paths:
    yield evaluation.restore_params(path, which, programs)


def steps(of_runs: list[int]) -> dict[str, int | list[int]]:
  """What a result says of the checkpoints that were read."""
  first, *others = of_runs
  return {'steps': of_runs} if others else {'step': first}


def evaluate(
  runs: Iterable[Evaluated], examples: Examples, batch_size: int, lengths
) -> Answers:
  """What an ensemble answers, one run after another.

  Args:
    runs: that `check` has passed.
    batch_size: texts of a batch, at most.
    lengths: bucket lengths of the data.
  """
  of_runs, steps, tasks = [], [], []
  for run in runs:
    of_runs.append(
      evaluation.evaluate(
        run.program, run.params, examples, batch_size, lengths
      )
    )
    steps.append(run.step)
    tasks.append(run.program.task)
  outputs = of_runs[0]
  if len(of_runs) > 1:
    log_probs = mean_log_probs([logits for _, logits in of_runs])
    rows = np.arange(len(examples))
    outputs = -log_probs[rows, examples.labels], log_probs
  return Answers(tasks[0], outputs, of_runs, steps)


def mean_log_probs(logits: list[np.ndarray]) -> np.ndarray:
  """Logarithms of the mean of softmaxes; (texts, classes), as each of them."""
  log_probs = np.stack(logits)
  log_probs -= np.logaddexp.reduce(log_probs, axis=-1, keepdims=True)
  return np.logaddexp.reduce(log_probs, axis=0) - np.log(len(logits))
