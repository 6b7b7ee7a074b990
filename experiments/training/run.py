"""A run from its settings to its result, alone or in a group."""

from __future__ import annotations

import contextlib
import os
from contextlib import nullcontext

import jax

from experiments.command import modules, processes
from experiments.command.errors import Failed, Interrupted
from experiments.command.log import keep_log, log
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import compiled, loop, sources
from experiments.training.groups import Group
from experiments.workdir import buckets, locks, shared
from experiments.workdir import workdir as workdir_lib


def run(config, path: str, signals: Signals | None = None) -> dict[str, object]:
  """Checks everything, trains in the workdir `path`, returns the result.

  Args:
    config: a ConfigDict.
    path: an empty or new folder, or one of the same run.
    signals: after which the run saves and stops; None: none.

  Raises:
    UserError: before a device is used; the folder is in use, among others.
    Interrupted, Diverged, Failed: as `loop.train`.
  """
  settings = settings_lib.from_config(config)
  signals = signals or Signals()
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      processes.check_same(_compared(settings))
      lock = locks.held(path) if processes.is_first() else nullcontext()
      processes.together(lambda: on_exit.enter_context(lock))
      result = finished(path, settings)
      if result is not None:
        return result
      loaded = processes.together(lambda: _read(settings, path))
    shared.check_shared(path)
    signals.check()
    program = compiled.make(settings, loaded.vocabulary, len(loaded.labels))
    if not workdir_lib.read_status(path).get('step'):
      settings.optimizer.check_parameters(program.template.params)
    runs = [(config.to_dict(), settings, path)]
    return run_group(runs, loaded, program, signals)[0]


def _compared(settings: Settings) -> dict[str, object]:
  """What all processes of a run agree on, by name."""
  values = {
    f'config.{key}': value
    for key, value in settings.flat().items()
    # The same texts may be elsewhere on another host.
    if key != 'data.dir'
  }
  return values | {
    f'the source of {name}': modules.source(name)[1]
    for name in settings.own_names()
  }


def _read(settings: Settings, path: str) -> loading.Data:
  """The data of the run; UserError if a file that it needs is missing."""
  tokenizer = sources.vocabulary(settings, path)
  return loading.load(settings.data, path, tokenizer)


def finished(path: str, settings: Settings) -> dict[str, object] | None:
  """The result of the run in `path` if it is done, else None.

  Raises:
    UserError: the folder holds another run, or other files.
  """
  stored.check(path, settings)
  status = workdir_lib.read_status(path)
  if status.get('status') != 'DONE':
    return None
  log(f'{path} is done after {status["step"]} steps')
  # The current path, if the folder has moved.
  return status['result'] | {'workdir': buckets.origin(os.path.abspath(path))}


def run_group(
  runs: list[tuple[dict, Settings, str]],
  loaded: loading.Data,
  program: compiled.Program,
  signals: Signals,
  until: int | None = None,
) -> list[dict[str, object] | None]:
  """Trains runs that share a program; results, or None as `loop.train` says.

  Args:
    runs: config, settings and workdir of each.
    until: as of `train`; a run that stops there is PAUSED.

  Raises:
    Interrupted, Diverged, Failed: as `loop.train`.
  """
  workdirs = []
  index = jax.process_index()
  try:
    for config, settings, path in runs:
      workdir = stored.open_run(
        path, config, settings, loaded.files, index == 0, len(runs)
      )
      reached = workdir_lib.read_status(path).get('step', 0)
      workdir.set_status('RUNNING', reached)
      workdirs.append(workdir)
    with contextlib.ExitStack() as on_exit:
      for workdir in workdirs:
        kept = keep_log(workdir.file(f'log-{index}.txt'))
        on_exit.callback(buckets.upload, workdir.path, f'log-{index}.txt')
        on_exit.enter_context(kept)
      pairs = [(s, w) for (_, s, _), w in zip(runs, workdirs, strict=True)]
      group = Group(program, pairs, on_exit)
      found = loop.train(group, loaded, signals, until)
  except BaseException as error:
    ended = 'INTERRUPTED' if isinstance(error, Interrupted) else 'FAILED'
    for workdir in workdirs:
      status = workdir_lib.read_status(workdir.path)
      if status.get('status') == 'RUNNING':
        # The error to report is the one that ended the run.
        with contextlib.suppress(Failed, OSError):
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
    origin = buckets.origin(workdir.path)
    result = {'split': 'test', **scores, 'workdir': origin}
    workdir.set_status(
      'DONE',
      settings.train.steps,
      result=result,
      parameters=program.num_parameters,
    )
    results.append(result)
  return results
