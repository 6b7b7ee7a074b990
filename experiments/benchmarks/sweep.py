"""32 trials of the default config: one sweep, against 32 launches.

Eight learning rates and four seeds. Half of the launches run before the sweep
and half after, so that drift of the machine affects both. All runs are
complete, with start-up and evaluation: minutes.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time

from experiments.command.log import log

_RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1e-3, 2e-3, 3e-3, 4e-3)
_SEEDS = (0, 1, 2, 3)


def measure(values) -> list[dict]:
  """Two rows, the sweep and the launches; ratios are to the sweep.

  Args:
    values: flags of experiments.benchmark.

  Raises:
    CalledProcessError: a run failed; its log is on standard error.
  """
  trials = list(itertools.product(_RATES, _SEEDS))
  half = len(trials) // 2
  with tempfile.TemporaryDirectory() as folder:
    launches = _launch(trials[:half], folder)
    sweep = _run(
      'sweep',
      f'--grid=config.optimizer.learning_rate={_listed(_RATES)}',
      f'--grid=config.seed={_listed(_SEEDS)}',
      f'--engine={values.engine}',
      f'--workdir={folder}/sweep',
    )
    launches += _launch(trials[half:], folder)
  seconds = {f'engine {values.engine}': sweep, 'launches': launches}
  return [
    {
      'trials': len(trials),
      'how': name,
      'seconds': round(took, 1),
      'ratio': round(took / sweep, 2),
    }
    for name, took in seconds.items()
  ]


def _launch(trials, folder: str) -> float:
  return sum(
    _run(
      'train',
      f'--config.optimizer.learning_rate={rate}',
      f'--config.seed={seed}',
      f'--workdir={folder}/{rate}-{seed}',
    )
    for rate, seed in trials
  )


def _listed(values) -> str:
  return ','.join(map(str, values))


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
