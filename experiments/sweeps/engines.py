"""How the trials of a sweep are run: each engine leaves the same workdirs.

serial      one after another in this process, one compilation a program
vectorized  the trials of a program as one, spread over all devices
processes   several processes at once, each of them serial
ray         a Ray cluster, where a task is a few trials of one program
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback

import jax

from experiments.command.errors import Diverged, Failed, Interrupted, UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import stored
from experiments.sweeps import plan, results
from experiments.sweeps.comparison import SPLITS
from experiments.sweeps.plan import Spec
from experiments.training import compiled
from experiments.training import run as run_lib
from experiments.workdir import locks
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import Checkpoints


@dataclasses.dataclass(frozen=True)
class Options:
  """What the engines are told.

  Attributes:
    workdir: of the sweep.
    until: step to train to, for a rung, or to the end of a trial that comes
      first; None: the end.
    max_parallel: processes at once.
    group_size: trials that are trained as one, at most.
    ray_address: of a cluster; '' starts one on this machine.
  """

  workdir: str
  until: int | None
  max_parallel: int
  group_size: int
  ray_address: str


def is_waiting(spec: Spec, until: int | None) -> bool:
  """Whether the trial has steps to go; one that failed has none."""
  status = workdir_lib.read_status(spec.path)
  if status.get('status') in ('DONE', 'DIVERGED', 'FAILED', 'DROPPED'):
    return False
  step = status.get('step', 0)
  if _past_end(spec, until):
    return True
  # One that was stopped at the rung itself may lack its evaluation there.
  return step < until or (step == until and status['status'] != 'PAUSED')


def _past_end(spec: Spec, until: int | None) -> bool:
  return until is None or until >= spec.settings.steps


class Shared:
  """The data and the program used last, for the next trial to use again."""

  def __init__(self):
    self._data: tuple = (None, None)
    self._program: tuple = (None, None)

  def data(self, settings) -> loading.Data:
    """What loading.load returns."""
    key = repr(settings.data)
    if self._data[0] != key:
      self._data = (key, loading.load(settings.data, ''))
    return self._data[1]

  def program(self, settings, loaded, num_trials) -> compiled.Program:
    """What compiled.make returns."""
    key = (compiled.key(settings), num_trials)
    if self._program[0] != key:
      self._program = (
        key,
        compiled.make(
          settings, loaded.vocab_size, len(loaded.labels), num_trials
        ),
      )
    return self._program[1]


def serial(specs: list[Spec], options: Options, signals: Signals) -> None:
  """One trial after another; those of a program follow each other.

  Raises:
    Interrupted: a signal came.
  """
  shared = Shared()
  for same in plan.programs_of(specs).values():
    for spec in same:
      run([spec], options.until, signals, shared)


def vectorized(specs: list[Spec], options: Options, signals: Signals) -> None:
  """The trials of a program as one, at most options.group_size of them.

  Raises:
    Interrupted: a signal came.
  """
  shared = Shared()
  for same in plan.programs_of(specs).values():
    # Cut before those that are done are left out, so that a sweep that was
    # killed has the same groups again.
    for start in range(0, len(same), options.group_size):
      group = same[start : start + options.group_size]
      run(group, options.until, signals, shared)


def together(specs: list[Spec]) -> list[list[Spec]]:
  """Trials of a program in groups that came as far, the furthest first.

  A group begins at the newest step that all of it have saved. Killed while it
  saves, some of it have one save more, which is computed again; nobody loses
  more than that. What is ahead ends first, so that a sweep that was killed has
  the same groups again.
  """
  saved = {spec.name: [0, *_saved(spec)] for spec in specs}
  groups: list[tuple[int, list[Spec]]] = []
  for spec in sorted(
    specs, key=lambda spec: (saved[spec.name][-1], spec.index)
  ):
    steps, wanted = saved[spec.name], spec.settings
    intervals = wanted.train.eval_every, wanted.checkpoint.every_steps
    ends = [phase.end for phase in wanted.phases() if phase.end < steps[-1]]
    save_before = max(*((steps[-1] - 1) // n * n for n in intervals), 0, *ends)
    for start, group in reversed(groups):
      if start in steps and save_before <= start:
        group.append(spec)
        break
    else:
      groups.append((steps[-1], [spec]))
  return [sorted(g, key=lambda spec: spec.index) for _, g in reversed(groups)]


def _saved(spec: Spec) -> list[int]:
  """Steps of the trial's checkpoints, ascending."""
  folder = Checkpoints(spec.path, spec.settings.checkpoint)
  try:
    return folder.steps()
  finally:
    folder.close()


def run(
  specs: list[Spec], until: int | None, signals: Signals, shared: Shared
) -> None:
  """Trains those of a program that wait, as one where they came as far.

  What fails is told, and stops no other.

  Raises:
    Interrupted: a signal came.
  """
  waiting = [spec for spec in specs if is_waiting(spec, until)]
  for group in together(waiting):
    _run(group, until, signals, shared)


def _run(
  specs: list[Spec], until: int | None, signals: Signals, shared: Shared
) -> None:
  if signals.received:
    raise Interrupted(f'{signals.received}; run the same command again')
  for spec in specs:
    log(f'trial {spec.index} {spec.name}: {plan.describe(spec.overrides)}')
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      ours = [spec for spec in specs if _take(spec, on_exit)]
    try:
      # Another process may have trained one while its lock was waited for.
      for group in together([s for s in ours if is_waiting(s, until)]):
        _train(group, until, signals, shared)
    except Interrupted:
      raise
    except Diverged:
      pass  # each has said so, and its status does
    # A trial that fails must not take the sweep with it: its status is FAILED,
    # with the reason, and the exit code of the command will say so.
    except Exception as error:
      if not isinstance(error, Failed | UserError):
        traceback.print_exc()
      for spec in ours:
        _fail(spec, str(error))


def _take(
  spec: Spec, on_exit: contextlib.ExitStack, patience: float = locks.PATIENCE
) -> bool:
  """Whether this process now holds the lock of a trial."""
  try:
    on_exit.enter_context(locks.held(spec.path, patience))
  except locks.InUse as error:
    log(f'WARNING: left to the process that trains it: {error}')
    return False
  except (Failed, UserError) as error:
    log(f'WARNING: trial {spec.index} {spec.name} is left out: {error}')
    return False
  return True


def give_up(spec: Spec, reason: str) -> None:
  """Marks a trial whose process has died as FAILED.

  Unless another process has taken it since.
  """
  with contextlib.ExitStack() as on_exit:
    if _take(spec, on_exit, patience=0.0):
      _fail(spec, reason)


def _fail(spec: Spec, reason: str) -> None:
  log(f'trial {spec.index} {spec.name} failed: {reason}')
  workdir_lib.give_up(spec.path, stored.as_text(spec.config), reason)


def _train(specs, until, signals, shared) -> None:
  settings = specs[0].settings
  loaded = shared.data(settings)
  # The workdir's own vocabulary, if it has one, and proof that the data is
  # still the same.
  kept = [spec for spec in specs if not workdir_lib.is_new(spec.path)]
  if kept:
    loaded = loading.load(settings.data, kept[0].path)
  count = len(specs) if len(specs) > 1 else None
  program = shared.program(settings, loaded, count)
  runs = [(spec.config, spec.settings, spec.path) for spec in specs]
  # Trials of a program end at the same step.
  stop_at = None if _past_end(specs[0], until) else until
  run_lib.run_group(runs, loaded, program, signals, stop_at)


def tell(spec: Spec) -> None:
  """Says how a trial that ran elsewhere has ended."""
  (row,) = results.collect([spec])
  metric = spec.settings.checkpoint.best_metric
  line = f'trial {spec.index} {spec.name} is {row["status"]}'
  for split in SPLITS:
    if row[f'best/{split}/{metric}'] is not None:
      line += f', {split} {metric} {row[f"best/{split}/{metric}"]:.4f}'
  log(line)


def choose(specs: list[Spec], max_parallel: int) -> tuple[str, str]:
  """The engine that should be fastest here, and why."""
  platform, devices = jax.default_backend(), len(jax.devices())
  groups = plan.programs_of(specs).values()
  largest = max(map(len, groups), default=0)
  if platform != 'cpu' and largest > 1:
    return 'vectorized', (
      f'{platform} with {devices} devices, up to {largest} trials a program'
    )
  if platform == 'cpu' and min(max_parallel, len(specs)) > 1:
    return 'processes', f'{max_parallel} cores, {len(specs)} trials'
  return 'serial', f'{platform}, {len(specs)} trials'
