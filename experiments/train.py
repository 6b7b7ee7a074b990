"""Trains a text classifier, evaluates it, and saves it in a workdir.

    bash scripts/run.sh experiments.train
    bash scripts/run.sh experiments.train --config=configs/trec.py \\
        --config.data.dir=PATH --workdir=runs/trec

The same command again resumes an interrupted run, or prints the result of a
finished one. The last line of standard output is one JSON object: scores on the
test split of the checkpoint that is best on validation.
"""

from __future__ import annotations

import os

import jax

from experiments.command import app, distributed, processes
from experiments.command.signals import Signals
from experiments.settings import reference
from experiments.settings import settings as settings_lib
from experiments.training import run as run_lib
from experiments.workdir import buckets, curves


def default_workdir(config, config_path: str) -> str:
  """runs/NAME-DIGEST, with a digest of the settings."""
  name = os.path.splitext(os.path.basename(config_path))[0]
  digest = settings_lib.from_config(config).digest()
  return os.path.join('runs', f'{name}-{digest}')


def _define(values) -> None:
  app.flags.DEFINE_string(
    'workdir',
    None,
    'Folder of the run; if not given, runs/NAME-DIGEST, by config file and '
    'settings.',
    flag_values=values,
  )
  app.flags.DEFINE_string(
    'init_from',
    None,
    'Workdir of a run to take the vocabulary from, and parameters where name, '
    'shape, dtype and labels match; or of a sweep, whose trial with the same '
    'settings of the model is taken.',
    flag_values=values,
  )
  distributed.define(values)


def main(values) -> None:
  """Trains, evaluates and prints the result."""
  config = values.config
  if values.init_from is not None:
    config.train.init_from = values.init_from
    if not values.init_from.startswith(buckets.SCHEMES):
      config.train.init_from = os.path.abspath(values.init_from)
  path = values.workdir
  if path is None:
    path = default_workdir(config, values.config_path)
  signals = Signals()
  signals.install()
  settings = settings_lib.from_config(config)
  cluster = distributed.find(values, os.environ)
  with buckets.staged(path) as folder:
    result = run_lib.finished(folder, settings)
    if result is None:
      curves.check()
      if cluster is not None:
        timeouts = values.start_timeout, values.peer_timeout
        distributed.join(cluster, *timeouts, signals)
        signals.share(processes.is_preempted)
      result = run_lib.run(config, folder, signals)
  if cluster is None or jax.process_index() == 0:
    app.print_result(result)


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
