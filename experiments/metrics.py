"""Where numbers go: metrics.jsonl, TensorBoard, and a line or a bar for eyes.

metrics.jsonl holds only what is a function of config and step, so that a run
that was stopped and resumed writes the same file as one that was not.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping

from tensorboardX import SummaryWriter
from tqdm import tqdm

from experiments import workdir as workdir_lib
from experiments.launch import Diverged, log


class MetricWriter:
  """Collects the numbers of a step, and writes them once it is over.

  `keep` takes arrays still on the device; `flush` waits for them. Flushing
  after the next step was dispatched leaves the device no time to wait.
  """

  def __init__(self, workdir, start: int, steps: int):
    self._path = workdir.file('metrics.jsonl')
    _drop_rows_after(self._path, start)
    self._board = SummaryWriter(
      workdir.file('tensorboard'), purge_step=start + 1
    )
    self._steps = steps
    self._row: dict[str, object] = {}
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

  def keep(self, step: int, values: Mapping[str, object]) -> None:
    """Adds to the row of this step."""
    if self._row.get('step', step) != step:
      self.flush()
    self._row = {'step': step} | self._row | dict(values)

  def flush(self) -> None:
    """Writes the row that was kept, if any.

    Raises:
      Diverged: a number in it is not finite.
    """
    if not self._row:
      return
    row, self._row = self._row, {}
    row = {
      name: value if name == 'step' else float(value)
      for name, value in row.items()
    }
    step = row['step']
    broken = [name for name, value in row.items() if not math.isfinite(value)]
    # JSON has no NaN: null says that there was a number and what it was not.
    shown = {name: None if name in broken else row[name] for name in row}
    with open(self._path, 'a') as file:
      file.write(json.dumps(shown) + '\n')
    for name, value in row.items():
      if name != 'step':
        self._board.add_scalar(name, value, step)
    self._show(step, row)
    if broken:
      raise Diverged(f'{broken[0]} is {row[broken[0]]} at step {step}')

  def close(self) -> None:
    """Ends the bar and the TensorBoard file."""
    self._bar.close()
    self._board.close()

  def _show(self, step, row):
    now = time.perf_counter()
    then, before = self._since
    numbers = [
      f'{name} {value:.4g}' for name, value in row.items() if name != 'step'
    ]
    if step > before:
      rate = (step - before) / (now - then)
      mfu = self._flops / (now - then) / self._peak
      numbers.append(f'{rate:.1f} steps/s  mfu {mfu:.3f}')
      self._board.add_scalar('steps_per_second', rate, step)
      self._board.add_scalar('mfu', mfu, step)
    self._since, self._flops = (now, step), 0
    self._bar.update(step - self._bar.n)
    log(f'step {step}/{self._steps}  ' + '  '.join(numbers))


def _drop_rows_after(path: str, step: int) -> None:
  """Removes rows of steps that are about to be computed again."""
  if not os.path.exists(path):
    return
  with open(path) as file:
    lines = file.readlines()
  kept = [line for line in lines if _is_row_until(line, step)]
  if kept != lines:
    workdir_lib.write_whole(path, ''.join(kept))


def _is_row_until(line: str, step: int) -> bool:
  try:
    return json.loads(line)['step'] <= step
  except json.JSONDecodeError:
    return False  # the last line of a run that was killed while writing it
