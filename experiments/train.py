"""Trains a text classifier, evaluates it, and keeps what it learnt.

    bash scripts/run.sh experiments.train
    bash scripts/run.sh experiments.train --config=configs/trec.py \
        --config.data.dir=PATH --workdir=runs/trec

The same command again resumes where it stopped, or prints the result at once
if it is done. The last line of standard output is one JSON object: how the
best checkpoint, by the validation split, does on the test split.
"""

from __future__ import annotations

import os

import jax

from experiments.command import app, distributed, processes
from experiments.command.signals import Signals
from experiments.settings import extensions
from experiments.settings import settings as settings_lib
from experiments.training import run as run_lib
from experiments.workdir import buckets


def default_workdir(config, config_path: str) -> str:
  """runs/NAME-DIGEST: the same for the same settings, else another."""
  name = os.path.splitext(os.path.basename(config_path))[0]
  digest = settings_lib.from_config(config).digest()
  return os.path.join('runs', f'{name}-{digest}')


def _define(values) -> None:
  app.flags.DEFINE_string(
    'workdir',
    None,
    'Folder of the run; runs/NAME-DIGEST if not given.',
    flag_values=values,
  )
  app.flags.DEFINE_string(
    'init_from',
    None,
    'Workdir of a run whose parameters to begin with, as far as they fit.',
    flag_values=values,
  )
  distributed.define(values)


def main(values) -> None:
  """Trains as the flags say."""
  config = values.config
  extensions.add(config, values.config_path)
  if values.init_from is not None:
    config.train.init_from = values.init_from
    if not values.init_from.startswith(buckets.SCHEMES):
      config.train.init_from = os.path.abspath(values.init_from)
  path = values.workdir or default_workdir(config, values.config_path)
  signals = Signals()
  signals.install()
  settings = settings_lib.from_config(config)
  cluster = distributed.find(values, os.environ)
  with buckets.staged(path) as folder:
    result = run_lib.finished(folder, settings)
    if result is None:
      if cluster is not None:
        distributed.join(cluster, values.start_timeout, values.peer_timeout)
        signals.share(processes.is_asked_to_end)
      result = run_lib.run(config, folder, signals)
  if cluster is None or jax.process_index() == 0:
    app.print_result(result)


if __name__ == '__main__':
  app.run(main, _define, __doc__, takes_config=True)
