"""How many devices jax makes of the cores of this machine.

Threads inside of an operation gain little where operations are small, and a
second device with half of the rows gains more. Fewer tokens than `_TOKENS` of a
step do not pay for it: each device has a copy of the parameters to update.
"""

from __future__ import annotations

import os

import jax
import numpy as np

from experiments.command import provenance
from experiments.command.log import log
from experiments.data import loading
from experiments.settings.settings import Settings
from experiments.workdir import workdir as workdir_lib

# Tokens of a step on each device from which on a second one never made a step
# slower, of classifiers, a language model and MiniLM on two cores.
_TOKENS = 2048


def set_up(settings: Settings, loaded: loading.Data, path: str) -> None:
  """Sets the number of devices of a CPU for a run, unless jax has made them.

  A run keeps the number that it began with, since sums over others are rounded
  otherwise. What JAX_NUM_CPU_DEVICES or XLA_FLAGS say stays, and so does the
  number of each of several processes.

  Args:
    path: workdir of the run.
  """
  if _is_said() or jax.distributed.is_initialized():
    return
  cores = provenance.cores()
  texts = settings.train.batch_size * max(settings.data.num_apart, 1)
  tokens = texts * float(np.mean(loaded.bucket_lengths))
  began = _began_with(path)
  if began > cores:
    log(f'{began} devices share {cores} cores: the run began with so many')
  make(began or paying(settings, tokens, cores))


def _began_with(path: str) -> int:
  """Devices that a run in this workdir first had on a CPU; 0: it had none."""
  of_attempts = (run['devices'] for run in workdir_lib.read_attempts(path))
  return next((len(kinds) for kinds in of_attempts if 'cpu' in kinds), 0)


def make(count: int) -> None:
  """Sets the number of devices of a CPU, unless it is said or they are made."""
  if _is_said():
    return
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    made = len(jax.local_devices(backend='cpu'))
    if jax.default_backend() == 'cpu' and made != count:
      log(
        f'WARNING: devices of the CPU: {made}, not {count}; something used jax '
        'before the run could choose. JAX_NUM_CPU_DEVICES says the number'
      )


def _is_said() -> bool:
  """Whether the environment says the number."""
  in_flags = 'host_platform_device_count' in os.environ.get('XLA_FLAGS', '')
  return in_flags or jax.config.values['jax_num_cpu_devices'] > 0


def paying(settings: Settings, tokens: float, cores: int) -> int:
  """The largest number of devices that pay, a divisor of the batch.

  Args:
    tokens: of a batch, padding included.
    cores: of the machine.
  """
  rows = settings.train.batch_size
  most = max(min(cores, int(tokens) // _TOKENS), 1)
  return max(n for n in range(1, most + 1) if rows % n == 0)
