"""Where a figure comes from: the commit of the code, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess


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


def machine() -> str:
  """Processor, or on other systems than Linux architecture, and cores."""
  try:
    with open('/proc/cpuinfo') as file:
      lines = [line for line in file if line.startswith('model name')]
  except OSError:
    lines = []
  name = lines[0].partition(':')[2].strip() if lines else platform.machine()
  return f'{name}, {os.cpu_count()} cores'
