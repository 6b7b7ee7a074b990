"""Checks the installation, the devices and, with --workdir, a run.

    bash scripts/run.sh experiments.doctor
    bash scripts/run.sh experiments.doctor --workdir=runs/sst2
    bash scripts/run.sh experiments.doctor --clear_data_cache

Changes nothing without --clear_data_cache. Exit code 1 if a check fails; the
last line of standard output is one JSON object.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata

from experiments.command import app
from experiments.command.errors import Failed
from experiments.command.log import log
from experiments.data import store
from experiments.training import diagnosis
from experiments.workdir import buckets

_LOCK = os.path.join(
  os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
  'requirements.txt',
)


def _define(values) -> None:
  app.flags.DEFINE_string(
    'workdir', None, 'Folder of a run to check, too.', flag_values=values
  )
  app.flags.DEFINE_bool(
    'clear_data_cache',
    False,
    'Remove the stored texts and tokens, which are read again when needed.',
    flag_values=values,
  )


def main(values) -> None:
  """Runs all checks, prints them, and fails if one does."""
  findings: list[diagnosis.Finding] = [
    ('python', platform.python_version(), False)
  ]
  for name in ('jax', 'flax', 'optax', 'orbax-checkpoint'):
    findings.append((name, metadata.version(name), False))
  findings += diagnosis.packages(_LOCK)
  findings += diagnosis.devices()
  findings += diagnosis.cache(os.environ.get('JAX_COMPILATION_CACHE_DIR'))
  folder = store.default_folder()
  if values.clear_data_cache:
    log(f'{folder}: {store.clear(folder) / 2**20:,.1f} MiB removed')
  findings += diagnosis.data_cache(folder)
  if values.workdir is not None:
    with buckets.staged(values.workdir) as path:
      findings += diagnosis.workdir(path)
  for name, text, is_wrong in findings:
    log(f'{"FAIL" if is_wrong else "ok  "} {name}: {text}')
  failed = [f'{name}: {text}' for name, text, is_wrong in findings if is_wrong]
  app.print_result({'failed': failed, 'checked': len(findings)})
  if failed:
    raise Failed(f'{len(failed)} of {len(findings)} checks')


if __name__ == '__main__':
  app.run(main, _define, __doc__)
