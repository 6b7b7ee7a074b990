"""Runs that train together, and what each writes into its own workdir.

One run is a group of one. A run of a group that diverges is marked and left
behind; the group goes on for as long as one of them does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from experiments import build, checkpoints
from experiments import workdir as workdir_lib
from experiments.launch import Diverged, log
from experiments.metrics import MetricWriter, Progress
from experiments.optimizers import schedule
from experiments.programs import Program
from experiments.settings import Settings
from experiments.steps import State
from experiments.workdir import Workdir


@dataclasses.dataclass
class Trial:
  """One run.

  Attributes:
    diverged: why it trains no more, if it does not.
  """

  settings: Settings
  workdir: Workdir
  manager: ocp.CheckpointManager
  writer: MetricWriter | None = None
  diverged: Diverged | None = None


class Group:
  """Trials of one program: what they save, write down and show.

  Trees of the program hold all trials; lists have one entry a trial.
  """

  def __init__(
    self,
    program: Program,
    runs: list[tuple[Settings, Workdir]],
    on_exit: contextlib.ExitStack,
  ):
    """Opens the checkpoints of all runs, and closes them on exit."""
    self.program = program
    self.trials = []
    for settings, workdir in runs:
      manager = checkpoints.open_manager(workdir.path, settings.checkpoint)
      on_exit.callback(manager.close)
      self.trials.append(Trial(settings, workdir, manager))
    self.hyper = program.join([build.hyper(settings) for settings, _ in runs])
    self.progress: Progress | None = None
    self._on_exit = on_exit
    self._pending: dict = {}

  def initial_state(self) -> State:
    """The newest state that all have saved, or a fresh one."""
    saved = [set(trial.manager.all_steps()) for trial in self.trials]
    step = max(set.intersection(*saved), default=None)
    for trial, steps in zip(self.trials, saved, strict=True):
      # One that is ahead of the others goes back to where they are.
      for later in sorted(steps):
        if step is None or later > step:
          trial.manager.delete(later)
    if step is None:
      log('starting fresh')
      state = self.program.init(self.hyper)
    else:
      log(f'resuming after step {step}')
      state = self.restore(self.trials, [step] * len(self.trials))
    self._open_writers(step or 0)
    return state

  @functools.cached_property
  def template(self) -> State:
    """Shapes and types of the state of one trial."""
    settings = self.trials[0].settings
    return jax.eval_shape(
      lambda hyper: build.init_state(settings, self.program.classifier, hyper),
      build.hyper(settings),
    )

  def restore(self, trials: list[Trial], steps: list[int]) -> State:
    """The states that some of the trials saved at these steps."""
    return self.program.join(
      [
        checkpoints.restore(trial.manager, step, self.template)
        for trial, step in zip(trials, steps, strict=True)
      ]
    )

  def _open_writers(self, start: int) -> None:
    last = self.trials[0].settings.train.steps
    for trial in self.trials:
      trial.writer = MetricWriter(trial.workdir, start)
      self._on_exit.callback(trial.writer.close)
    self.progress = Progress(start, last)
    self._on_exit.callback(self.progress.close)

  def keep(self, step: int, metrics=None, evaluations=None) -> None:
    """Numbers for the row of this step, still on the device if they are.

    Args:
      metrics: tree of the program.
      evaluations: a list of dicts.
    """
    self._pending['step'] = step
    if metrics is not None:
      self._pending['metrics'] = metrics
    if evaluations is not None:
      self._pending['evaluations'] = evaluations

  def flush(self) -> None:
    """Waits for the row that was kept, if any, and writes it down.

    Raises:
      Diverged: a number of every trial is not finite.
    """
    if not self._pending:
      return
    kept, self._pending = self._pending, {}
    nothing = [{} for _ in self.trials]
    metrics = kept.get('metrics')
    metrics = nothing if metrics is None else self._split(metrics)
    step, rows = kept['step'], []

    def write(trial, metrics, evaluation):
      if metrics:
        metrics = metrics | {'learning_rate': _rate(trial.settings, step)}
      row = {f'train/{name}': float(value) for name, value in metrics.items()}
      row |= {f'validation/{name}': value for name, value in evaluation.items()}
      rows.append(row)
      trial.writer.write(step, row)

    try:
      self._each(write, metrics, kept.get('evaluations', nothing))
    finally:
      rates = self.progress.show(step, rows)
      for trial in self.trials:
        trial.writer.plot(step, rates)

  def save(self, state: State, metrics, evaluations=None) -> None:
    """Starts saving the state of every trial that is still finite.

    Raises:
      Diverged: none is.
    """
    step = int(jnp.max(state.step))
    evaluations = evaluations or [None] * len(self.trials)

    def save(trial, state, metrics, evaluation):
      for name, value in metrics.items():
        if not jnp.isfinite(value):
          raise Diverged(f'train/{name} is {value} at step {step}')
      checkpoints.save(trial.manager, state, evaluation)
      trial.workdir.set_status('RUNNING', step)

    self._each(save, self._split(state), self._split(metrics), evaluations)

  def newest_saved(self) -> int | None:
    """The last step whose save was started."""
    return max(
      (trial.manager.latest_step() or 0 for trial in self.trials), default=None
    )

  def wait(self) -> None:
    """Returns when every save has ended."""
    for trial in self.trials:
      trial.manager.wait_until_finished()

  def _split(self, tree) -> list:
    return self.program.split(tree, len(self.trials))

  def _each(self, action, *lists) -> None:
    for trial, *arguments in zip(self.trials, *lists, strict=True):
      if trial.diverged is None:
        try:
          action(trial, *arguments)
        except Diverged as error:
          trial.diverged = error
          reached = workdir_lib.read_status(trial.workdir.path)['step']
          trial.workdir.set_status('DIVERGED', reached, reason=str(error))
          log(f'{trial.workdir.path} diverged: {error}')
    if all(trial.diverged for trial in self.trials):
      raise self.trials[0].diverged


def _rate(settings: Settings, step: int) -> float:
  """Learning rate of the update that led to `step`."""
  wanted = settings.optimizer
  return wanted.learning_rate * float(
    schedule(
      wanted.schedule, step - 1, wanted.warmup_steps, settings.train.steps
    )
  )
