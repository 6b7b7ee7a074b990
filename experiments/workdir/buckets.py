"""Workdirs in a bucket, --workdir=gs://BUCKET/FOLDER, of a run or of a sweep.

Orbax writes checkpoints to the bucket. The small files beside them are in a
local folder, which is copied before a checkpoint is complete and when the
status changes, so that the files in the bucket are never behind it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import tempfile
import threading
from collections.abc import Collection, Iterator

from experiments.command.errors import Failed, UserError, making

SCHEMES = ('gs://',)
# Orbax takes [ for a pattern and a backslash for a slash: checkpoints land
# elsewhere. The rest are patterns or ends of addresses to fsspec.
_REFUSED = {False: '[\\', True: '[\\*?#\r\n'}
# What Orbax takes for a part of an address in a local path.
_OF_ADDRESSES = re.compile(r'gs:/|^/(?:gs|s3|az|hf)/')
# Folders that stay in the bucket, and files that stay local.
_REMOTE, _LOCAL = {'checkpoints', 'corrupt'}, {'lock'}
# A staged folder, and the file beside it that holds the address of the bucket.
_STAGED, _ORIGIN = 'run', '.selfattn-origin'
# Size and time of the staged files that are in the bucket, by path.
_uploaded: dict[str, tuple[int, int]] = {}
# Held while files are copied, by a thread of Orbax or by the run.
copying = threading.RLock()


@contextlib.contextmanager
def staged(
  path: str,
  trials: Collection[str] | None = None,
  name: str = '--workdir',
) -> Iterator[str]:
  """A local copy of a workdir in a bucket, or a local path itself.

  A UserError says that no such place can be a workdir, or that the extra gcs is
  missing. Of a sweep, only the trials of these names are copied, if any are
  given; the name is that of the flag or the key that gives the path.
  """
  if not path:
    raise UserError(f'{name} is empty; give a folder')
  if not path.startswith(SCHEMES):
    if re.match(r'\w+://', path):
      raise UserError(
        f'{name}={path}: a workdir is a folder, or an address of '
        f'{", ".join(SCHEMES)}'
      )
    with making(name), contextlib.suppress(FileNotFoundError):
      os.stat(path)
    _check_letters(os.path.abspath(path), name)
    yield path
    return
  _check_letters(path, name)
  with tempfile.TemporaryDirectory(prefix='selfattn-') as parent:
    with open(os.path.join(parent, _ORIGIN), 'w') as file:
      file.write(path)
    folder = os.path.join(parent, _STAGED)
    try:
      download(folder, trials)
    except ImportError as error:
      raise UserError(
        f'{name}={path} needs the extra gcs: bash scripts/run.sh '
        'pip install gcsfs google-cloud-storage'
      ) from error
    yield folder


def _check_letters(path: str, name: str) -> None:
  """UserError for a path, or an address, that cannot hold checkpoints."""
  is_address = path.startswith(SCHEMES)
  refused = _REFUSED[is_address]
  # Bytes that are no UTF-8 are halves of surrogate pairs.
  found = [c for c in path if c in refused or '\ud800' <= c < '\ue000']
  if not is_address:
    found += _OF_ADDRESSES.findall(f'{path}/')
  if found:
    raise UserError(
      f'{name}={path!a} has a {found[0]!a:.9} in its path, in which no '
      'checkpoint can be read; choose a folder without'
    )


def origin(path: str) -> str:
  """The address in a bucket of what is staged at `path`; else `path`."""
  for parent in pathlib.Path(path).parents:
    if (parent / _ORIGIN).exists():
      inside = pathlib.Path(path).relative_to(parent / _STAGED)
      return os.path.join((parent / _ORIGIN).read_text(), *inside.parts)
  return path


def upload(folder: str, pattern: str = '**/*') -> None:
  """Copies files of a staged folder that have changed to its bucket.

  The pattern is of their paths in the folder. Failed if one cannot be copied.
  """
  address = origin(folder)
  if address == folder:
    return
  system, there = _opened(address)
  with copying:
    here = pathlib.Path(folder)
    paths = filter(_is_kept, here.glob(pattern))
    versions = {str(path): _version(path) for path in paths}
    changed = [n for n in versions if _uploaded.get(n) != versions[n]]
    # After a kill, a folder with files but no config would be no run, and one
    # with a status ahead of its files not what the status says.
    for order in (-1, 0, 1):
      names = [name for name in changed if _order(name) == order]
      targets = [f'{there}/{os.path.relpath(name, here)}' for name in names]
      try:
        system.put(names, targets)
      # Each storage raises its own exceptions.
      except Exception as error:
        raise Failed(
          f'{address}: files could not be written: {error}'
        ) from error
      _uploaded.update({name: versions[name] for name in names})


def _order(name: str) -> int:
  return {'config.json': -1, 'status.json': 1}.get(os.path.basename(name), 0)


def _is_kept(path: pathlib.Path) -> bool:
  # Files of Weights & Biases change while they are copied; only `id` is kept.
  is_local = 'wandb' in path.parts[:-1] and path.name != 'id'
  is_local |= path.name in _LOCAL or '.tmp-' in path.name
  return not is_local and path.is_file()


def download(folder: str, trials: Collection[str] | None = None) -> None:
  """Copies what is in the bucket of a staged folder into it; see `staged`."""
  address = origin(folder)
  if address == folder:
    return
  system, there = _opened(address)
  # Another process may have written since the last listing.
  system.invalidate_cache()
  copies = {
    path: os.path.join(folder, name)
    for path in system.find(there)
    if _is_staged(name := os.path.relpath(path, there), trials)
  }
  system.get(list(copies), list(copies.values()))
  _uploaded.update(
    {path: _version(pathlib.Path(path)) for path in copies.values()}
  )


def _is_staged(name: str, trials: Collection[str] | None) -> bool:
  top, *inside = pathlib.PurePath(name).parts
  is_other = top == 'trials' and trials is not None and inside[0] not in trials
  return not is_other and _REMOTE.isdisjoint((top, *inside[:-1]))


def _opened(address: str):
  """The file system of fsspec, and the path in it."""
  import fsspec

  return fsspec.url_to_fs(address, auto_mkdir=True)


def _version(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_size, status.st_mtime_ns
