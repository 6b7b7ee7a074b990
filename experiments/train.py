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
import os
import time
from contextlib import nullcontext

import jax

from experiments import (
  agreement,
  build,
  data,
  distributed,
  launch,
  locks,
  loop,
  optimizers,
  programs,
  remote,
  transfer,
)
from experiments import settings as settings_lib
from experiments import workdir as workdir_lib
from experiments.launch import Failed, log
from experiments.settings import Settings
from experiments.signals import Interrupted, Signals
from experiments.trials import Group


def run(config, path: str, signals: Signals) -> dict[str, object]:
  """Checks everything, trains in the workdir `path`, returns the result.

  Args:
    config: a ConfigDict.
    path: an empty or new folder, or one of the same run.

  Raises:
    UserError: before a device is touched; the folder is in use, among others.
    Interrupted, Diverged, Failed: as `loop.train`.
  """
  settings = settings_lib.from_config(config)
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      lock = locks.held(path) if agreement.is_first() else nullcontext()
      agreement.together(lambda: on_exit.enter_context(lock))
      result = finished(path, settings)
      if result is not None:
        return result
      loaded = agreement.together(lambda: _read(settings, path))
    agreement.check_shared(path)
    signals.check()
    program = programs.make(settings, loaded.vocab_size, len(loaded.labels))
    if not workdir_lib.read_status(path).get('step'):
      wanted = settings.optimizer.decay
      optimizers.check_decay(program.template.params, wanted)
    runs = [(config.to_dict(), settings, path)]
    return run_group(runs, loaded, program, signals)[0]


def _read(settings: Settings, path: str) -> data.Data:
  """What the run needs of the disk, or a UserError."""
  source = settings.train.init_from
  if source and not workdir_lib.read_status(path).get('step'):
    transfer.check(source)
  return data.load(settings.data, path)


def finished(path: str, settings: Settings) -> dict[str, object] | None:
  """The result of the run in `path` if it is done, else None.

  Raises:
    UserError: the folder holds something else.
  """
  workdir_lib.check(path, settings)
  status = workdir_lib.read_status(path)
  if status.get('status') != 'DONE':
    return None
  log(f'{path} is done after {status["step"]} steps')
  # Where it is now, if the folder has moved.
  return status['result'] | {'workdir': remote.origin(os.path.abspath(path))}


def run_group(
  runs: list[tuple[dict, Settings, str]],
  loaded: data.Data,
  program: programs.Program,
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
  started = time.monotonic()
  workdirs = []
  index = jax.process_index()
  try:
    for config, _, path in runs:
      workdir = workdir_lib.open_workdir(path, config, loaded.files, index == 0)
      reached = workdir_lib.read_status(path).get('step', 0)
      workdir.set_status('RUNNING', reached)
      workdirs.append(workdir)
    with contextlib.ExitStack() as on_exit:
      for workdir in workdirs:
        kept = launch.keep_log(workdir.file(f'log-{index}.txt'))
        on_exit.callback(remote.push, workdir.path, f'log-{index}.txt')
        on_exit.enter_context(kept)
      settings = [settings for _, settings, _ in runs]
      pairs = list(zip(settings, workdirs, strict=True))
      group = Group(program, pairs, on_exit)
      found = loop.train(group, loaded, signals, until)
  except BaseException as error:
    ended = 'INTERRUPTED' if isinstance(error, Interrupted) else 'FAILED'
    for workdir in workdirs:
      status = workdir_lib.read_status(workdir.path)
      if status.get('status') == 'RUNNING':
        # On a disk that is full, what ended the run is the one to tell.
        with contextlib.suppress(Failed):
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
    place = remote.origin(workdir.path)
    result = {'split': 'test', **scores, 'workdir': place}
    workdir.set_status(
      'DONE',
      settings.train.steps,
      result=result,
      seconds=round(time.monotonic() - started, 1),
      parameters=build.count_parameters(program.template.params),
    )
    results.append(result)
  return results


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
  launch.flags.DEFINE_string(
    'init_from',
    None,
    'Workdir of a run whose parameters to begin with, as far as they fit.',
    flag_values=values,
  )
  distributed.define(values)


def main(values) -> None:
  """Trains as the flags say."""
  config = values.config
  if values.init_from is not None:
    config.train.init_from = values.init_from
    if not values.init_from.startswith(remote.SCHEMES):
      config.train.init_from = os.path.abspath(values.init_from)
  path = values.workdir or default_workdir(config, values.config_path)
  signals = Signals()
  signals.install()
  settings = settings_lib.from_config(config)
  cluster = distributed.find(values, os.environ)
  with remote.staged(path) as folder:
    result = finished(folder, settings)
    if result is None:
      if cluster is not None:
        distributed.join(cluster, values.start_timeout, values.peer_timeout)
        signals.share(agreement.is_asked_to_end)
      result = run(config, folder, signals)
  if cluster is None or jax.process_index() == 0:
    launch.print_result(result)


if __name__ == '__main__':
  launch.run(main, _define, __doc__, takes_config=True)
