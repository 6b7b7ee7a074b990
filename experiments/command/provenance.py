"""Where a figure comes from: the commit of the code, versions, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def commit() -> str | None:
  """Git commit of this code, with '+' for local changes; None without git."""
  command = ['git', 'describe', '--always', '--dirty=+', '--abbrev=40']
  try:
    done = subprocess.run(
      [*command, '--exclude=*'],
      cwd=os.path.dirname(__file__),
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def versions() -> dict[str, str]:
  """Versions of the packages that decide numbers, by name."""
  return {name: metadata.version(name) for name in _PACKAGES}


def machine() -> str:
  """Processor, or on other systems than Linux architecture, and cores."""
  try:
    with open('/proc/cpuinfo') as file:
      lines = [line for line in file if line.startswith('model name')]
  except OSError:
    lines = []
  name = lines[0].partition(':')[2].strip() if lines else platform.machine()
  # Of those that the machine has, taskset may leave some.
  is_known = hasattr(os, 'sched_getaffinity')
  count = len(os.sched_getaffinity(0)) if is_known else os.cpu_count()
  return f'{name}, {count} core' + 's' * (count != 1)
