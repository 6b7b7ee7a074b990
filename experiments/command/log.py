"""Log lines for people, on standard error and in log files of runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator

from experiments.command.errors import Diverged, Failed, Interrupted

# The logger of the files of `keep_log`.
_KEPT = logging.getLogger('experiments.log')
_KEPT.setLevel(logging.INFO)
_KEPT.propagate = False
_WITHHELD: list[list[str]] = []
# A line that cannot be written to a file is an error when the file is closed.
logging.raiseExceptions = False


class Unbreakable:
  """Standard error that ignores write errors.

  After `2>&1 | tee` and Ctrl-C the pipe is closed before the state is saved,
  which must not end the run.
  """

  def __init__(self, stream):
    # None if standard error was closed at startup.
    self._stream = stream or open(os.devnull, 'w')  # noqa: SIM115

  def write(self, text: str) -> int:
    """Number of characters, as if all were written."""
    self._try(self._stream.write, text)
    return len(text)

  def flush(self) -> None:
    """Flushes, if it can."""
    self._try(self._stream.flush)

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def _try(self, action, *arguments) -> None:
    try:
      action(*arguments)
    except OSError:
      # So that the flush at exit cannot fail either.
      os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def withheld() -> Iterator[list[str]]:
  """A context in which `warn` adds to a list, which it says after an error."""
  lines: list[str] = []
  _WITHHELD.append(lines)
  try:
    yield lines
  except Exception:
    _WITHHELD.remove(lines)
    for line in lines:
      warn(line)
    raise
  else:
    _WITHHELD.remove(lines)


def warn(text: str) -> None:
  """Says what is probably wrong, now or where it is no more `withheld`."""
  if _WITHHELD:
    _WITHHELD[-1].append(text)
  else:
    log(f'WARNING: {text}')


def log(text: str) -> None:
  """Prints a line on standard error."""
  print(text, file=sys.stderr, flush=True)
  _KEPT.info(text)


class Reporter:
  """Logs how much of something long is done, every ten seconds.

  Args:
    text: with one field, for the count so far.
  """

  def __init__(self, text: str):
    self._text, self._count = text, 0
    self._next = time.monotonic() + 10

  def counted(self, lists: Iterable[list]) -> Iterator[list]:
    """Yields the lists unchanged, and counts their elements."""
    for elements in lists:
      self.add(len(elements))
      yield elements

  def add(self, count: int) -> None:
    """Counts `count` more."""
    self._count += count
    if time.monotonic() >= self._next:
      log(self._text.format(f'{self._count:,}'))
      self._next = time.monotonic() + 10


@contextlib.contextmanager
def keep_log(path: str):
  """Appends all lines of `log`, and an exception of the block, to a file."""
  handler = logging.FileHandler(path, encoding='utf-8')
  handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  _KEPT.addHandler(handler)
  try:
    yield
  except (Interrupted, Diverged, Failed) as error:
    _KEPT.info(f'{type(error).__name__}: {error}')
    raise
  except BaseException:
    _KEPT.info(traceback.format_exc())
    raise
  finally:
    _KEPT.removeHandler(handler)
    handler.close()
