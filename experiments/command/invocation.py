"""The command line of this process, and how to type one."""

from __future__ import annotations

import os
import shlex
import sys

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))


def command() -> list[str]:
  """The command line as it was typed, from `experiments.NAME` on."""
  words = sys.orig_argv
  # `selfattn NAME`, and `python -m experiments NAME`.
  is_script = os.path.basename((*words, '', '')[1]) == 'selfattn'
  if is_script or words[1:3] == ['-m', 'experiments']:
    name, *more = words[2 if is_script else 3 :]
    return [f'experiments.{name}', *more]
  return words[words.index('-m') + 1 :] if '-m' in words else words


def shell_line(words: list[str]) -> str:
  """A line for a shell that runs words of `command`, wherever this code is."""
  if os.path.exists(os.path.join(_ROOT, 'scripts', 'run.sh')):
    return shlex.join(['bash', 'scripts/run.sh', *words])
  name = words[0].removeprefix('experiments.')
  return shlex.join(['selfattn', name, *words[1:]])


# Flags whose values are folders of one's own.
_FOLDERS = (
  '--workdir', '--config.data.dir', '--output', '--data_dir',
)  # fmt: skip


def without_paths(command: list[str]) -> str:
  """The command with PATH for folders, as it can be typed elsewhere."""
  words, is_folder = [], False
  for word in command:
    flag, separator, _ = word.partition('=')
    if is_folder:
      words.append('PATH')
    elif flag in _FOLDERS and separator:
      words.append(f'{flag}=PATH')
    else:
      words.append(word)
    is_folder = word in _FOLDERS
  return shlex.join(words)
