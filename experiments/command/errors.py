"""Exceptions that end a command, and helpers for their messages."""

from __future__ import annotations

import contextlib
import difflib
import errno
import traceback
from collections.abc import Iterator
from typing import Any


class UserError(Exception):
  """The user's input is wrong: one line, exit code 2, no traceback."""


class Diverged(Exception):
  """The loss or a gradient is not finite."""


class Failed(Exception):
  """Part of the work failed, and the reason is logged; the rest is done."""


class Interrupted(Exception):
  """The run was preempted by a signal, after its state was saved."""


# Error numbers of a path that cannot be made, whatever room the disk has.
_OF_PATHS = (
  errno.EACCES, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR,
  errno.EPERM, errno.EROFS,
)  # fmt: skip


@contextlib.contextmanager
def making(name: str):
  """A context in which a path of a flag or a key is made, or a UserError."""
  try:
    yield
  except OSError as error:
    if error.errno not in _OF_PATHS:
      raise
    is_file = error.errno == errno.EEXIST
    reason = 'not a folder' if is_file else error.strerror
    raise UserError(f'{name}: {reason}: {error.filename}') from error


def one_line(error: Exception) -> str:
  """Type and message of an exception, at most 200 characters."""
  words = f'{type(error).__name__}: {error}'
  return ' '.join(words.split())[:200]


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
  """A context in which a place stands before messages of UserErrors."""
  try:
    yield
  except UserError as error:
    raise UserError(f'{place}: {error}') from error.__cause__


@contextlib.contextmanager
def in_file(path: str, name: str) -> Iterator[None]:
  """A context in which errors of a user's file are UserErrors with its line.

  The name is that of what is executed, for the message.
  """
  try:
    yield
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
      lines = [error.lineno]
    where = f' line {lines[-1]}' if lines else ''
    reason = f'{type(error).__name__}: {error}' if str(error) else repr(error)
    raise UserError(f'{name}{where}: {reason}') from error


def one_of(name: Any, allowed, key: str) -> None:
  """UserError, with the closest allowed name, unless this one is allowed.

  The key is of a config, or a flag with its dashes.
  """
  if name in allowed:
    return
  key = key if key.startswith('--') else f'config.{key}'
  names = ', '.join(str(entry) or "''" for entry in sorted(allowed))
  raise UserError(
    f'{key} = {name!r} is not one of {names}{nearest(str(name), allowed)}'
  )


def nearest(name: str, allowed) -> str:
  """'; did you mean ...?', or '' without a close match.

  A beginning is one, and so is what follows a dot, as in train.steps.
  """
  names = [*map(str, allowed)]
  longer = [
    other
    for other in names
    if name and (other.startswith(name) or other.endswith(f'.{name}'))
  ]
  near = longer or difflib.get_close_matches(name, names, n=1)
  return f'; did you mean {near[0]}?' if near else ''


def require(holds: bool, option: str, value: Any, allowed: str) -> None:
  """ValueError that names an option of an entry, unless its value is allowed.

  That of selfattn, for what is imported without jax.
  """
  if not holds:
    raise ValueError(f'{option} = {value!r} must be {allowed}')
