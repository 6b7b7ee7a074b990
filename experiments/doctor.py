"""Prints what a report of a bug needs.

    bash scripts/run.sh experiments.doctor

Versions, devices, one matmul, and variables of the environment. The last line
of standard output has it all as one JSON object; exit code 1 if jax cannot
start, or the matmul is wrong.
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

_VARIABLES = ('JAX_', 'XLA_', 'CUDA_', 'TPU_', 'LIBTPU_', 'SELFATTN_')


def _define(values) -> None:
  del values


def main(values) -> None:
  """Prints all, and fails if something is wrong."""
  del values
  facts = {
    'python': platform.python_version(),
    **provenance.versions(),
    'commit': str(provenance.commit()),
    'machine': provenance.machine(),
    **_computed(),
    'data cache': store.default_folder() or 'none',
  }
  facts |= {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
  for name, text in facts.items():
    log(f'{name}: {text}')
  app.print_result(facts)
  wrong = [name for name, text in facts.items() if text.startswith('WRONG')]
  if wrong:
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


if __name__ == '__main__':
  app.run(main, _define, __doc__)
