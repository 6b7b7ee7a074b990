"""Time, CPU time and peak memory from a process to its first batch, by data.

A file of texts of 22 words is read for the first time (`first start`), again
(`second start`), and by two processes that start at once (`two at once`), each
beside the built-in data. `cpu_s` is summed over processes, `peak_mib` the most
of one. With --against, `experiments.data.loading` of another checkout reads it,
too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from experiments.benchmarks import checkout, startup, summary
from experiments.command import app
from experiments.data.store import VARIABLE

_ROOT = os.path.dirname(os.path.dirname(app.DEFAULT_CONFIG))
_WORDS, _VOCABULARY, _CHUNK = 22, 30_000, 20_000
# Waits at the end, so that its memory can be read.
_START = """
import json, sys, time
start = time.monotonic()
from experiments.command import app
from experiments.data import loading
from experiments.data.batches import TrainBatches
from experiments.settings import settings
config = app.load_config(app.DEFAULT_CONFIG)
if sys.argv[1]:
  config.data.name, config.data.dir = 'text', sys.argv[1]
  config.data.test_fraction = 0.1
found = loading.load(settings.from_config(config).data, '')
TrainBatches(found.splits['train'], 64, 0, found.bucket_lengths)(0)
print(time.monotonic() - start, time.process_time(), flush=True)
sys.stdin.read()
"""


def measure(values) -> list[dict]:
  """One row per kind of start; ratios are to the built-in data.

  Args:
    values: flags of experiments.benchmark.
  """
  with tempfile.TemporaryDirectory() as folder:
    data, cache = os.path.join(folder, 'data'), os.path.join(folder, 'cache')
    os.mkdir(data)
    write(os.path.join(data, 'train.tsv'), values.rows)
    # (checkout, folder of the data, whether the cache is emptied, processes).
    kinds = {
      'built-in data': (_ROOT, '', False, 1),
      'first start': (_ROOT, data, True, 1),
      'second start': (_ROOT, data, False, 1),
      'two at once': (_ROOT, data, True, 2),
    }
    if values.against is not None:
      other = os.path.abspath(values.against)
      kinds[checkout(other)] = (other, data, True, 1)
    found = {name: [] for name in kinds}
    for _ in range(values.repetitions):
      for name, (root, directory, is_first, count) in kinds.items():
        if is_first:
          shutil.rmtree(cache, ignore_errors=True)
        found[name].append(_started(root, directory, cache, count))
  seconds = {name: [row[0] for row in rows] for name, rows in found.items()}
  return [
    {'start': name}
    | summary(seconds[name], seconds['built-in data'])
    | {
      'cpu_s': round(statistics.median(row[1] for row in rows), 2),
      'peak_mib': round(max(row[2] for row in rows), 1),
    }
    for name, rows in found.items()
  ]


def write(path: str, rows: int) -> None:
  """A table of texts of 22 words each, with frequencies after Zipf."""
  rng = np.random.default_rng(0)
  letters = rng.integers(0, 26, (_VOCABULARY, 8))
  sizes = rng.integers(2, 9, _VOCABULARY)
  words = np.array(
    [
      ''.join(chr(97 + letter) for letter in word[:size])
      for word, size in zip(letters, sizes, strict=True)
    ]
  )
  shares = np.cumsum(1 / np.arange(1, _VOCABULARY + 1))
  with open(path, 'w') as file:
    file.write('text\tlabel\n')
    for start in range(0, rows, _CHUNK):
      drawn = rng.random((min(_CHUNK, rows - start), _WORDS)) * shares[-1]
      texts = words[np.searchsorted(shares, drawn)].tolist()
      labels = rng.integers(2, size=len(texts)).tolist()
      for text, label in zip(texts, labels, strict=True):
        file.write(f'{" ".join(text)}\t{"ab"[label]}\n')


def _started(root: str, data: str, cache: str, count: int):
  """(seconds, CPU seconds of all, peak MiB of one) of `count` processes."""
  environment = os.environ | {'PYTHONPATH': root, VARIABLE: cache}
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', _START, data],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      cwd=root,
      env=environment,
    )
    for _ in range(count)
  ]
  try:
    lines = [process.stdout.readline().split() for process in processes]
    if not all(lines):
      raise RuntimeError('a process ended before its first batch')
    seconds, cpu = np.array(lines, float).T
    peaks = [startup.peak_mib(process.pid) for process in processes]
    return seconds.max(), cpu.sum(), max(peaks)
  finally:
    for process in processes:
      process.kill()
      process.communicate()
