"""Time from the command to the first training step of the default config.

Against its lower bounds: a process that only imports the libraries, and one
that imports them, traces the same step and reads its program from the cache
(JAX_COMPILATION_CACHE_DIR), where all but the first call find it; and that of
predict of one text, and evaluate, of a trained run against the imports. With
--against, against experiments.train of another checkout instead. `peak_mib` is
the peak resident memory of the process, until that step.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile

import jax
import numpy as np

from experiments.benchmarks import alternate, checkout, run, summary
from experiments.command import app
from experiments.command.errors import UserError
from experiments.data.batches import Batch
from experiments.data.vocabularies import Vocabulary
from experiments.settings import settings
from experiments.training import compiled

_IMPORTS = 'import jax, flax, optax, orbax.checkpoint'
_COMPILE = f"""{_IMPORTS}
from experiments.benchmarks import startup
startup.compile_step()"""
# Commands that compile one short program, and their flags.
_SHORT = {'predict': ('--text=fine',), 'evaluate': ()}
# Logged by experiments.train after its first step.
_SIGN = 'first update done'
_ROOT = os.path.dirname(os.path.dirname(app.DEFAULT_CONFIG))
# Vocabulary size and longest text of the default data.
DEFAULT_DATA = 73, 17


def measure(values) -> list[dict]:
  """One row per process; ratios are to the first, of short commands to imports.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    UserError: --against is no checkout.
  """
  trees = {'experiments.train': _ROOT}
  functions = {
    'imports and the cached step': functools.partial(_python, '-c', _COMPILE),
    'imports': functools.partial(_python, '-c', _IMPORTS),
  }
  if values.against is not None:
    other = os.path.abspath(values.against)
    if not os.path.isfile(os.path.join(other, 'experiments', 'train.py')):
      raise UserError(
        f'--against={values.against} has no experiments/train.py; give the '
        'root of another checkout'
      )
    trees, functions = {checkout(other): other} | trees, {}
  peaks = {name: [] for name in trees}
  for name, root in trees.items():
    functions[name] = functools.partial(_train_once, root, peaks[name])
  with tempfile.TemporaryDirectory() as folder:
    if values.against is None:
      run(_ROOT, 'train', f'--workdir={folder}/run', '--config.train.steps=1')
      for name, flags in _SHORT.items():
        functions[f'experiments.{name}'] = functools.partial(
          run, _ROOT, name, f'--workdir={folder}/run', *flags
        )
    seconds = alternate(functions, values.repetitions)
  first = next(iter(seconds.values()))
  rows = []
  for name, times in seconds.items():
    is_short = name.rpartition('.')[2] in _SHORT
    base = seconds['imports'] if is_short else first
    row = {'process': name} | summary(times, base)
    if name in trees:
      row['peak_mib'] = round(statistics.median(peaks[name]), 1)
    rows.append(row)
  return rows


def compile_step() -> None:
  """Compiles the training step of the default config for one shape."""
  wanted = settings.from_config(app.load_config(app.DEFAULT_CONFIG))
  vocab_size, length = DEFAULT_DATA
  program = compiled.make(
    wanted, Vocabulary(vocab_size), 2, devices=jax.devices()[:1]
  )
  size = wanted.train.batch_size
  rows = np.zeros(size, np.int32)
  tokens = np.zeros((size, length), np.int32)
  batch = Batch(tokens, rows, rows, rows.astype(np.float32))
  hparams = program.hparams([wanted])
  program.train_step.lower(program.template, batch, hparams).compile()


def _python(*arguments) -> None:
  subprocess.run([sys.executable, *arguments], check=True)


def _train_once(root: str, peaks: list[float]) -> None:
  """Starts training in a checkout, and kills it after the first step.

  Args:
    peaks: the peak memory of the process, in MiB, is added.
  """
  with tempfile.TemporaryDirectory() as folder:
    workdir = os.path.join(folder, 'run')
    command = ['-m', 'experiments.train', f'--workdir={workdir}']
    with subprocess.Popen(
      [sys.executable, *command],
      stderr=subprocess.PIPE,
      text=True,
      cwd=root,
      env=os.environ | {'PYTHONPATH': root},
    ) as process:
      try:
        if not any(_SIGN in line for line in process.stderr):
          raise RuntimeError('training ended before its first step')
        peaks.append(peak_mib(process.pid))
      finally:
        process.kill()


def peak_mib(pid: int) -> float:
  """Peak resident memory of a process that runs, on Linux; else NaN.

  Not of getrusage, which counts what the parent had when it started the child.
  """
  try:
    with open(f'/proc/{pid}/status') as file:
      lines = [line for line in file if line.startswith('VmHWM:')]
  except FileNotFoundError:
    lines = []
  # None while it ends.
  return int(lines[0].split()[1]) / 2**10 if lines else math.nan
