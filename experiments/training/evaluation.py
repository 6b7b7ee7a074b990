"""Restoring a trained run, and evaluating it on a split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import numpy as np

from experiments.command.errors import UserError, one_of
from experiments.data import encoding, loading
from experiments.data.batches import Examples, eval_batches
from experiments.data.vocabularies import Vocabulary
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import compiled
from experiments.training.compiled import Program
from experiments.workdir import checkpoints as checkpoints_lib


def evaluate(
  program: Program,
  params,
  examples: Examples,
  batch_size: int,
  lengths,
  check: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, ...]:
  """Task.outputs of every example, in the order of the split.

  For `classify`, losses and logits.

  Args:
    program: of a run, or of a group; then outputs have its leading axis.
    lengths: bucket lengths of the data.
    check: is called between batches, and may raise.
  """
  ahead, outputs = compiled.RunAhead(), []
  for rows, batch in eval_batches(examples, batch_size, lengths, program.share):
    check()
    outputs.append((rows, program.eval_step(params, program.put(batch))))
    ahead.add(outputs[-1][1])
  return _gathered(outputs, program.size, len(examples))


def _gathered(outputs, size: int | None, count: int) -> tuple[np.ndarray, ...]:
  """Results of batches, [(rows, arrays), ...], in the order of the split.

  Args:
    size: trials of the program.
    count: number of examples.
  """
  group = (slice(None),) * (size is not None)
  found = []
  for index, first in enumerate(outputs[0][1]):
    shape = list(first.shape)
    shape[len(group)] = count
    found.append(np.zeros(shape))
    for rows, arrays in outputs:
      own = np.asarray(arrays[index])[(*group, slice(len(rows)))]
      found[-1][(*group, rows)] = own
  return tuple(found)


def load_data(
  settings: Settings, path: str, directory: str | None
) -> loading.Data:
  """The data of the run in `path`.

  Args:
    directory: its folder, if it has moved; None: config.data.dir of the run.

  Raises:
    UserError: it does not exist, or has changed.
  """
  wanted = settings.data.labelled_only()
  if directory is not None:
    wanted = wanted.moved_to(directory)
  try:
    return loading.load(wanted, path)
  except UserError as error:
    if directory is not None or not wanted.dir or os.path.exists(wanted.dir):
      raise
    raise UserError(f'{error}; if it has moved, give --data_dir') from error


class Evaluated(NamedTuple):
  """What evaluates a trained workdir.

  Attributes:
    settings: of the run.
    program: of the run.
    step: of the checkpoint.
    params: State.eval_params of the checkpoint.
  """

  settings: Settings
  program: Program
  step: int
  params: chex.ArrayTree


def restore_params(
  path: str, which: str, programs: dict[str, Program] | None = None
) -> Evaluated:
  """What evaluates a trained workdir, without what only training needs.

  Args:
    which: 'best', 'last' or a number of steps.
    programs: of runs of the same vocabulary and labels, by compiled.key; that
      of this run is taken from them, or added.

  Raises:
    UserError: there is no such checkpoint, or it does not match the settings.
    Corrupt: it cannot be read; with another one to read, if there is any.
  """
  settings, program = _program(path, programs)
  with _reading(path, settings, which) as (saved, step):
    template = program.template.eval_params
    try:
      arrays = saved.restore_params(step, template)
    except checkpoints_lib.Corrupt as error:
      others = [other for other in saved.steps() if other != step]
      hint = f'; --checkpoint={others[-1]} reads another one' if others else ''
      raise checkpoints_lib.Corrupt(f'{error}{hint}') from error
  params = jax.tree.unflatten(jax.tree.structure(template), arrays.values())
  return Evaluated(settings, program, step, params)


def _program(
  path: str, programs: dict[str, Program] | None = None
) -> tuple[Settings, Program]:
  settings = stored.read_settings(path)
  programs, key = {} if programs is None else programs, compiled.key(settings)
  if key not in programs:
    facts = loading.read_facts(path)
    vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
    num_classes = len(facts['labels'])
    programs[key] = compiled.make(settings, vocabulary, num_classes)
  return settings, programs[key]


@contextlib.contextmanager
def _reading(path: str, settings: Settings, which: str):
  """The checkpoints of a run, and the wanted step; see restore_params."""
  with checkpoints_lib.reading(
    path, settings.checkpoint, settings.best
  ) as saved:
    found = saved.steps()
    if not found:
      raise UserError(f'--workdir={path} has no checkpoint yet')
    if which == 'last':
      step = max(found)
    elif which == 'best':
      step = saved.best() or max(found)
    else:
      step = int(one_of(which, [str(s) for s in found], '--checkpoint'))
    yield saved, step
