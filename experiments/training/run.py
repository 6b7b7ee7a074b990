"""A run from its settings to its result, alone or in a group."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax

from experiments.command import modules, processes
from experiments.command.errors import Failed, Interrupted, UserError
from experiments.command.log import keep_log, log
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.learning import curricula, schedules
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import (
  callbacks,
  compiled,
  cpu_devices,
  groups,
  loop,
  published_exports,
  published_params,
  sources,
)
from experiments.training.compiled import Program
from experiments.workdir import buckets, checkpoints, locks, recovery
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.workdir import Workdir


def run(config, path: str, signals: Signals | None = None) -> dict[str, Any]:
  """Checks everything, trains in the workdir `path`, returns the result.

  Args:
    config: a ConfigDict.
    path: an empty or new folder, or one of the same run.
    signals: after which the run saves and stops; None: none.

  Raises:
    UserError: before a device is used; the folder is in use, among others.
    Interrupted, Diverged, Failed: as `loop.train` raises them.
  """
  settings = settings_lib.from_config(config)
  signals = signals or Signals()

  def read() -> loading.Data:
    callbacks.named(settings.train.callback)
    tokenizer = sources.vocabulary(settings, path)
    labels = settings.task.entry.labels
    return loading.load(settings.data, path, tokenizer, labels)

  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      processes.check_same(_compared(settings))
      lock = contextlib.nullcontext()
      if processes.is_first() and not _is_kept(path):
        lock = locks.held(path)
      processes.together(lambda: on_exit.enter_context(lock))
      steps_before = stored.check(path, settings)
      status = workdir_lib.read_status(path)
      if steps_before is not None:
        _check_may_go_on(path, steps_before, status)
      if status.get('status') == 'DONE' and steps_before is None:
        log(f'{path} is done after {status["step"]} steps')
        processes.together(lambda: _check_unchanged(settings, path))
        # The current path, if the folder has moved.
        now = buckets.origin(os.path.abspath(path))
        return status['result'] | {'workdir': now}
      loaded = processes.together(read)
    locks.check_shared(path)
    signals.check()
    cpu_devices.set_up(settings, loaded, path)
    program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
    settings.optimizer.check_parameters(program.template.params)
    processes.together(
      lambda: _check_start(settings, path, program, steps_before, loaded)
    )
    if steps_before is not None:
      log(f'{path} goes on: {steps_before} steps become {settings.train.steps}')
      # Before config.json has them: a kill in between leaves no other result.
      if processes.is_first():
        workdir_lib.go_on(path)
    runs = [(config.to_dict(), settings, path)]
    (result,) = run_group(runs, loaded, program, signals)
    assert result is not None, 'a run alone ends with a result or an error'
    return result


def _check_unchanged(settings: Settings, path: str) -> None:
  """UserError if the result of a run is of other files than there are now."""
  labels = settings.task.entry.labels
  loading.check_unchanged(settings.data, [path], labels)
  sources.check_unchanged([path])


def _check_start(
  settings: Settings,
  path: str,
  program: Program,
  steps_before: int | None,
  loaded: loading.Data,
) -> None:
  """UserError unless a run can begin, or go on, in its workdir.

  Args:
    steps_before: the number that it had; None: it has no more than before.
  """
  template = program.template
  with checkpoints.reading(path, settings.checkpoint, settings.best) as saved:
    taken = recovery.taken(saved, template, settings.identity())
  if steps_before is not None:
    _check_goes_on(settings, taken, steps_before, loaded.longest)
  if not taken:
    published_params.check(settings, template.params)


def _check_may_go_on(path: str, steps: int, status: dict) -> None:
  """UserError for a run that is a trial of a sweep, or that diverged."""
  sweep = os.path.dirname(os.path.dirname(os.path.realpath(path)))
  if os.path.exists(os.path.join(sweep, 'sweep.json')):
    raise UserError(
      f'--workdir={path} is a trial of a sweep, whose trials keep their '
      f'{steps} steps; choose another --workdir'
    )
  if status.get('status') == 'DONE' and status['step'] < steps:
    raise UserError(
      f'--workdir={path} was stopped after step {status["step"]} by '
      'config.train.patience, and would be again; config.train.init_from = '
      f'{path} begins another run with its parameters'
    )
  if status.get('status') == 'DIVERGED':
    raise UserError(
      f'--workdir={path} diverged: {status.get("reason")}; it would with more '
      f'steps than its {steps}, too; choose another --workdir'
    )


def _check_goes_on(
  settings: Settings, taken: int, steps: int, most: int
) -> None:
  """UserError unless the steps taken, of a run of `steps`, stay as they are.

  Args:
    most: tokens of the longest text.
  """
  more = settings.train.steps
  schedules.check_goes_on(settings.optimizer, taken, steps, more)
  curriculum = settings.train.curriculum
  with curriculum.checked():
    curricula.check_goes_on(curriculum.make(), taken, steps, more, most)


def _is_kept(path: str) -> bool:
  """Whether a run is done in a folder where nobody can write."""
  is_done = workdir_lib.read_status(path).get('status') == 'DONE'
  return is_done and not os.access(path, os.W_OK)


def _compared(settings: Settings) -> dict[str, Any]:
  """Values that all processes of a run must agree on, by name."""
  values = {
    f'config.{key}': value
    for key, value in settings.flat().items()
    # Another host may have the texts in another folder.
    if key != 'data.dir'
  }
  return values | {
    f'the source of {name}': modules.source(name)[1]
    for name in settings.own_names()
  }


def run_group(
  runs: list[tuple[dict, Settings, str]],
  loaded: loading.Data,
  program: compiled.Program,
  signals: Signals,
) -> list[dict[str, Any] | None]:
  """Trains runs that share a program, and returns their results.

  They are None for a run that diverged.

  Args:
    runs: config, settings and workdir of each.

  Raises:
    Interrupted, Diverged, Failed: as `loop.train` raises them.
  """
  processes.require_joined()
  opened: list[tuple[Settings, Workdir]] = []
  try:
    for config, settings, path in runs:
      files = {'config.json': stored.as_text(config)}
      files |= stored.modules_of([settings]) | loaded.files
      files |= published_exports.files(settings, path)
      workdir = workdir_lib.open_workdir(
        path, files, settings.identity(), processes.is_first(), len(runs)
      )
      opened.append((settings, workdir))
      workdir.set_status('RUNNING')
    with contextlib.ExitStack() as on_exit:
      for _, workdir in opened:
        name = f'log-{jax.process_index()}.txt'
        on_exit.callback(buckets.upload, workdir.path, name)
        on_exit.enter_context(keep_log(workdir.file(name)))
        workdir_lib.record_environment(workdir, program.mesh.devices.flat)
      group, state = groups.opened(program, opened, on_exit)
      scores = loop.train(group, state, loaded, signals)
  except BaseException as error:
    status = 'INTERRUPTED' if isinstance(error, Interrupted) else 'FAILED'
    for _, workdir in opened:
      if workdir.status.get('status') == 'RUNNING':
        # The error to report is the one that ended the run.
        with contextlib.suppress(Failed, OSError):
          workdir.set_status(status, reason=str(error))
    raise
  return [
    None if of_run is None else _result(trial, of_run, program.num_parameters)
    for trial, of_run in zip(group.trials, scores, strict=True)
  ]


def _result(
  trial: groups.Trial, scores: dict, num_parameters: int
) -> dict[str, Any]:
  """The result of a run that is done, which is then in its status."""
  workdir = trial.workdir
  result = {'split': 'test', **scores, 'workdir': buckets.origin(workdir.path)}
  if changed := stored.say_changed(workdir.path):
    result['changed_while_training'] = changed
  # A run ends with an evaluation.
  last = max(trial.checkpoints.scores)
  workdir.set_status('DONE', last, result=result, parameters=num_parameters)
  return result
