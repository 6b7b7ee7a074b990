"""Time of commands: short ones against imports, a sweep against launches.

Suite `start` measures from the start of a process to the first training step of
the default config, of a language model and, with --pretrained, of a published
model that is fine-tuned, and to the end of predict of one text and of evaluate.
Compiled programs are read from the cache (JAX_COMPILATION_CACHE_DIR) in all but
the first calls; a cold step has an empty cache.

Suite `sweep` has learning rates and four seeds of each. A first launch, which
is not timed, compiles their program. Half of the others run before the sweeps
and half after, so that drift of the machine affects both.
All runs are complete, with start-up and evaluation: minutes.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from experiments.benchmarks import alternate, summary
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.provenance import ROOT

_IMPORTS = 'import jax, flax, optax, orbax.checkpoint'
# Logged by experiments.train after its first step.
_FIRST_STEP = 'first update done'
# A process that is started searches modules where this one does.
_SEARCHED = {'PYTHONPATH': os.pathsep.join(sys.path)}
# Launches that are timed beside a sweep, and seeds of each learning rate.
_LAUNCHES, _SEEDS = 2, 4


def start(values) -> list[dict]:
  """One row per process; ratios are to the imports."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = f'--workdir={folder}/run'
    _run('-m', 'experiments.train', workdir, '--config.train.steps=1')
    processes = {
      'imports': ('-c', _IMPORTS),
      'predict': ('-m', 'experiments.predict', workdir, '--text=fine'),
      'evaluate': ('-m', 'experiments.evaluate', workdir),
    }
    functions: dict[str, Callable] = {
      name: functools.partial(_run, *arguments)
      for name, arguments in processes.items()
    }
    for name, flags in _trained(values.pretrained).items():
      for cache in ('warm', 'cold'):
        step = functools.partial(_train_once, flags, cache == 'cold')
        functions[f'{name}, first step, {cache}'] = step
    seconds = alternate(functions, values.repetitions)
  return [
    {'process': name} | summary(times, seconds['imports'])
    for name, times in seconds.items()
  ]


def sweep(values) -> list[dict]:
  """A row for a launch and for each sweep; ratios are to a trial of a sweep.

  Raises:
    UserError: a number of trials is no multiple of the seeds.
    CalledProcessError: a run failed; its log is on standard error.
  """
  for trials in values.trials:
    if int(trials) % _SEEDS:
      raise UserError(f'--trials={trials} must be a multiple of {_SEEDS}')
  with tempfile.TemporaryDirectory() as folder:

    def launch(index: int) -> float:
      log(f'launch {index}')
      flags = f'--config.seed={index}', f'--workdir={folder}/{index}'
      return _run('-m', 'experiments.train', *flags)

    launch(_LAUNCHES)
    launches = list(map(launch, range(_LAUNCHES // 2)))
    seconds = {
      trials: _sweep(f'{folder}/sweep-{trials}', trials, values.engine)
      for trials in map(int, values.trials)
    }
    launches += map(launch, range(_LAUNCHES // 2, _LAUNCHES))
  took = statistics.median(launches)
  return [{'how': 'launch', 'trials': 1, 'seconds': round(took, 1)}] + [
    {
      'how': 'sweep',
      'trials': trials,
      'seconds': round(of_sweep, 1),
      'ratio': round(took * trials / of_sweep, 2),
    }
    for trials, of_sweep in seconds.items()
  ]


def _sweep(workdir: str, trials: int, engine: str) -> float:
  log(f'sweep of {trials} trials')
  rates = np.geomspace(1e-4, 4e-3, trials // _SEEDS)
  rates = ','.join(f'{rate:.6g}' for rate in rates)
  return _run(
    '-m',
    'experiments.sweep',
    f'--grid=config.optimizer.learning_rate={rates}',
    f'--grid=config.seed={",".join(map(str, range(_SEEDS)))}',
    f'--engine={engine}',
    f'--workdir={workdir}',
  )


def _run(*arguments: str) -> float:
  """The seconds that a process of Python takes."""
  begin = time.perf_counter()
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=ROOT,
    env=os.environ | _SEARCHED,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    log(done.stderr)
    done.check_returncode()
  return time.perf_counter() - begin


def _trained(pretrained: str | None) -> dict[str, list[str]]:
  """Flags of the runs whose first step is measured, by name."""
  runs = {
    'default config': [],
    'language model': ['--config=configs/language_model.py'],
  }
  if pretrained:
    runs['published model'] = [
      '--config=configs/minilm.py',
      f'--config.model.pretrained={os.path.abspath(pretrained)}',
      '--config.data.source=word_order',
    ]
  return runs


def _train_once(flags: list[str], is_cold: bool) -> None:
  """Starts training, and kills it after the first step."""
  with tempfile.TemporaryDirectory() as folder:
    caches = {'JAX_COMPILATION_CACHE_DIR': f'{folder}/cache'} if is_cold else {}
    workdir = f'--workdir={folder}/run'
    with subprocess.Popen(
      [sys.executable, '-m', 'experiments.train', workdir, *flags],
      stderr=subprocess.PIPE,
      text=True,
      cwd=ROOT,
      env=os.environ | _SEARCHED | caches,
    ) as process:
      try:
        if not any(_FIRST_STEP in line for line in process.stderr or ()):
          raise RuntimeError('training ended before its first step')
      finally:
        process.kill()
