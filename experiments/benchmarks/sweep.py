"""Trials of the default config: one sweep, against as many launches.

A sweep has learning rates and four seeds of each. Half of the launches run
before the sweeps and half after, so that drift of the machine affects both. All
runs are complete, with start-up and evaluation: minutes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log

# Launches that are timed, and seeds of each learning rate.
_LAUNCHES, _SEEDS = 2, 4


def measure(values) -> list[dict]:
  """A row for a launch and for each sweep; ratios are to a trial of a sweep.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    UserError: a number of trials is no multiple of the seeds.
    CalledProcessError: a run failed; its log is on standard error.
  """
  for trials in values.trials:
    if int(trials) % _SEEDS:
      raise UserError(f'--trials={trials} must be a multiple of {_SEEDS}')
  with tempfile.TemporaryDirectory() as folder:
    launches = [
      _launch(f'{folder}/{index}', index) for index in range(_LAUNCHES // 2)
    ]
    seconds = {
      trials: _sweep(f'{folder}/sweep-{trials}', trials, values.engine)
      for trials in map(int, values.trials)
    }
    launches += [
      _launch(f'{folder}/{index}', index)
      for index in range(_LAUNCHES // 2, _LAUNCHES)
    ]
  launch = statistics.median(launches)
  rows = [{'how': 'launch', 'trials': 1, 'seconds': round(launch, 1)}]
  return rows + [
    {
      'how': 'sweep',
      'trials': trials,
      'seconds': round(took, 1),
      'ratio': round(launch * trials / took, 2),
    }
    for trials, took in seconds.items()
  ]


def _launch(workdir: str, seed: int) -> float:
  return _run('train', f'--config.seed={seed}', f'--workdir={workdir}')


def _sweep(workdir: str, trials: int, engine: str) -> float:
  rates = np.geomspace(1e-4, 4e-3, trials // _SEEDS)
  return _run(
    'sweep',
    f'--grid=config.optimizer.learning_rate={_listed(rates)}',
    f'--grid=config.seed={_listed(range(_SEEDS))}',
    f'--engine={engine}',
    f'--workdir={workdir}',
  )


def _listed(values) -> str:
  return ','.join(f'{value:.6g}' for value in values)


def _run(command: str, *arguments: str) -> float:
  """The seconds that a command takes."""
  log(f'experiments.{command} {" ".join(arguments)}')
  start = time.perf_counter()
  done = subprocess.run(
    [sys.executable, '-m', f'experiments.{command}', *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    log(done.stderr)
    done.check_returncode()
  return time.perf_counter() - start
