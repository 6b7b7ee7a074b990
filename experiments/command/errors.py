"""How work ends before it is done, and the words for it."""

from __future__ import annotations

import contextlib
import difflib
import errno
from typing import Any

# What a file system answers that has no room left.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
  """The user's input is wrong: one line, exit code 2, no traceback."""


class Diverged(Exception):
  """A loss or a gradient is not finite."""


class Failed(Exception):
  """Some of the work failed, and has said why; the rest is done."""


class Interrupted(Exception):
  """A signal asked for an end, and the state is saved."""


@contextlib.contextmanager
def writing(path: str):
  """A block that writes a file or a folder.

  Raises:
    Failed: the disk is full, among others.
  """
  try:
    yield
  except OSError as error:
    raise unwritten(path, error) from error


def unwritten(path: str, error: OSError) -> Failed:
  """What to raise where a file or a folder could not be written."""
  return Failed(
    f'{path} could not be written: {error.strerror or error}; make room or '
    'repair it, and run the same command again'
  )


def one_of(name: Any, allowed, key: str) -> Any:
  """`name` if it is allowed; else UserError with the nearest right one.

  Args:
    key: of the config, or a flag with its dashes.
  """
  if name in allowed:
    return name
  key = key if key.startswith('--') else f'config.{key}'
  raise UserError(
    f'{key} = {name!r} is not one of '
    f'{", ".join(map(str, sorted(allowed)))}{nearest(str(name), allowed)}'
  )


def nearest(name: str, allowed) -> str:
  """'; did you mean ...?', or nothing when nothing is near."""
  near = difflib.get_close_matches(name, list(map(str, allowed)), n=1)
  return f'; did you mean {near[0]}?' if near else ''
