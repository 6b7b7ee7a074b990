"""Logging of metrics: metrics.jsonl, curves, log lines.

metrics.jsonl holds only values that are functions of config and step, so that
an interrupted and resumed run writes the same file as an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.command.errors import Diverged, UserError
from experiments.command.log import Reporter, log
from experiments.workdir import curves
from experiments.workdir import workdir as workdir_lib


class MetricWriter:
  """Writes the metrics of one run.

  Args:
    workdir: opened.
    config: values by dotted key, to be shown beside the curves.
    start: steps of the checkpoint that the run goes on from, or 0.

  Attributes:
    last: the last row; {} before the first.
  """

  def __init__(self, workdir, config: Mapping[str, Any], start: int):
    self._path = workdir.file('metrics.jsonl')
    self._writes = workdir.writes
    rows = [row for row in read_rows(self._path) if row['step'] <= start]
    self.last: dict[str, Any] = rows[-1] if rows else {}
    self._curves = None
    if self._writes:
      # Without rows of steps after `start`, which are trained again.
      _write_rows(self._path, rows)
      self._curves = curves.Curves(workdir, config, start + 1)

  def write(self, step: int, row: Mapping[str, float | None]) -> None:
    """Writes the metrics of a step, or adds them to its row.

    Those that are None are undefined on the data. Diverged if one is not
    finite; the row is written nevertheless.
    """
    known = {name: value for name, value in row.items() if value is not None}
    broken = [name for name in known if not math.isfinite(known[name])]
    # JSON has no NaN: null marks a metric that was not finite, too.
    shown = {name: None if name in broken else row[name] for name in row}
    if self.last.get('step') == step:
      # An evaluation that was interrupted is rerun on resume.
      self.last |= shown
      if self._writes:
        _write_rows(self._path, [*read_rows(self._path)[:-1], self.last])
    elif self._writes:
      self.last = {'step': step} | shown
      with open(self._path, 'a') as file:
        file.write(json.dumps(self.last) + '\n')
    self.plot(step, row)
    if broken:
      raise Diverged(f'{broken[0]} is {row[broken[0]]} at step {step}')

  def has_evaluation(self, step: int) -> bool:
    """Whether the newest row is of this step, with validation metrics."""
    names = self.last if self.last.get('step') == step else ()
    return any(name.startswith('validation/') for name in names)

  def plot(self, step: int, row: Mapping[str, float | None]) -> None:
    """Adds a point to each of the curves of `row`, and no line to the file."""
    known = {name: value for name, value in row.items() if value is not None}
    if self._curves is not None:
      self._curves.add(known, step)

  def sync(self) -> None:
    """Flushes the rows to disk; call it before a checkpoint is saved."""
    if self._writes:
      with open(self._path, 'a') as file:
        os.fsync(file.fileno())

  def close(self, has_failed: bool = False) -> None:
    """Closes the curves; `has_failed` if the run ends before its last step."""
    if self._curves is not None:
      self._curves.close(has_failed)


class Progress:
  """Log lines for people: loss, score and steps/s; metrics.jsonl has all.

  Args:
    start: steps of the checkpoint that the run goes on from, or 0.
    steps: of the whole run.
    metric: of validation, which selects the checkpoint.

  Attributes:
    bar: of all steps.
  """

  def __init__(self, start: int, steps: int, metric: str):
    self._steps = steps
    self._metric = metric
    self._loss = ''
    self.bar = Reporter('{} steps', steps, start, has_lines=False)
    self._since = (time.perf_counter(), start)

  def start_clock(self, step: int) -> None:
    """Starts measuring speed at a step; call it after compilation."""
    self._since = (time.perf_counter(), step)

  def show(
    self,
    step: int,
    rows: list[Mapping[str, float | None]],
    best: Sequence[float | None],
  ) -> dict:
    """Prints the means over all rows; returns steps_per_second.

    Args:
      best: of each trial the best value of the metric so far, for the bar.
    """
    now = time.perf_counter()
    then, before = self._since
    trials = f'means of {len(rows)} trials:' if len(rows) > 1 else ''
    loss, score = (
      _mean(name, [row.get(name) for row in rows])
      for name in ('train/loss', f'validation/{self._metric}')
    )
    rates, speed = {}, ''
    if step > before:
      rates['steps_per_second'] = (step - before) / (now - then)
      speed = f'{rates["steps_per_second"]:.1f} steps/s'
    self._since = (now, step)
    log(_joined(f'step {step}/{self._steps}', trials, loss, score, speed))
    # Not every row has a loss of training.
    self._loss = loss.removeprefix('train/') or self._loss
    top = _mean(f'best {self._metric}', best)
    self.bar.text = _joined('{} steps', self._loss, top, speed)
    return rates


def _mean(name: str, values: Sequence[float | None]) -> str:
  """The mean of the values that are known, with its name; '' without any."""
  known = [value for value in values if value is not None]
  return f'{name} {statistics.fmean(known):.4g}' if known else ''


def _joined(*parts: str) -> str:
  return '  '.join(filter(None, parts))


def read_rows(path: str) -> list[dict[str, Any]]:
  """Rows of a metrics.jsonl, without an incomplete last line after a kill.

  A UserError says that a line is not JSON, or has no step.
  """
  if not os.path.exists(path):
    return []
  with open(path, 'rb') as file:
    lines = file.readlines()
  try:
    rows = [json.loads(line) for line in lines if line.endswith(b'\n')]
  except (ValueError, RecursionError) as error:
    raise UserError(f'{path} has a line that is not JSON: {error}') from error
  for number, row in enumerate(rows, 1):
    if not _is_row(row):
      raise UserError(
        f'{path} line {number} is damaged: it has no step, or a value that is '
        'no number; restore it from a copy of the folder'
      )
  return rows


def _is_row(row: Any) -> bool:
  if not isinstance(row, dict) or type(row.get('step')) is not int:
    return False
  return all(type(value) in (int, float, type(None)) for value in row.values())


def scores(
  path: str, metric: str, until: float = math.inf
) -> dict[int, float | None]:
  """A validation metric by step; None where it was undefined."""
  return {
    step: values[metric]
    for step, values in evaluations(path).items()
    if metric in values and step <= until
  }


def has_stopped(
  scores: Mapping[int, float | None], best: Callable, patience: int
) -> bool:
  """Whether the last `patience` scores are no better than one before them.

  Before the first one that is defined, there is none.

  Args:
    scores: of validation, by step; None where it was undefined.
    best: max or min.
    patience: 0: never.
  """
  top, count = None, 0
  for _, score in sorted(scores.items()):
    is_better = score is not None and (top is None or best(score, top) != top)
    if is_better:
      top, count = score, 0
    elif top is not None:
      count += 1
  return 0 < patience <= count


def evaluations(path: str) -> dict[int, dict[str, float | None]]:
  """Metrics on validation, by step."""
  of_steps = {}
  prefix = 'validation/'
  for row in read_rows(path):
    values = {
      name.removeprefix(prefix): value
      for name, value in row.items()
      if name.startswith(prefix)
    }
    if values:
      of_steps[row['step']] = values
  return of_steps


def _write_rows(path: str, rows: list[dict[str, Any]]) -> None:
  workdir_lib.write_atomic(path, ''.join(json.dumps(r) + '\n' for r in rows))
