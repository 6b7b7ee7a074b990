"""Time to plan a sweep of a thousand trials, and to find that it has ended.

Of the default config with other seeds. The sweep that has ended is one trial
that was trained, copied to the folders of the others. With --against, also by
another checkout. Ratios are to a plan of one trial.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time

from experiments.benchmarks import checkout, run, summary
from experiments.command import app

_ROOT = os.path.dirname(os.path.dirname(app.DEFAULT_CONFIG))
_TRIALS = 1_000


def measure(values) -> list[dict]:
  """One row per command and checkout; ratios are to a plan of one trial.

  Args:
    values: flags of experiments.benchmark.
  """
  with tempfile.TemporaryDirectory() as folder:
    roots = {'': _ROOT}
    if values.against is not None:
      other = os.path.abspath(values.against)
      roots[f', {checkout(other)}'] = other
    # (checkout, number of trials, further flags).
    kinds = {'plan of one': (_ROOT, 1, ('--dry_run',))}
    for name, root in roots.items():
      kinds[f'plan of {_TRIALS}{name}'] = (root, _TRIALS, ('--dry_run',))
      kinds[f'{_TRIALS} that have ended{name}'] = (root, _TRIALS, ())
    for root in roots.values():
      _finish(root, _workdir(folder, root))
    seconds = {name: [] for name in kinds}
    for _ in range(values.repetitions):
      for name, (root, count, flags) in kinds.items():
        start = time.perf_counter()
        _sweep(root, _workdir(folder, root), count, *flags)
        seconds[name].append(time.perf_counter() - start)
  base = seconds['plan of one']
  return [{'sweep': name} | summary(seconds[name], base) for name in kinds]


def _workdir(folder: str, root: str) -> str:
  return os.path.join(folder, root.replace(os.sep, '-'))


def _finish(root: str, workdir: str) -> None:
  """Trains one trial, and copies it to all others."""
  _sweep(root, workdir, _TRIALS, '--trial_ids=0', '--engine=serial')
  trials = os.path.join(workdir, 'trials')
  (done,) = (entry.path for entry in os.scandir(trials) if entry.is_dir())
  plan = _sweep(root, workdir, _TRIALS, '--dry_run')
  for line in plan.splitlines():
    if line.startswith('trial '):
      _, index, name, *_ = line.split()
      path = os.path.join(trials, name)
      if not os.path.exists(path):
        shutil.copytree(done, path)
      config = os.path.join(path, 'config.json')
      with open(config) as file:
        content = json.load(file) | {'seed': int(index)}
      with open(config, 'w') as file:
        json.dump(content, file)


def _sweep(root: str, workdir: str, count: int, *flags: str) -> str:
  """What the command has logged."""
  seeds = ','.join(map(str, range(count)))
  flags = ('--config.train.steps=20', f'--workdir={workdir}', *flags)
  return run(root, 'sweep', f'--grid=config.seed={seeds}', *flags).stderr
