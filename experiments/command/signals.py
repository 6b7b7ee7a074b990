"""Signals that ask a run to end, and the looks for them between its steps."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from experiments.command.errors import Interrupted

# Exit code of a second Ctrl-C.
ABORTED = 130
# What schedulers send before they take a machine away, and Ctrl-C.
_ASKING = ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGUSR2', 'SIGHUP')


class Signals:
  """Remembers that the process was asked to end, for work that polls.

  Attributes:
    received: name of the signal, None before one.
    agree: of several processes, from the number of the look to whether one of
      them was asked; the same answer for all.
  """

  def __init__(self):
    self.received: str | None = None
    self.agree: Callable[[int], bool] | None = None
    self._looks = 0
    self._at_once = False

  def install(self) -> None:
    """From now on signals are remembered; a second SIGINT ends at once.

    One that is ignored, as SIGHUP is under nohup, stays so.
    """
    for name in _ASKING:
      if signal.getsignal(signal.Signals[name]) != signal.SIG_IGN:
        signal.signal(signal.Signals[name], self._receive)

  def _receive(self, number, frame):
    del frame
    if self.received and number == signal.SIGINT:
      # Not sys.exit, which would wait for a save, or for other processes.
      _say('second SIGINT: ended at once')
      os._exit(ABORTED)
    self.received = signal.Signals(number).name
    if self.agree is not None:
      self._tell_others()
    if self._at_once and self.agree is None:
      raise Interrupted(f'{self.received}; there was nothing to save')
    _say(f'received {self.received}: saving after this step')

  @contextlib.contextmanager
  def at_once(self):
    """A block that a signal ends where it is: it has nothing to save.

    Of several processes none ends so, since the others would wait for it.
    """
    self._at_once = True
    try:
      yield
    finally:
      self._at_once = False

  def check(self) -> None:
    """Raises Interrupted if the run was asked to end; on all processes."""
    self._looks += 1
    if self.agree is not None:
      if self.agree(self._looks):
        raise Interrupted(self.received or 'a signal')
    elif self.received:
      raise Interrupted(self.received)

  def share(self, agree: Callable[[int], bool]) -> None:
    """From now on one process speaks for all; see `agree`.

    The library that agrees has taken SIGTERM over, and is told by it.
    """
    self.agree = agree
    if self.received:
      self._tell_others()

  def _tell_others(self) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
  # Not through a stream, which the signal may have found half way; and whoever
  # reads it may have gone with the same Ctrl-C.
  with contextlib.suppress(OSError):
    os.write(2, f'{text}\n'.encode())
