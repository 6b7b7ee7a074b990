"""Where a figure comes from: command line, commit, versions, machine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
# The names of this package, in a checkout and in an installation.
_PACKAGE_NAMES = ('experiments', 'selfattn_commands.experiments')
# The folder of `experiments` and `configs`.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
# Of control groups of version 2: microseconds in each period, or max.
_CPU_QUOTA = pathlib.Path('/sys/fs/cgroup/cpu.max')
# Flags whose values are folders of one's own.
_FOLDERS = (
  '--workdir|--config.data.dir|--config.train.init_from|--output|--data_dir'
)


def command() -> list[str]:
  """The command line as it was typed, from `experiments.NAME` on."""
  words = sys.orig_argv
  if os.path.basename((*words, '', '')[1]) == 'selfattn':
    words = ['experiments', *words[2:]]
  elif '-m' in words:
    words = words[words.index('-m') + 1 :]
  # `selfattn NAME`, and `python -m experiments NAME`.
  if (*words, '')[0] in _PACKAGE_NAMES:
    words = [f'experiments.{words[1]}', *words[2:]]
  return words


def work_for(words: list[str]) -> None:
  """Makes `command` return these words, of which this process is a part."""
  sys.orig_argv = [sys.executable, '-m', *words]


def _is_checkout() -> bool:
  return os.path.exists(os.path.join(ROOT, 'scripts', 'run.sh'))


def shell_line(words: list[str]) -> str:
  """A line for a shell in this folder that runs words of `command`."""
  if _is_checkout():
    script = os.path.join('scripts', 'run.sh')
    if os.path.realpath(os.getcwd()) != os.path.realpath(ROOT):
      script = os.path.join(ROOT, script)
    return shlex.join(['bash', script, *words])
  name = words[0].removeprefix('experiments.')
  return shlex.join(['selfattn', name, *words[1:]])


def typed_here(text: str) -> str:
  """A text with commands of a checkout, in an installation with its own."""
  if _is_checkout():
    return text
  text = text.replace('bash scripts/run.sh experiments.', 'selfattn ')
  return text.replace('bash scripts/run.sh ', '')


def without_paths(command: list[str]) -> str:
  """The command with PATH for folders, as it can be typed elsewhere.

  Folders are the values of some flags, and what looks like an absolute path.
  """
  # A zero byte is in no word. A flag and its value are one word or two.
  line = '\0'.join(command)
  line = re.sub(rf'(?<![^\0])({_FOLDERS})([=\0])[^\0]*', r'\1\2PATH', line)
  line = re.sub(r'(?<=[\0=,(\[+\'"])/(?=\w)([^\0,)\]\'"/]+/)*', 'PATH/', line)
  return shlex.join(line.split('\0'))


def commit() -> str | None:
  """Git commit of this code, with '+' for local changes; None without git."""
  # An installed package may be in a folder of another repository.
  if not _is_checkout():
    return None
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
  count = cores()
  return f'{name}, {count} core' + 's' * (count != 1)


def cores() -> int:
  """Cores that this process may use: taskset, or a container, may leave some.

  The quota of a container is rounded up.
  """
  is_known = hasattr(os, 'sched_getaffinity')
  usable = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
  with contextlib.suppress(OSError, ValueError):
    quota, period = map(int, _CPU_QUOTA.read_text().split())
    return min(usable, max(-(-quota // period), 1))
  return usable
