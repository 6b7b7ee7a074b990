"""Prints what a report of a bug needs, and whether a run can be read.

    bash scripts/run.sh experiments.doctor
    bash scripts/run.sh experiments.doctor --workdir=runs/sst2

Versions, devices, one matmul, variables of the environment, the state of a run
and its checkpoints. Changes nothing. The last line of standard output has it
all as one JSON object; exit code 1 if the matmul or a checkpoint is wrong.
"""

from __future__ import annotations

import os
import platform

import jax
import numpy as np

from experiments.command import app, provenance
from experiments.command.errors import Failed, one_line
from experiments.command.log import log
from experiments.data import store
from experiments.settings import stored
from experiments.training import evaluation
from experiments.workdir import buckets, checkpoints
from experiments.workdir import workdir as workdir_lib

_VARIABLES = ('JAX_', 'XLA_', 'CUDA_', 'TPU_', 'LIBTPU_', 'SELFATTN_')


def _define(values) -> None:
  app.flags.DEFINE_string(
    'workdir', None, 'Folder of a run to check, too.', flag_values=values
  )


def main(values) -> None:
  """Prints all, and fails if something is wrong."""
  facts = {
    'python': platform.python_version(),
    **provenance.versions(),
    'commit': str(provenance.commit()),
    'machine': provenance.machine(),
    **_computed(),
    'data cache': store.default_folder(),
  }
  facts |= {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
  if values.workdir is not None and not _wrong(facts):
    with buckets.staged(values.workdir) as path:
      facts |= _run(path)
  for name, text in facts.items():
    log(f'{name}: {text}')
  app.print_result(facts)
  if wrong := _wrong(facts):
    raise Failed(f'wrong: {", ".join(wrong)}')


def _computed() -> dict[str, str]:
  """The devices, and whether one of them multiplies."""
  x = np.arange(12, dtype=np.float32).reshape(3, 4)
  try:
    devices = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    is_right = np.allclose(jax.jit(lambda x: x @ x.T)(x), x @ x.T, rtol=1e-2)
  # Each platform fails to start in its own way.
  except Exception as error:
    return {'devices': f'WRONG: jax cannot start: {one_line(error)}'}
  return {'devices': devices, 'matmul': 'right' if is_right else 'WRONG'}


def _wrong(facts: dict[str, str]) -> list[str]:
  return [name for name, text in facts.items() if text.startswith('WRONG')]


def _run(path: str) -> dict[str, str]:
  """The status of a run, and whether each checkpoint can be read."""
  settings = stored.read_settings(path)
  template = evaluation.program_of(path, settings).template
  facts = {'status': str(workdir_lib.read_status(path))}
  with checkpoints.reading(path, settings.checkpoint, settings.best) as saved:
    for step in saved.steps():
      try:
        saved.restore(step, template)
        facts[f'checkpoint {step}'] = 'intact'
      # Any error of a corrupt checkpoint is a fact, too.
      except Exception as error:
        facts[f'checkpoint {step}'] = f'WRONG: {one_line(error)}'
  return facts


if __name__ == '__main__':
  app.run(main, _define, __doc__)
