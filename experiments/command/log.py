"""Log lines for people, on standard error and in log files of runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator

from experiments.command.errors import Diverged, Failed, Interrupted

# The logger of the files of `keep_log`.
_KEPT = logging.getLogger('experiments.log')
_KEPT.setLevel(logging.INFO)
_KEPT.propagate = False
_WITHHELD: list[list[str]] = []
# Seconds between looks of a bar, and before the first: short work has none.
_REFRESH = 0.5
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


@functools.cache
def _display():
  """What shows bars on the terminal; None if this process has none for it."""
  if not os.isatty(2):
    return None
  if 'jax' in sys.modules:
    from experiments.command import processes

    if not processes.is_first():
      return None
  # Late: elsewhere, nobody waits for rich.
  from experiments.command import bars

  display = bars.Display()
  return display if display.is_possible else None


def hide_bars() -> None:
  """Clears bars from the terminal, until one is shown again."""
  if _display.cache_info().currsize and (display := _display()):
    display.hide()


class Reporter:
  """Shows how much of something long is done, until its `with` block ends.

  It is a bar on a terminal. Elsewhere, and in files, it is a line of the log
  every ten seconds, or nothing.

  Args:
    text: with a {}, for the count so far.
    total: the count at the end; None: nobody knows.
    count: what is done at the start.
    has_lines: whether there are lines where there is no bar.

  Attributes:
    text: may change.
    table: makes rows of text below the bar, the first one the header.
  """

  def __init__(
    self,
    text: str,
    total: int | None = None,
    count: int = 0,
    has_lines: bool = True,
  ):
    self.text = text
    self.table: Callable[[], list[list[str]]] = list
    self._total, self._count = total, count
    self._has_lines = has_lines
    self._display, self._bar = _display(), None
    self._every = 10 if self._display is None else _REFRESH
    self._next = time.monotonic() + self._every

  def __enter__(self) -> Reporter:
    return self

  def __exit__(self, *_) -> None:
    if self._display is not None and self._bar is not None:
      self._display.remove(self._bar)
      self._bar = None

  def counted(self, lists: Iterable[list]) -> Iterator[list]:
    """Yields the lists unchanged, and counts their elements, as a block."""
    with self:
      for elements in lists:
        yield elements
        self.add(len(elements))

  def add(self, count: int) -> None:
    """Counts `count` more, and shows it if the last time is long ago."""
    self._count += count
    if time.monotonic() < self._next:
      return
    if self._display is not None:
      self.show()
    elif self._has_lines:
      log(self.text.replace('{}', f'{self._count:,}'))
    self._next = time.monotonic() + self._every

  def show(self) -> None:
    """Draws the bar at once, if there can be one."""
    if self._display is None:
      return
    if self._bar is None:
      self._bar = self._display.add(self._total, self._count)
    total = '' if self._total is None else f'/{self._total:,}'
    text = self.text.replace('{}', f'{self._count:,}{total}')
    self._display.show(self._bar, text, self._count, self.table())


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
