"""Time of short commands, against a process that only imports the libraries.

From the start of the process to the first training step of the default config,
and to the end of predict of one text and of evaluate. Compiled programs are
read from the cache (JAX_COMPILATION_CACHE_DIR) in all but the first calls.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile

from experiments.benchmarks import alternate, summary
from experiments.command import app

_IMPORTS = 'import jax, flax, optax, orbax.checkpoint'
# Logged by experiments.train after its first step.
_FIRST_STEP = 'first update done'
_ROOT = os.path.dirname(os.path.dirname(app.DEFAULT_CONFIG))


def measure(values) -> list[dict]:
  """One row per process; ratios are to the imports.

  Args:
    values: flags of experiments.benchmark.
  """
  with tempfile.TemporaryDirectory() as folder:
    workdir = f'--workdir={folder}/run'
    _run('-m', 'experiments.train', workdir, '--config.train.steps=1')
    processes = {
      'imports': ('-c', _IMPORTS),
      'predict': ('-m', 'experiments.predict', workdir, '--text=fine'),
      'evaluate': ('-m', 'experiments.evaluate', workdir),
    }
    functions = {
      name: functools.partial(_run, *arguments)
      for name, arguments in processes.items()
    } | {'train, first step': _train_once}
    seconds = alternate(functions, values.repetitions)
  return [
    {'process': name} | summary(times, seconds['imports'])
    for name, times in seconds.items()
  ]


def _run(*arguments: str) -> None:
  subprocess.run(
    [sys.executable, *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
  )


def _train_once() -> None:
  """Starts training, and kills it after the first step."""
  with (
    tempfile.TemporaryDirectory() as folder,
    subprocess.Popen(
      [sys.executable, '-m', 'experiments.train', f'--workdir={folder}/run'],
      stderr=subprocess.PIPE,
      text=True,
      cwd=_ROOT,
    ) as process,
  ):
    try:
      if not any(_FIRST_STEP in line for line in process.stderr or ()):
        raise RuntimeError('training ended before its first step')
    finally:
      process.kill()
