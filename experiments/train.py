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

from jax.experimental import multihost_utils

from experiments.command import app, distributed, processes
from experiments.command.command_line import define
from experiments.command.signals import Signals
from experiments.settings import open_models, reference
from experiments.settings import settings as settings_lib
from experiments.training import next_commands
from experiments.training import run as run_lib
from experiments.workdir import buckets


def _define(values) -> None:
  define(
    values,
    ('workdir', None, 'Folder of the run; if not given, runs/NAME-DIGEST, by '
     'config file and settings.'),
  )  # fmt: skip
  distributed.define(values)


def main(values) -> None:
  """Trains, evaluates and prints the result."""
  config = open_models.of_flags(values)
  # Before any waiting: the user's errors come first.
  digest = settings_lib.from_config(config).digest()
  name, _ = os.path.splitext(os.path.basename(values.config_path))
  path = values.workdir
  if path is None:
    path = os.path.join('runs', f'{name}-{digest}')
  signals = Signals()
  signals.install()
  cluster = distributed.find(values, os.environ)
  with buckets.staged(path) as folder:
    if cluster is not None:
      distributed.join(values, cluster, signals)
      signals.share(multihost_utils.reached_preemption_sync_point)
    result = run_lib.run(config, folder, signals)
    if processes.is_first():
      next_commands.say(folder)
  if processes.is_first():
    app.print_result(result)


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
