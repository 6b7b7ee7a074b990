"""Time from the command to the first training step of the default config.

Against its lower bounds: a process that only imports the libraries, and one
that imports them and compiles the same step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import jax
import numpy as np

from experiments.benchmarks import alternate, summary
from experiments.command import app
from experiments.data.batches import Batch
from experiments.settings import settings
from experiments.training import compiled

_IMPORTS = 'import jax, flax, optax, orbax.checkpoint'
_COMPILE = f"""{_IMPORTS}
from experiments.benchmarks import startup
startup.compile_step()"""
# Logged by experiments.train after its first step.
_SIGN = 'first update done'
# Vocabulary size and longest sentence of the default data.
_VOCAB_SIZE, _LENGTH = 73, 17


def measure(values) -> list[dict]:
  """One row per process; ratios are to imports and compilation.

  Args:
    values: flags of experiments.benchmark.
  """
  functions = {
    'imports and compilation': lambda: _python('-c', _COMPILE),
    'imports': lambda: _python('-c', _IMPORTS),
    'experiments.train': _train_once,
  }
  seconds = alternate(functions, values.repetitions)
  base = seconds['imports and compilation']
  return [
    {'process': name} | summary(times, base) for name, times in seconds.items()
  ]


def compile_step() -> None:
  """Compiles the training step of the default config for one shape."""
  wanted = settings.from_config(app.load_config(app.DEFAULT_CONFIG))
  program = compiled.make(wanted, _VOCAB_SIZE, 2, devices=jax.devices()[:1])
  size = wanted.train.batch_size
  rows = np.zeros(size, np.int32)
  tokens = np.zeros((size, _LENGTH), np.int32)
  batch = Batch(tokens, rows, rows, rows.astype(np.float32))
  hparams = program.hparams([wanted])
  program.train_step.lower(program.template, batch, hparams).compile()


def _python(*arguments) -> None:
  subprocess.run([sys.executable, *arguments], check=True)


def _train_once() -> None:
  """Starts training, and kills it after the first step."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = os.path.join(folder, 'run')
    command = ['-m', 'experiments.train', f'--workdir={workdir}']
    with subprocess.Popen(
      [sys.executable, *command], stderr=subprocess.PIPE, text=True
    ) as process:
      try:
        if not any(_SIGN in line for line in process.stderr):
          raise RuntimeError('training ended before its first step')
      finally:
        process.kill()
