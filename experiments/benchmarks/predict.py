"""Time and peak memory of experiments.predict, by the number of texts.

Of a run of the default config, trained for a few steps. A first answer is timed
from the start of the process, through a pipe that stays open. With --against,
another checkout predicts --rows texts, too, with a run of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from experiments.benchmarks import checkout, run, startup, summary
from experiments.command import app
from experiments.data.datasets import WordOrder

_ROOT = os.path.dirname(os.path.dirname(app.DEFAULT_CONFIG))
# Seconds between looks at the memory of a process.
_POLL = 0.02


def measure(values) -> list[dict]:
  """One row per number of texts; ratios are to one text.

  Args:
    values: flags of experiments.benchmark.
  """
  with tempfile.TemporaryDirectory() as folder:
    # (checkout, number of texts; None: the first answer of a pipe).
    kinds = {
      'one text': (_ROOT, 1),
      'first answer of a pipe': (_ROOT, None),
      f'{values.rows} texts': (_ROOT, values.rows),
      f'{10 * values.rows} texts': (_ROOT, 10 * values.rows),
    }
    if values.against is not None:
      other = os.path.abspath(values.against)
      kinds |= {checkout(other): (other, values.rows)}
    for count in {count or 1 for _, count in kinds.values()}:
      _write(os.path.join(folder, str(count)), count)
    runs = {root: _train(root, folder) for root, _ in kinds.values()}
    found = {name: [] for name in kinds}
    for _ in range(values.repetitions):
      for name, (root, count) in kinds.items():
        path = os.path.join(folder, str(count or 1))
        found[name].append(_predict(root, runs[root], path, count is None))
  seconds = {name: [took for took, _ in rows] for name, rows in found.items()}
  return [
    {'texts': name}
    | summary(seconds[name], seconds['one text'])
    | {'peak_mib': round(statistics.median(peak for _, peak in rows), 1)}
    for name, rows in found.items()
  ]


def _write(path: str, count: int) -> None:
  """Texts of 1 to 60 words, 10 in the mean, most of them short."""
  rng = np.random.default_rng(0)
  rows = WordOrder(2_000, 1, 1).read('', 0)['train']
  words = ' '.join(row.text for row in rows).split()
  sizes = np.minimum(1 + rng.exponential(9, count).astype(int), 60)
  starts = rng.integers(len(words) - 60, size=count)
  with open(path, 'w') as file:
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
      file.write(f'{" ".join(words[start : start + size])}\n')


def _train(root: str, folder: str) -> str:
  workdir = os.path.join(folder, root.replace(os.sep, '-'))
  if not os.path.exists(workdir):
    run(root, 'train', f'--workdir={workdir}', '--config.train.steps=20')
  return workdir


def _predict(
  root: str, workdir: str, path: str, is_pipe: bool
) -> tuple[float, float]:
  """(seconds, peak MiB); of a pipe, until the first answer."""
  command = ['-m', 'experiments.predict', f'--workdir={workdir}', '--json']
  if not is_pipe:
    command.append(f'--input={path}')
  start = time.perf_counter()
  with (
    tempfile.TemporaryFile() as answers,
    subprocess.Popen(
      [sys.executable, *command],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE if is_pipe else answers,
      stderr=subprocess.DEVNULL,
      cwd=root,
      env=os.environ | {'PYTHONPATH': root},
    ) as process,
  ):
    try:
      if is_pipe:
        with open(path, 'rb') as file:
          process.stdin.write(file.read())
        process.stdin.flush()
        if not process.stdout.readline():
          raise RuntimeError('predict ended before its first answer')
        return time.perf_counter() - start, startup.peak_mib(process.pid)
      peak = 0.0
      while process.poll() is None:
        peak = max(peak, startup.peak_mib(process.pid))
        time.sleep(_POLL)
      if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
      return time.perf_counter() - start, peak
    finally:
      process.kill()
