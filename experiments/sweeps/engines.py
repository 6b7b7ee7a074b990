"""Engines, which run the trials of a sweep; all produce the same workdirs.

serial      one after another in this process, compiled once per program
vectorized  all trials of a program at once, distributed over all devices
ray         a Ray cluster; a task is one trial, or a group of one program
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
from experiments.training import compiled, sources
from experiments.training import run as run_lib
from experiments.workdir import locks
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import Checkpoints


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the engines.

  Attributes:
    workdir: folder of the sweep.
    until: step of a rung to stop at, if a trial is longer; None: its end.
    group_size: largest number of trials trained as one program.
    ray_address: address of a cluster; '' starts one on this machine.
    ray_resources: amounts that a task of engine `ray` asks for, by name; {}:
      one CPU, and one GPU if the cluster has any.
  """

  workdir: str
  until: int | None
  group_size: int
  ray_address: str
  ray_resources: dict[str, float]


def is_unfinished(spec: Spec, until: int | None) -> bool:
  """Whether the trial has steps left before `until`; False if it failed."""
  status = workdir_lib.read_status(spec.path)
  if status.get('status') in ('DONE', 'DIVERGED', 'FAILED', 'PRUNED'):
    return False
  step = status.get('step', 0)
  if _past_end(spec, until):
    return True
  # A trial interrupted exactly at the rung may lack its evaluation there.
  return step < until or (step == until and status['status'] != 'PAUSED')


def _past_end(spec: Spec, until: int | None) -> bool:
  return until is None or until >= spec.settings.train.steps


class Shared:
  """Cache of the last data and program, for the next trial."""

  def __init__(self):
    self._data: tuple = (None, None)
    self._program: tuple = (None, None)

  def data(self, settings, tokenizer) -> loading.Data:
    """The result of loading.load."""
    key = repr(settings.data), tokenizer and tokenizer.to_str()
    if self._data[0] != key:
      self._data = (key, loading.load(settings.data, '', tokenizer))
    return self._data[1]

  def program(self, settings, loaded, num_trials) -> compiled.Program:
    """The result of compiled.make."""
    key = (compiled.key(settings), num_trials)
    if self._program[0] != key:
      self._program = (
        key,
        compiled.make(
          settings, loaded.vocabulary, len(loaded.labels), num_trials
        ),
      )
    return self._program[1]


def serial(specs: list[Spec], options: Options, signals: Signals) -> None:
  """One trial after another, grouped by program.

  Raises:
    Interrupted: a signal was received.
  """
  shared = Shared()
  for same in plan.programs_of(specs).values():
    for spec in same:
      run([spec], options.until, signals, shared)


def vectorized(specs: list[Spec], options: Options, signals: Signals) -> None:
  """The trials of a program at once, up to options.group_size of them.

  Raises:
    Interrupted: a signal was received.
  """
  shared = Shared()
  for same in plan.programs_of(specs).values():
    # Grouped before finished trials are skipped, so that a resumed sweep forms
    # the same groups.
    for start in range(0, len(same), options.group_size):
      group = same[start : start + options.group_size]
      run(group, options.until, signals, shared)


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
    steps, wanted = saved[spec.name], spec.settings
    intervals = wanted.train.eval_every, wanted.checkpoint.every_steps
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


def run(
  specs: list[Spec], until: int | None, signals: Signals, shared: Shared
) -> None:
  """Trains unfinished trials of a program, those of equal progress together.

  A failure is logged, and does not stop the other trials.

  Raises:
    Interrupted: a signal was received.
  """
  unfinished = [spec for spec in specs if is_unfinished(spec, until)]
  for group in together(unfinished):
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
      ours = [spec for spec in specs if _lock(spec, on_exit)]
    try:
      # Another process may have trained one while this one waited for its lock.
      for group in together([s for s in ours if is_unfinished(s, until)]):
        _train(group, until, signals, shared)
    except Interrupted:
      raise
    except Diverged:
      pass  # logged, and in status.json, by each trial
    # A failed trial must not stop the sweep: its status becomes FAILED, with
    # the reason, and the exit code of the command reports it.
    except Exception as error:
      if not isinstance(error, Failed | UserError | OSError):
        traceback.print_exc()
      for spec in ours:
        _fail(spec, str(error))


def _lock(
  spec: Spec, on_exit: contextlib.ExitStack, patience: float = locks.PATIENCE
) -> bool:
  """Tries to lock the workdir of a trial; returns whether it succeeded."""
  try:
    on_exit.enter_context(locks.held(spec.path, patience))
  except locks.InUse as error:
    log(f'WARNING: skipped, since another process trains it: {error}')
    return False
  except (UserError, OSError) as error:
    log(f'WARNING: trial {spec.index} {spec.name} is skipped: {error}')
    return False
  return True


def give_up(spec: Spec, reason: str) -> None:
  """Marks a trial whose process died as FAILED, unless it is locked."""
  with contextlib.ExitStack() as on_exit:
    if _lock(spec, on_exit, patience=0.0):
      _fail(spec, reason)


def _fail(spec: Spec, reason: str) -> None:
  log(f'trial {spec.index} {spec.name} failed: {reason}')
  workdir_lib.give_up(spec.path, stored.as_text(spec.config), reason)


def _train(specs, until, signals, shared) -> None:
  settings = specs[0].settings
  tokenizer = sources.vocabulary(settings, specs[0].path)
  loaded = shared.data(settings, tokenizer)
  # Uses the vocabulary of an existing workdir, and checks that the data has not
  # changed.
  kept = [spec for spec in specs if not workdir_lib.is_new(spec.path)]
  if kept:
    loaded = loading.load(settings.data, kept[0].path, tokenizer)
  count = len(specs) if len(specs) > 1 else None
  program = shared.program(settings, loaded, count)
  runs = [(spec.config, spec.settings, spec.path) for spec in specs]
  # Trials of a program end at the same step.
  stop_at = None if _past_end(specs[0], until) else until
  run_lib.run_group(runs, loaded, program, signals, stop_at)


def log_result(spec: Spec) -> None:
  """Logs status and scores of a trial that ran in another process."""
  (row,) = results.collect([spec])
  metric = spec.settings.checkpoint.best_metric
  line = f'trial {spec.index} {spec.name} is {row["status"]}'
  for split in SPLITS:
    if row[f'best/{split}/{metric}'] is not None:
      line += f', {split} {metric} {row[f"best/{split}/{metric}"]:.4f}'
  log(line)


def choose(specs: list[Spec]) -> tuple[str, str]:
  """The engine expected to be fastest on this machine, and why."""
  platform, devices = jax.default_backend(), len(jax.devices())
  groups = plan.programs_of(specs).values()
  largest = max(map(len, groups), default=0)
  if platform != 'cpu' and largest > 1:
    return 'vectorized', (
      f'{platform} with {devices} devices, up to {largest} trials per program'
    )
  return 'serial', f'{platform}, {len(specs)} trials'
