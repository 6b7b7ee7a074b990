"""A function of one's own that is called after each evaluation.

config.train.callback names it as `module:function`. It may write or send
anything, and changes nothing of the run.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

from experiments.command import modules, processes
from experiments.command.errors import UserError
from experiments.training.groups import Group
from experiments.workdir import buckets

_KEY = 'config.train.callback'


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The argument of a callback: one evaluation on validation, of one run.

  Attributes:
    step: updates so far.
    metrics: of validation, by name: of the task, and config.train.measures.
    workdir: the folder of the run.
    params: a function that returns the parameters as a nested dict of NumPy
      arrays: those that were evaluated, of the average if there is one. Call
      it before the callback returns; the next update frees them.
  """

  step: int
  metrics: Mapping[str, float | None]
  workdir: str
  params: Callable[[], Mapping[str, Any]]


def named(name: str) -> Callable[[Evaluation], Any] | None:
  """The function that config.train.callback names; None for ''.

  A UserError says that there is none, that its module fails, or that it does
  not take one argument.
  """
  if not name:
    return None
  if ':' not in name:
    raise UserError(f'{_KEY} = {name!r} must be module:function, or empty')
  function = modules.named(name, None, _KEY)
  if isinstance(function, type) or not callable(function):
    raise UserError(f'{_KEY} = {name!r} is no function')
  try:
    inspect.signature(function).bind(None)
  except ValueError:
    return function  # Of C, without a signature.
  except TypeError as error:
    raise UserError(
      f'{_KEY} = {name!r} must take one argument, an Evaluation: {error}'
    ) from error
  return function


def call(
  function: Callable[[Evaluation], Any],
  group: Group,
  step: int,
  scores: list[dict[str, float | None]],
  params,
) -> None:
  """Calls a function for each trial that has not diverged, on process 0.

  Rows of metrics.jsonl are written before.

  Args:
    function: as `named` returns it.
    scores: metrics of validation of each trial.
    params: of the program, that were evaluated.

  Raises:
    UserError: it fails; on all processes.
    Diverged: as Group.flush.
  """
  group.flush()
  on_host = functools.cache(lambda: _on_host(group, params))
  if jax.process_count() > 1:
    on_host()  # All processes take part.
  name = group.program.settings.train.callback

  def call_all():
    for index, trial in enumerate(group.trials):
      if trial.diverged is None:
        evaluation = Evaluation(
          step,
          dict(scores[index]),
          buckets.origin(trial.workdir.path),
          lambda index=index: on_host()[index],
        )
        with modules.user_errors_in(function, f'{_KEY} = {name!r}'):
          function(evaluation)

  processes.together(call_all if processes.is_first() else lambda: None)


def _on_host(group: Group, params) -> list:
  """Parameters of each trial as NumPy arrays."""
  if jax.process_count() > 1:
    params = multihost_utils.process_allgather(params, tiled=True)
  program = group.program
  return program.split(jax.device_get(params), len(group.trials))
