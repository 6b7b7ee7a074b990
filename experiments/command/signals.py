"""Preemption signals, which a run checks for between its steps."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from experiments.command.errors import Interrupted
from experiments.command.log import hide_bars

# Exit code of a second Ctrl-C.
ABORTED = 130
# Sent by schedulers before they preempt a machine, and by Ctrl-C.
_PREEMPTION = ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGUSR2', 'SIGHUP')


class Signals:
  """Records preemption signals, for code that polls.

  Args:
    then: what the code does after a signal; the log says so.

  Attributes:
    received: name of the signal, None before one.
    agree: in a multi-process run, from the number of the check to whether any
      process received a signal; the same value on all of them.
  """

  def __init__(self, then: str = 'saving after this step'):
    self.then = then
    self.received: str | None = None
    self.agree: Callable[[int], bool] | None = None
    self._checks = 0
    self._at_once = False

  def install(self) -> None:
    """Records all that are not ignored; after a second SIGINT exits at once."""
    for name in _PREEMPTION:
      if signal.getsignal(signal.Signals[name]) != signal.SIG_IGN:
        signal.signal(signal.Signals[name], self._receive)

  def _receive(self, number, frame):
    if self.received and number == signal.SIGINT:
      # Not sys.exit, which would wait for a save, or for other processes.
      _say('second SIGINT: exiting at once, without saving or removing files')
      os._exit(ABORTED)
    self.received = signal.Signals(number).name
    if self.agree is not None:
      self._tell_others()
    if self._at_once and self.agree is None:
      raise self._nothing_to_save()
    _say(f'received {self.received}: {self.then}')

  @contextlib.contextmanager
  def at_once(self):
    """A block without state to save: a signal raises Interrupted at once.

    For code that waits or reads. In code of jax, an exception that comes from
    nowhere may be lost, and a computation may still run at exit. Not in a
    multi-process run, where the other processes would wait forever.
    """
    try:
      self._at_once = True
      if self.received and self.agree is None:
        raise self._nothing_to_save()
      yield
    except Exception as error:
      # A library may raise another one in place of that of the handler.
      if not self.received or self.agree or isinstance(error, Interrupted):
        raise
      raise self._nothing_to_save() from error
    finally:
      self._at_once = False

  def _nothing_to_save(self) -> Interrupted:
    return Interrupted(f'{self.received}; nothing to save')

  def check(self) -> None:
    """Raises Interrupted, on all processes, if one received a signal."""
    self._checks += 1
    if self.agree is not None:
      if self.agree(self._checks):
        raise Interrupted(self.received or 'a signal')
    elif self.received:
      raise Interrupted(self.received)

  def share(self, agree: Callable[[int], bool]) -> None:
    """Shares signals between processes from now on, through `agree`.

    The preemption service of jax handles SIGTERM, so others are sent as it.
    """
    self.agree = agree
    if self.received:
      self._tell_others()

  def _tell_others(self) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
  # Bars erase what others have written below them.
  with contextlib.suppress(RuntimeError):
    hide_bars()
  # Streams are not reentrant, and Ctrl-C may have closed the pipe as well.
  with contextlib.suppress(OSError):
    os.write(2, f'{text}\n'.encode())
