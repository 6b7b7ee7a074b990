"""Runs that train together, and what each writes into its own workdir.

One run is a group of one. A run that diverges is marked; the group continues
while one of its runs has not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import numpy as np

from experiments.command.errors import Diverged
from experiments.command.log import log
from experiments.learning.hparams import HParams
from experiments.learning.schedules import factor
from experiments.learning.steps import State
from experiments.settings.settings import Settings
from experiments.training import transfer
from experiments.training.compiled import Program
from experiments.workdir import metrics, recovery
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import Checkpoints
from experiments.workdir.metrics import MetricWriter, Progress
from experiments.workdir.workdir import Workdir


@dataclasses.dataclass
class Trial:
  """One run.

  Attributes:
    settings: those of the run.
    workdir: opened.
    checkpoints: in the workdir.
    writer: of its metrics; None until training begins.
    diverged: why it has stopped training, if it has.
  """

  settings: Settings
  workdir: Workdir
  checkpoints: Checkpoints
  writer: MetricWriter | None = None
  diverged: Diverged | None = None


class Group:
  """Trials of one program: their checkpoints, metrics and progress.

  Trees of the program hold all trials; lists have one entry per trial.
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
      folder = Checkpoints(
        workdir.path, settings.checkpoint, workdir.run, settings.best
      )
      on_exit.callback(folder.close)
      self.trials.append(Trial(settings, workdir, folder))
    self.progress: Progress | None = None
    self._on_exit = on_exit
    self._pending: dict = {}

  def hparams(self) -> HParams:
    """Hyperparameters of all trials."""
    return self.program.hparams([trial.settings for trial in self.trials])

  def initial_state(self) -> State:
    """The newest State of which all have an intact checkpoint, or a new one."""
    step, states = recovery.newest(
      [trial.checkpoints for trial in self.trials], self.program.template
    )
    if step is None:
      log('initialising parameters')
      state = self._initialised(self.program.init(self.hparams()))
    else:
      log(f'resuming after step {step}')
      state = self.program.join(states)
    self._open_writers(step or 0)
    return state

  def _initialised(self, state: State) -> State:
    if not any(trial.settings.train.init_from for trial in self.trials):
      return state
    states = [
      transfer.start_from(each, trial.settings, trial.workdir.path)
      if trial.settings.train.init_from
      else each
      for trial, each in zip(self.trials, self._split(state), strict=True)
    ]
    return self.program.join(states)

  def restore_best(self, trials: list[Trial]) -> tuple[list[int], State]:
    """Best step of each of these trials, and the states that it saved there."""
    pairs = [
      recovery.best(trial.checkpoints, self.program.template)
      for trial in trials
    ]
    steps, states = zip(*pairs, strict=True)
    return list(steps), self.program.join(list(states))

  def _open_writers(self, start: int) -> None:
    last = self.trials[0].settings.train.steps
    for trial in self.trials:
      config = trial.settings.flat()
      trial.writer = MetricWriter(trial.workdir, config, start)
      self._on_exit.push(functools.partial(_close, trial))
      trial.checkpoints.scores |= metrics.scores(
        trial.workdir.file('metrics.jsonl'),
        trial.settings.checkpoint.best_metric,
        start,
      )
    self.progress = Progress(start, last)
    self._on_exit.callback(self.progress.close)

  def lacks_evaluation(self, step: int) -> bool:
    """Whether a run was interrupted before the evaluation of this step."""
    return any(not trial.writer.has_evaluation(step) for trial in self.trials)

  def keep(self, step: int, measured=None, evaluations=None) -> None:
    """Keeps metrics for the row of this step; they may be on a device still.

    Args:
      measured: metrics of training, a tree of the program.
      evaluations: metrics of validation, a dict for each trial.
    """
    self._pending['step'] = step
    if measured is not None:
      self._pending['measured'] = measured
    if evaluations is not None:
      self._pending['evaluations'] = evaluations

  def flush(self) -> None:
    """Waits for the row that was kept, if any, and writes it.

    Raises:
      Diverged: a metric of every trial is not finite.
    """
    if not self._pending:
      return
    kept, self._pending = self._pending, {}
    nothing = [{} for _ in self.trials]
    measured = kept.get('measured')
    measured = nothing if measured is None else self._split(measured)
    step, rows = kept['step'], []

    def write(trial, measured, evaluation):
      row = _row(trial.settings, step, measured)
      row |= {f'validation/{name}': value for name, value in evaluation.items()}
      rows.append(row)
      trial.writer.write(step, row)
      if evaluation:
        best_metric = trial.settings.checkpoint.best_metric
        trial.checkpoints.scores[step] = evaluation[best_metric]

    try:
      self._each(write, measured, kept.get('evaluations', nothing))
    finally:
      rates = self.progress.show(step, rows)
      for trial in self.trials:
        trial.writer.plot(step, rates)

  def save(self, state: State, measured) -> None:
    """Starts saving the State of every trial whose State is finite.

    Args:
      measured: metrics of its last step, a tree of the program; written as the
        last row of a trial whose State is not finite.

    Raises:
      Diverged: no trial has a finite State.
      Failed: a checkpoint could not be written.
    """
    step = int(np.max(state.step))
    is_finite = np.atleast_1d(self.program.is_finite(state))
    if len(self.trials) > 1:
      self._keep_common()

    def save(trial, state, measured, is_finite):
      if not is_finite:
        if trial.writer.last.get('step') != step:
          row = _row(trial.settings, step, measured)
          trial.writer.write(step, row)
        raise Diverged(
          'a parameter, or an element of the state of the optimizer, is not '
          f'finite after step {step}'
        )
      trial.writer.sync()
      trial.checkpoints.save(state)
      trial.workdir.set_progress(step)

    count = len(self.trials)
    self._each(
      save, self._split(state), self._split(measured), is_finite[:count]
    )

  def _keep_common(self) -> None:
    """Keeps the last step that all trials have until they have the next one.

    A group resumes from a step that all have, also if it is killed while only
    some of them have the new one.
    """
    self.wait()
    trained = [trial for trial in self.trials if trial.diverged is None]
    of_all = set.intersection(*[set(t.checkpoints.steps()) for t in trained])
    for trial in trained:
      trial.checkpoints.common = max(of_all, default=None)

  def newest_saved(self) -> int:
    """The last step whose save was started."""
    return max(max(t.checkpoints.steps(), default=0) for t in self.trials)

  def wait(self) -> None:
    """Returns when every save has ended."""
    for trial in self.trials:
      trial.checkpoints.wait()

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


def _close(trial: Trial, kind, error, trace) -> None:
  del error, trace
  trial.writer.close(kind is not None or trial.diverged is not None)


def _row(settings: Settings, step: int, measured) -> dict[str, float]:
  if measured:
    measured = measured | {'learning_rate': _rate(settings, step)}
  return {f'train/{name}': float(value) for name, value in measured.items()}


def _rate(settings: Settings, step: int) -> float:
  """Learning rate of the update that led to `step`."""
  chosen, steps = settings.optimizer, settings.train.steps
  return chosen.learning_rate * float(
    factor(chosen.schedule.make(), step - 1, chosen.warmup_steps, steps)
  )
