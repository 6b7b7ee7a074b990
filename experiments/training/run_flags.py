"""Flags of the commands that read trained runs, and the folders they name."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from experiments.command.errors import UserError
from experiments.workdir import buckets

# How --workdir names several runs.
SEVERAL = 'a,b or SWEEP/trials/*'
# For command_line.define.
WORKDIR = (
  'workdir',
  None,
  f'Folder of a trained run, or folders of an ensemble of runs, as {SEVERAL}.',
)
CHECKPOINT = 'checkpoint', 'best', 'Checkpoint to load: best, last, or a step.'
DATA_DIR = (
  'data_dir', None, 'Folder of the data, if it has moved since training.',
)  # fmt: skip
CALIBRATED = (
  'calibrated',
  True,
  'Use the temperature of probabilities, and the thresholds of several labels, '
  'that were fitted on validation after training.',
)


@contextlib.contextmanager
def opened(workdir: str | list[str]) -> Iterator[list[str]]:
  """The folders of the runs of --workdir, or local copies of a bucket's.

  Args:
    workdir: a path, several with commas between them, or patterns of folders,
      as of glob; a list is of paths.

  Raises:
    UserError: as buckets.staged, or there is none.
  """
  names = _names(workdir)
  if not names:
    raise UserError('no workdir is given; give at least one')
  with contextlib.ExitStack() as on_exit:
    staged = (buckets.staged(name, name='workdir') for name in names)
    yield [on_exit.enter_context(context) for context in staged]


def _names(workdir: str | list[str]) -> list[str]:
  if not isinstance(workdir, str):
    return list(map(os.path.expanduser, workdir))
  # The name of an existing folder may have a comma or brackets in it.
  parts = [workdir] if os.path.exists(workdir) else workdir.split(',')
  names = []
  for name in map(os.path.expanduser, parts):
    is_pattern = glob.has_magic(name) and not os.path.exists(name)
    names += (is_pattern and sorted(glob.glob(name))) or [name]
  # A run that several patterns match counts once.
  return list(dict.fromkeys(names))
