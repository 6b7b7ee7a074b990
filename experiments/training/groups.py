"""Runs that train together, and what each writes into its own workdir.

One run is a group of one. A run that diverges is marked; the group continues
while one of its runs has not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import jax
import numpy as np

from experiments.command.errors import Diverged
from experiments.command.log import log
from experiments.learning.hparams import HParams
from experiments.learning.schedules import factor
from experiments.learning.steps import State
from experiments.settings.settings import Settings
from experiments.training import evaluation, sources
from experiments.training.compiled import Program
from experiments.workdir import metrics, recovery
from experiments.workdir.checkpoints import Checkpoints
from experiments.workdir.metrics import MetricWriter, Progress
from experiments.workdir.workdir import Workdir, write_atomic


@dataclasses.dataclass
class Trial:
  """One run.

  Attributes:
    settings: those of the run.
    workdir: opened.
    checkpoints: in the workdir.
    writer: of its metrics.
    diverged: why it has stopped training, if it has.
  """

  settings: Settings
  workdir: Workdir
  checkpoints: Checkpoints
  writer: MetricWriter
  diverged: Diverged | None = None

  def row(self, step: int, measured) -> dict[str, float]:
    """The metrics of a training step for metrics.jsonl; {} without any."""
    if not measured:
      return {}
    # The learning rate is that of the update that led to `step`.
    chosen, steps = self.settings.optimizer, self.settings.train.steps
    share = factor(chosen.schedule.make(), step - 1, chosen.warmup_steps, steps)
    rate = chosen.learning_rate * float(share)
    measured = measured | {'learning_rate': rate}
    return {f'train/{name}': float(value) for name, value in measured.items()}

  @property
  def has_stopped(self) -> bool:
    """Whether its patience has ended; others of its group may go on."""
    train, scores = self.settings.train, self.checkpoints.scores
    # Of a run that goes on, the last step of before is none of these.
    regular = {s: x for s, x in scores.items() if s % train.eval_every == 0}
    return metrics.has_stopped(regular, self.settings.best, train.patience)

  def close(self, kind, error, trace) -> None:
    """Closes the curves, at the end of a `with` block."""
    del error, trace
    self.writer.close(kind is not None or self.diverged is not None)


@dataclasses.dataclass
class Group:
  """Trials of one program: their checkpoints, metrics and progress.

  Trees of the program hold all trials; lists have one entry per trial.

  Attributes:
    program: of all trials.
    trials: the runs.
    hparams: hyperparameters of all trials.
    progress: shown to people.
  """

  program: Program
  trials: list[Trial]
  hparams: HParams
  progress: Progress
  _pending: dict[str, Any] = dataclasses.field(default_factory=dict)

  def restore_best(self) -> tuple[list[int | None], Any]:
    """The best step of each trial, and the parameters of all to evaluate with.

    Trials that diverged have None, and no parameters.
    """
    template = self.program.template.eval_params
    steps: list[int | None] = []
    trees = []
    for trial in self.trials:
      step = None
      if trial.diverged is None:
        step, leaves = recovery.best(trial.checkpoints, template)
        structure = jax.tree.structure(template)
        trees.append(jax.tree.unflatten(structure, leaves.values()))
      steps.append(step)
    sharding = self.program.state_sharding.eval_params
    return steps, self.program.join(trees, sharding)

  @property
  def has_stopped(self) -> bool:
    """Whether no trial trains on: each has stopped or diverged."""
    return all(t.has_stopped or t.diverged for t in self.trials)

  def keep_fits(self, steps: list[int | None], fits: list[dict]) -> None:
    """Writes what was chosen on validation for the best checkpoints.

    Args:
      steps: as `restore_best` returns them; fits are of those without None.
    """
    of_trials = iter(fits)
    for trial, step in zip(self.trials, steps, strict=True):
      fit = {} if step is None else next(of_trials)
      if fit and trial.workdir.writes:
        text = json.dumps({'step': step, **fit}) + '\n'
        write_atomic(trial.workdir.file(evaluation.CALIBRATION), text)

  def keep(self, step: int, **parts: Any) -> None:
    """Keeps parts of the row of this step; they may be on a device still.

    Args:
      parts: `measured`, metrics of training, a tree of the program; or
        `evaluations`, metrics of validation, a dict for each trial.
    """
    self._pending |= {'step': step} | parts

  def flush(self) -> None:
    """Waits for the row that was kept, if any, and writes it.

    Raises:
      Diverged: a metric of every trial is not finite.
    """
    if not self._pending:
      return
    pending, self._pending = self._pending, {}
    step, rows = pending['step'], []
    measured = evaluations = [{} for _ in self.trials]
    if 'measured' in pending:
      measured = self._split(pending['measured'])
    evaluations = pending.get('evaluations', evaluations)

    def write(trial, measured, evaluation):
      if trial.has_stopped:
        return
      row = trial.row(step, measured)
      row |= {f'validation/{name}': value for name, value in evaluation.items()}
      rows.append(row)
      trial.writer.write(step, row)
      if evaluation:
        best_metric = trial.settings.checkpoint.best_metric
        trial.checkpoints.scores[step] = evaluation[best_metric]

    try:
      self._of_all(write, measured, evaluations)
    finally:
      # Those that have stopped have no row.
      rates = self.progress.show(step, rows, self._best()) if rows else {}
      for trial in self.trials:
        trial.writer.plot(step, rates)

  def _best(self) -> list[float | None]:
    """The best score of each trial so far, None without any."""
    best = []
    for trial in self.trials:
      scores = trial.checkpoints.scores
      step = trial.checkpoints.best([*scores])
      best.append(None if step is None else scores[step])
    return best

  def save(self, state: State, measured) -> None:
    """Starts saving the State of every trial whose State is finite.

    Nothing happens if a save of its step was started before.

    Args:
      measured: metrics of its last step, a tree of the program; written as the
        last row of a trial whose State is not finite.

    Raises:
      Diverged: no trial has a finite State.
      Failed: a checkpoint could not be written.
    """
    step = int(np.max(state.step))
    if any(step in trial.checkpoints.steps() for trial in self.trials):
      return
    is_finite = np.atleast_1d(self.program.is_finite(state))
    if len(self.trials) > 1:
      self._keep_common()

    def save(trial, state, measured, is_finite):
      if not is_finite and trial.has_stopped:
        return
      if not is_finite:
        if trial.writer.last.get('step') != step:
          trial.writer.write(step, trial.row(step, measured))
        raise Diverged(
          'a parameter, or an element of the state of the optimizer, is not '
          f'finite after step {step}'
        )
      trial.writer.sync()
      trial.checkpoints.save(state)
      trial.workdir.set_status('RUNNING', step, uploads=False)

    count = len(self.trials)
    self._of_all(
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

  def wait(self) -> None:
    """Returns when every save has ended."""
    for trial in self.trials:
      trial.checkpoints.wait()

  def _split(self, tree) -> list:
    return self.program.split(tree, len(self.trials))

  def _of_all(self, action, *lists) -> None:
    """Calls action(trial, ...) for each trial that has not diverged."""
    for trial, *arguments in zip(self.trials, *lists, strict=True):
      if trial.diverged is None:
        try:
          action(trial, *arguments)
        except Diverged as error:
          trial.diverged = error
          trial.workdir.set_status('DIVERGED', reason=str(error))
          log(f'{trial.workdir.path} diverged: {error}')
    errors = [trial.diverged for trial in self.trials if trial.diverged]
    if len(errors) == len(self.trials):
      raise errors[0]


def opened(
  program: Program,
  runs: list[tuple[Settings, Workdir]],
  on_exit: contextlib.ExitStack,
) -> tuple[Group, State]:
  """A group, and the State from which it continues.

  The State is the newest of which all runs have an intact checkpoint; without
  one, it is new.

  Args:
    runs: settings and workdir of each.
    on_exit: closes everything.

  Raises:
    UserError: a checkpoint, or that of config.train.init_from, does not fit.
    Failed: there are checkpoints, and all of them are corrupt.
  """
  folders = []
  for settings, workdir in runs:
    folder = Checkpoints(
      workdir.path, settings.checkpoint, workdir.run, settings.best
    )
    on_exit.callback(folder.close)
    folders.append(folder)
  hparams = program.hparams([settings for settings, _ in runs])
  start, states = recovery.newest(folders, program.template)
  if states:
    log(f'resuming after step {start}')
    state = program.join(states, program.state_sharding)
  else:
    log('initialising parameters')
    state = _with_first_parameters(program, program.init(hparams), runs)
    for settings, workdir in runs:
      if workdir.writes:
        sources.write_digests(settings, workdir.path)
  trials = []
  for (settings, workdir), folder in zip(runs, folders, strict=True):
    writer = MetricWriter(workdir, settings.flat(), start)
    trial = Trial(settings, workdir, folder, writer)
    on_exit.push(trial.close)
    folder.scores |= metrics.scores(
      workdir.file('metrics.jsonl'), settings.checkpoint.best_metric, start
    )
    trials.append(trial)
  metric = runs[0][0].checkpoint.best_metric
  progress = Progress(start, program.settings.train.steps, metric)
  return Group(program, trials, hparams, progress), state


def _with_first_parameters(program: Program, state: State, runs) -> State:
  """The first State, with parameters of init_from or vectors of words."""
  # Runs that share a program have the same vocabulary and the same vectors.
  settings, workdir = runs[0]
  vectors = sources.vectors_of(settings, workdir.path)
  begins = any(r.train.init_from or r.model.pretrained for r, _ in runs)
  if vectors is None and not begins:
    return state
  states = program.split(state, len(runs))
  for index, (settings, workdir) in enumerate(runs):
    params = sources.first_params(
      states[index].params, settings, workdir.path, vectors
    )
    average = states[index].average
    states[index] = states[index].replace(
      params=params, average=average if average is None else params
    )
  return program.join(states, program.state_sharding)
