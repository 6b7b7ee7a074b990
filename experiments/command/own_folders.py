"""Folders of --output that one command owns, whose files it may replace.

A file in the folder, the mark, names the command and what it has written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator

from experiments.command import app
from experiments.command.errors import UserError


def _mark(path: str, command: str) -> str:
  return os.path.join(path, f'.selfattn-{command}')


def check(path: str, command: str) -> None:
  """UserError if a folder holds files, and none that a command has noted."""
  if not os.path.isdir(path) or _noted(path, command):
    return
  own = os.path.basename(_mark(path, command))
  # What is unfinished has its name, too.
  if any(not name.startswith(own) for name in os.listdir(path)):
    raise UserError(
      f'--output={path} holds files that are not of experiments.{command}; '
      'give a new or an empty folder'
    )


def mark(path: str, command: str, files: Iterable[str]) -> None:
  """Notes the files that a command has written into a folder of its own."""
  noted = _mark(path, command)
  # A full disk leaves the one before.
  with open(f'{noted}.tmp', 'w') as file:
    file.write('\n'.join(files))
  os.replace(f'{noted}.tmp', noted)


@contextlib.contextmanager
def replaced(path: str, command: str) -> Iterator[str]:
  """A context with a folder for the files of a command, which then move.

  They replace those that the command has written into the folder `path`, which
  `check` has passed. After an exception nothing is changed.
  """
  is_new = not os.path.exists(path)
  app.make_folder(path)
  made = _unfinished(_mark(path, command))
  # Of a command that was killed.
  shutil.rmtree(made, ignore_errors=True)
  os.mkdir(made)
  try:
    yield made
    _move(made, path, command)
  finally:
    shutil.rmtree(made)
    if is_new and not os.listdir(path):
      os.rmdir(path)


def _unfinished(mark: str) -> str:
  """The folder with files that are not complete."""
  return f'{mark}.new'


def _move(made: str, path: str, command: str) -> None:
  new = [
    os.path.relpath(os.path.join(folder, name), made)
    for folder, _, names in os.walk(made)
    for name in names
  ]
  old = _noted(path, command)
  # After a kill in between, the next command removes the rest.
  mark(path, command, {*old, *new})
  for name in old:
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(path, name))
  for name in new:
    target = os.path.join(path, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(os.path.join(made, name), target)
  mark(path, command, new)


def _noted(path: str, command: str) -> list[str]:
  """The files that a command has written into a folder, as it noted them."""
  try:
    with open(_mark(path, command)) as file:
      names = map(os.path.normpath, file.read().splitlines())
      # Nothing outside of the folder, whoever has written the mark.
      return [n for n in names if not n.startswith(('..', os.sep, '.'))]
  except FileNotFoundError:
    return []
