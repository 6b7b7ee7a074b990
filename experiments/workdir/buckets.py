"""Workdirs in a bucket, --workdir=gs://BUCKET/FOLDER.

Checkpoints go straight there. The small files beside them are kept in a folder
on this machine, and copied whenever a checkpoint begins or a status changes, so
that what is in the bucket is never behind a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from etils import epath

from experiments.command.errors import UserError, writing

SCHEMES = ('gs://',)
# What the folder on this machine has no copy of, and what is of it alone.
_STAY, _OWN = ('checkpoints', 'torn'), ('lock',)
# Beside that folder, the address that it stands for.
_ORIGIN = '.selfattn-origin'


@contextlib.contextmanager
def staged(path: str) -> Iterator[str]:
  """The folder on this machine that stands for `path`, or `path` itself.

  Raises:
    UserError: the extra gcs is not installed.
  """
  if not path.startswith(SCHEMES):
    yield path
    return
  with tempfile.TemporaryDirectory(prefix='selfattn-') as place:
    folder = os.path.join(place, 'run')
    try:
      _fetch(path, folder)
    except ImportError as error:
      raise UserError(
        f'--workdir={path} needs the extra gcs: bash scripts/run.sh '
        'pip install gcsfs google-cloud-storage'
      ) from error
    name = os.path.join(place, _ORIGIN)
    with writing(name), open(name, 'w') as file:
      file.write(path)
    yield folder


def origin(folder: str) -> str:
  """The address that a folder stands for, or the folder itself."""
  path = os.path.join(os.path.dirname(folder), _ORIGIN)
  if not os.path.exists(path):
    return folder
  with open(path) as file:
    return file.read()


def push(folder: str, only: str | None = None) -> None:
  """Copies the files of a folder to the address that it stands for.

  Args:
    only: one file; None: all.
  """
  address = origin(folder)
  if address == folder:
    return
  here, there = pathlib.Path(folder), epath.Path(address)
  for file in here.rglob('*') if only is None else [here / only]:
    if file.is_file() and file.name not in _OWN:
      target = there / str(file.relative_to(here))
      with writing(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())


def _fetch(address: str, folder: str) -> None:
  import fsspec

  # Another process may have written since this one looked.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  there, here = epath.Path(address), epath.Path(folder)
  waiting = [there] if there.exists() else []
  while waiting:
    for path in waiting.pop().iterdir():
      name = str(path.relative_to(there))
      if name in _STAY:
        continue
      if path.is_dir():
        waiting.append(path)
      else:
        content = path.read_bytes()
        with writing(str(here / name)):
          (here / name).parent.mkdir(parents=True, exist_ok=True)
          (here / name).write_bytes(content)
