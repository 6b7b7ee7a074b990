"""Where metrics go: metrics.jsonl, TensorBoard, and a line or a bar for people.

metrics.jsonl holds only what is a function of config and step, so that a run
that was stopped and resumed writes the same file as one that was not.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping

from tqdm import tqdm

from experiments.command.errors import Diverged, writing
from experiments.command.log import log
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.keeping import LAST_PHASE


class MetricWriter:
  """The rows of one run.

  Attributes:
    last: the newest row, {} before the first.
  """

  def __init__(self, workdir, start: int):
    self._path = workdir.file('metrics.jsonl')
    self._writes = workdir.writes
    rows = [row for row in read_rows(self._path) if row['step'] <= start]
    self.last = rows[-1] if rows else {}
    self._board = None
    if self._writes:
      # Rows of steps that are about to be computed again go.
      _write_rows(self._path, rows)
      self._board = _Board(workdir.file('tensorboard'), start + 1)

  def write(
    self, step: int, row: Mapping[str, float], phase: str | None = None
  ) -> None:
    """Writes the numbers of a step; adds them to its row if it has one.

    Args:
      phase: of the run, if it has several.

    Raises:
      Diverged: one is not finite; the row is written all the same.
      Failed: it cannot be written.
    """
    broken = [name for name, value in row.items() if not math.isfinite(value)]
    # JSON has no NaN: null says that there was a number and what it was not.
    shown = {name: None if name in broken else row[name] for name in row}
    if self.last.get('step') == step:
      # A run that was stopped inside of an evaluation makes up for it.
      self.last |= shown
      if self._writes:
        _write_rows(self._path, [*read_rows(self._path)[:-1], self.last])
    elif self._writes:
      told = {} if phase is None else {'phase': phase}
      self.last = {'step': step} | told | shown
      with writing(self._path), open(self._path, 'a') as file:
        file.write(json.dumps(self.last) + '\n')
    self.plot(step, row)
    if broken:
      raise Diverged(f'{broken[0]} is {row[broken[0]]} at step {step}')

  def has_evaluation(self, step: int) -> bool:
    """Whether the newest row is of this step, with numbers of validation."""
    names = self.last if self.last.get('step') == step else ()
    return any(name.startswith('validation/') for name in names)

  def plot(self, step: int, row: Mapping[str, float]) -> None:
    """Shows numbers in TensorBoard only."""
    for name, value in row.items() if self._board else ():
      self._board.add(name, value, step)

  def sync(self) -> None:
    """Returns when the rows are on the disk, as a checkpoint wants them."""
    if self._writes:
      with writing(self._path), open(self._path, 'a') as file:
        os.fsync(file.fileno())

  def close(self) -> None:
    """Ends the TensorBoard file."""
    if self._board:
      self._board.close()


class _Board:
  """Scalars of one attempt at a run, in a file for TensorBoard.

  Written at once rather than by tensorboardX's own thread, which ends at the
  first error and then lets the run wait for it forever. A figure that cannot be
  drawn is no reason to end a run: what does not fit on the disk is left out.
  """

  def __init__(self, folder: str, first_step: int):
    with _without('torch'):
      from tensorboardX import event_file_writer
      from tensorboardX.proto import event_pb2, summary_pb2
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    with writing(folder):
      os.makedirs(folder, exist_ok=True)
      path = os.path.join(folder, 'events')
      self._file = event_file_writer.EventsWriter(path)
    # What an earlier attempt wrote of these steps is no longer shown.
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=first_step, session_log=start)

  def add(self, name: str, value: float, step: int) -> None:
    """A point of the curve `name`."""
    point = self._summary.Value(tag=name, simple_value=value)
    self._write(step=step, summary=self._summary(value=[point]))

  def close(self) -> None:
    """Writes what is left."""
    with contextlib.suppress(OSError):
      self._file.close()

  def _write(self, **fields) -> None:
    with contextlib.suppress(OSError):
      self._file.write_event(self._event(wall_time=time.time(), **fields))
      self._file.flush()


@contextlib.contextmanager
def _without(package: str) -> Iterator[None]:
  """A block in which a package cannot be imported, if it has not been yet.

  tensorboardX imports PyTorch wherever it is installed, for two seconds, to
  accept its tensors, of which there are none here.
  """
  if package in sys.modules:
    yield
    return
  sys.modules[package] = None
  try:
    yield
  finally:
    del sys.modules[package]


class Progress:
  """A line or a bar for people, and how fast it goes."""

  def __init__(self, start: int, steps: int):
    self._steps = steps
    self._since = (time.perf_counter(), start)
    self._flops, self._peak = 0, 0.0
    self._bar = tqdm(
      total=steps,
      initial=start,
      unit='step',
      disable=not sys.stderr.isatty(),
      leave=False,
    )

  def start_clock(self, step: int, peak: float) -> None:
    """Speed is counted from here on; call it once compilation is over.

    Args:
      step: updates applied by now.
      peak: operations a second that this machine could do.
    """
    self._since = (time.perf_counter(), step)
    self._flops, self._peak = 0, peak

  def count(self, flops: int) -> None:
    """Adds the operations of an update, which `mfu` is of.

    Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): what the model
    needs, whatever the program did, over what the machine could have done.
    """
    self._flops += flops

  def show(self, step: int, rows: list[Mapping[str, float]]) -> dict:
    """Prints the means over all rows; returns steps_per_second and mfu."""
    now = time.perf_counter()
    then, before = self._since
    numbers = [
      f'{name} {statistics.fmean(row[name] for row in rows):.4g}'
      for name in rows[0]
    ]
    if len(rows) > 1:
      numbers.insert(0, f'means of {len(rows)} trials:')
    rates = {}
    if step > before:
      rates['steps_per_second'] = (step - before) / (now - then)
      rates['mfu'] = self._flops / (now - then) / self._peak
      numbers.append(f'{rates["steps_per_second"]:.1f} steps/s')
      numbers.append(f'mfu {rates["mfu"]:.3f}')
    self._since, self._flops = (now, step), 0
    self._bar.update(step - self._bar.n)
    log(f'step {step}/{self._steps}  ' + '  '.join(numbers))
    return rates

  def close(self) -> None:
    """Ends the bar."""
    self._bar.close()


def read_rows(path: str) -> list[dict[str, float]]:
  """Rows of a metrics.jsonl, but for one that a kill left half written."""
  if not os.path.exists(path):
    return []
  with open(path) as file:
    lines = file.readlines()
  return [json.loads(line) for line in lines if line.endswith('\n')]


def read_last_phase(path: str) -> list[dict[str, float]]:
  """Rows of a metrics.jsonl; of a run with several phases, of the last one."""
  return [
    row for row in read_rows(path) if row.get('phase', LAST_PHASE) == LAST_PHASE
  ]


def scores(path: str, metric: str, until: float = math.inf) -> dict[int, float]:
  """A metric of the validation split by step, of the last phase."""
  name = f'validation/{metric}'
  return {
    row['step']: row[name]
    for row in read_last_phase(path)
    if row.get(name) is not None and row['step'] <= until
  }


def _write_rows(path: str, rows: list[dict[str, float]]) -> None:
  workdir_lib.write_whole(path, ''.join(json.dumps(r) + '\n' for r in rows))
