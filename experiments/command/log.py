"""Lines for people, on standard error and in the files of a run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback

from tqdm import tqdm

from experiments.command.errors import Diverged, Failed, Interrupted, writing

# Lines for the files of `keep_log`; nothing of it goes anywhere else.
_KEPT = logging.getLogger('experiments.log')
_KEPT.setLevel(logging.INFO)
_KEPT.propagate = False


class Unbreakable:
  """Standard error, whose reader may leave without ending the work.

  After `2>&1 | tee` and Ctrl-C the pipe is closed before the state is saved. A
  file that has no more room does not end it, either.
  """

  def __init__(self, stream):
    # None, where it was closed from the start.
    self._stream = stream or open(os.devnull, 'w')  # noqa: SIM115

  def write(self, text: str) -> int:
    self._try(self._stream.write, text)
    return len(text)

  def flush(self) -> None:
    self._try(self._stream.flush)

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def _try(self, action, *arguments) -> None:
    try:
      action(*arguments)
    except OSError:
      # Nor may the interpreter find what is left in the buffer when it ends.
      os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def log(text: str) -> None:
  """A line on standard error, above a progress bar if there is one."""
  tqdm.write(text, file=sys.stderr)
  sys.stderr.flush()
  _KEPT.info(text)


class _LogFile(logging.FileHandler):
  """A file without which the work goes on, once it is there."""

  def handleError(self, record) -> None:
    del record

  def close(self) -> None:
    with contextlib.suppress(OSError):
      super().close()


@contextlib.contextmanager
def keep_log(path: str):
  """Adds all lines of `log`, and what ends the block, to a file.

  Raises:
    Failed: it cannot be made.
  """
  with writing(path):
    handler = _LogFile(path)
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
