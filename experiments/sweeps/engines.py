"""Training of the trials of a sweep, one group after another.

serial      one after another in this process, compiled once per program
vectorized  all trials of a program at once, distributed over all devices
processes   a process on each core of this machine, a trial in each
ray         a Ray cluster; a task is one trial, or a group of one program

The trials of a group share a program and train at once; a group of one trial
trains as a run alone. All groupings write the same workdirs.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import jax

from experiments.command import provenance
from experiments.command.errors import Diverged, Failed, Interrupted, UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import stored
from experiments.sweeps import plan
from experiments.sweeps.plan import Spec
from experiments.training import compiled, sources
from experiments.training import run as run_lib
from experiments.workdir import locks
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import Checkpoints

ENGINES = ('serial', 'vectorized', 'processes', 'ray')
_ENDED = ('DONE', 'DIVERGED', 'FAILED')


def unfinished(specs: list[Spec]) -> list[Spec]:
  """The trials that have steps left, and have not failed."""
  return [
    spec
    for spec in specs
    if workdir_lib.read_status(spec.path).get('status') not in _ENDED
  ]


def choose(specs: list[Spec]) -> tuple[str, str]:
  """The engine expected to be fastest on this machine, and why."""
  platform, devices = jax.default_backend(), len(jax.devices())
  largest = max(map(len, plan.programs_of(specs).values()))
  if platform != 'cpu' and largest > 1:
    return 'vectorized', (
      f'{platform} with {devices} devices, up to {largest} trials per program'
    )
  at_once = min(provenance.cores(), len(specs))
  # Several devices of a CPU are what the user has said.
  if platform == 'cpu' and devices == 1 and at_once > 1:
    return 'processes', f'{at_once} trials at once, a core for each'
  return 'serial', f'{platform}, {len(specs)} trials'


class Shared:
  """Cache of the last data and the last program, for the next trial."""

  def __init__(self):
    self._last: dict[Callable, tuple] = {}

  def get(self, key: Any, make: Callable, *arguments: Any) -> Any:
    """make(*arguments), or what it returned last, if that was of this key."""
    if make not in self._last or self._last[make][0] != key:
      self._last[make] = key, make(*arguments)
    return self._last[make][1]


def together(specs: list[Spec]) -> list[list[Spec]]:
  """Groups trials of a program by progress, the most advanced group first.

  A group resumes from the newest step that all of its trials have saved. After
  a kill during a save, some of them have one checkpoint more, which is computed
  again; no trial loses more than that. Advanced groups are finished first, so
  that a resumed sweep forms the same groups.
  """
  saved = {spec.name: [0, *_saved(spec)] for spec in specs}
  groups: list[tuple[int, list[Spec]]] = []
  for spec in sorted(
    specs, key=lambda spec: (saved[spec.name][-1], spec.index)
  ):
    steps, settings = saved[spec.name], spec.settings
    intervals = settings.train.eval_every, settings.checkpoint.every_steps
    save_before = max(*((steps[-1] - 1) // n * n for n in intervals), 0)
    for start, group in reversed(groups):
      if start in steps and save_before <= start:
        group.append(spec)
        break
    else:
      groups.append((steps[-1], [spec]))
  return [sorted(g, key=lambda spec: spec.index) for _, g in reversed(groups)]


def _saved(spec: Spec) -> list[int]:
  """Steps of the checkpoints of a trial, ascending."""
  folder = Checkpoints(spec.path, spec.settings.checkpoint)
  try:
    return folder.steps()
  finally:
    folder.close()


def train(group: list[Spec], signals: Signals, shared: Shared) -> None:
  """Trains unfinished trials of a program, those of equal progress together.

  A failure is logged, and does not stop the other trials. Interrupted after a
  signal.
  """
  for equal in together(unfinished(group)):
    _train_locked(equal, signals, shared)


def _train_locked(specs: list[Spec], signals: Signals, shared: Shared) -> None:
  if signals.received:
    raise Interrupted(f'{signals.received}; run the same command again')
  for spec in specs:
    log(f'trial {spec.index} {spec.name}: {plan.describe(spec.overrides)}')
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      locked = [spec for spec in specs if _lock(spec, on_exit)]
    try:
      # Another process may have trained one while this one waited for its lock.
      for group in together(unfinished(locked)):
        _train(group, signals, shared)
    except Interrupted:
      raise
    except Diverged:
      pass  # logged, and in status.json, by each trial
    # A failed trial must not stop the sweep: its status becomes FAILED, with
    # the reason, and the exit code of the command reports it.
    except Exception as error:
      if not isinstance(error, Failed | UserError | OSError):
        traceback.print_exc()
      for spec in locked:
        _fail(spec, str(error))


def _lock(
  spec: Spec, on_exit: contextlib.ExitStack, patience: float = locks.PATIENCE
) -> bool:
  """Tries to lock the workdir of a trial; returns whether it succeeded."""
  try:
    on_exit.enter_context(locks.held(spec.path, patience))
  except (UserError, OSError) as error:
    log(f'WARNING: trial {spec.index} {spec.name} is skipped: {error}')
    return False
  return True


def report(spec: Spec) -> None:
  """Logs how a trial has ended in another process."""
  status = workdir_lib.read_status(spec.path)
  reason = f': {status["reason"]}' if 'reason' in status else ''
  now = status.get('status', 'PENDING')
  log(f'trial {spec.index} {spec.name} is {now}{reason}')


def give_up(spec: Spec, reason: str) -> None:
  """Marks a trial whose process died as FAILED, unless it is locked."""
  with contextlib.ExitStack() as on_exit:
    if _lock(spec, on_exit, patience=0.0):
      _fail(spec, reason)


def _fail(spec: Spec, reason: str) -> None:
  log(f'trial {spec.index} {spec.name} failed: {reason}')
  workdir_lib.give_up(spec.path, stored.as_text(spec.config), reason)


def _train(specs: list[Spec], signals: Signals, shared: Shared) -> None:
  settings = specs[0].settings
  tokenizer = sources.vocabulary(settings, specs[0].path)
  # An existing workdir has its vocabulary, and data that has not changed.
  kept = (spec.path for spec in specs if not workdir_lib.is_new(spec.path))
  path, labels = next(kept, ''), settings.task.entry.labels
  key = repr((settings.data, path, labels)), tokenizer and tokenizer.to_str()
  of_data = settings.data, path, tokenizer, labels
  loaded = shared.get(key, loading.load, *of_data)
  count = len(specs) if len(specs) > 1 else None
  of_program = settings, loaded.vocabulary, loaded.label_facts, count
  key = compiled.key(settings), count
  program = shared.get(key, compiled.make, *of_program)
  runs = [(spec.config, spec.settings, spec.path) for spec in specs]
  run_lib.run_group(runs, loaded, program, signals)
