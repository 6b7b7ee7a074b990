"""Workdirs in a bucket, --workdir=gs://BUCKET/FOLDER.

Checkpoints are written directly to the bucket. The small files beside them are
staged in a local folder, and copied whenever a checkpoint begins or the status
changes, so that the files in the bucket are never behind a checkpoint.
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
# Folders that stay in the bucket ('torn': `corrupt` of older runs), and files
# that stay local.
_REMOTE, _LOCAL = ('checkpoints', 'corrupt', 'torn'), ('lock',)
# File beside the local folder that holds the address of the bucket.
_ORIGIN = '.selfattn-origin'


@contextlib.contextmanager
def staged(path: str) -> Iterator[str]:
  """A local copy of the workdir `path` in a bucket, or a local `path` itself.

  Raises:
    UserError: the extra gcs is not installed.
  """
  if not path.startswith(SCHEMES):
    yield path
    return
  with tempfile.TemporaryDirectory(prefix='selfattn-') as parent:
    folder = os.path.join(parent, 'run')
    try:
      _fetch(path, folder)
    except ImportError as error:
      raise UserError(
        f'--workdir={path} needs the extra gcs: bash scripts/run.sh '
        'pip install gcsfs google-cloud-storage'
      ) from error
    name = os.path.join(parent, _ORIGIN)
    with writing(name), open(name, 'w') as file:
      file.write(path)
    yield folder


def origin(folder: str) -> str:
  """The bucket address of a staged folder; the path of any other folder."""
  path = os.path.join(os.path.dirname(folder), _ORIGIN)
  if not os.path.exists(path):
    return folder
  with open(path) as file:
    return file.read()


def push(folder: str, only: str | None = None) -> None:
  """Copies the files of a staged folder to its bucket.

  Args:
    only: name of a single file; None: all files.
  """
  address = origin(folder)
  if address == folder:
    return
  here, there = pathlib.Path(folder), epath.Path(address)
  for file in here.rglob('*') if only is None else [here / only]:
    name = file.relative_to(here)
    # Of Weights & Biases, whose files change meanwhile, the id of the run.
    is_local = name.parts[0] == 'wandb' and name.name != 'id'
    if file.is_file() and file.name not in _LOCAL and not is_local:
      target = there / str(name)
      with writing(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())


def _fetch(address: str, folder: str) -> None:
  import fsspec

  # Another process may have written since the last listing.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  there, here = epath.Path(address), epath.Path(folder)
  folders = [there] if there.exists() else []
  while folders:
    for path in folders.pop().iterdir():
      name = str(path.relative_to(there))
      if name in _REMOTE:
        continue
      if path.is_dir():
        folders.append(path)
      else:
        content = path.read_bytes()
        with writing(str(here / name)):
          (here / name).parent.mkdir(parents=True, exist_ok=True)
          (here / name).write_bytes(content)
