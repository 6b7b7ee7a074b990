"""Workdirs in a bucket, --workdir=gs://BUCKET/FOLDER, of a run or of a sweep.

Checkpoints are written directly to the bucket. The small files beside them are
staged in a local folder, and copied in a thread whenever a checkpoint begins or
the status changes; a checkpoint is complete only when they are, so that the
files in the bucket are never behind it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterator

from etils import epath

from experiments.command.errors import Failed, UserError

SCHEMES = ('gs://',)
# Folders that stay in the bucket, and files that stay local.
_REMOTE, _LOCAL = ('checkpoints', 'corrupt'), ('lock',)
# A staged folder, and the file beside it that holds the address of the bucket.
_STAGED, _ORIGIN = 'run', '.selfattn-origin'
# Each waits for the network most of the time.
_NUM_THREADS = 32
# Files that are copied before all others, and after them.
_ORDER = {'config.json': -1, 'status.json': 1}
# Size and time of the staged files that are in the bucket, by path.
_uploaded: dict[str, tuple[int, int]] = {}
# One thread, so that uploads end in the order of their starts.
_uploads = concurrent.futures.ThreadPoolExecutor(1)


@contextlib.contextmanager
def staged(path: str, trials: Collection[str] | None = None) -> Iterator[str]:
  """A local copy of the workdir `path` in a bucket, or a local `path` itself.

  Args:
    trials: names of the trials of a sweep to copy; None: all.

  Raises:
    UserError: the extra gcs is not installed; an address of another scheme.
  """
  if not path.startswith(SCHEMES):
    if re.match(r'\w+://', path):
      raise UserError(
        f'--workdir={path}: a workdir is a folder, or an address of '
        f'{", ".join(SCHEMES)}'
      )
    yield path
    return
  with tempfile.TemporaryDirectory(prefix='selfattn-') as parent:
    name = os.path.join(parent, _ORIGIN)
    with open(name, 'w') as file:
      file.write(path)
    folder = os.path.join(parent, _STAGED)
    try:
      download(folder, trials)
    except ImportError as error:
      raise UserError(
        f'--workdir={path} needs the extra gcs: bash scripts/run.sh '
        'pip install gcsfs google-cloud-storage'
      ) from error
    try:
      yield folder
    finally:
      # The folder is removed.
      finish_uploads()


def origin(path: str) -> str:
  """The address in a bucket of what is staged at `path`; else `path`."""
  for parent in pathlib.Path(path).parents:
    if (parent / _ORIGIN).exists():
      inside = pathlib.Path(path).relative_to(parent / _STAGED)
      return os.path.join((parent / _ORIGIN).read_text(), *inside.parts)
  return path


def upload(folder: str, pattern: str = '**/*') -> None:
  """Copies files of a staged folder that have changed to its bucket.

  Args:
    pattern: of their paths in the folder.

  Raises:
    Failed: one could not be copied.
  """
  started = start_upload(folder, pattern)
  if started is not None:
    started.result()


def start_upload(
  folder: str, pattern: str = '**/*'
) -> concurrent.futures.Future | None:
  """As `upload`, in a thread; uploads end in the order of their starts.

  Returns:
    done when the files are in the bucket, or what `upload` raises; None if
    `folder` is not staged.
  """
  address = origin(folder)
  if address == folder:
    return None
  return _uploads.submit(_upload, folder, address, pattern)


def finish_uploads() -> None:
  """Waits for all uploads that were started, whether or not they succeed."""
  _uploads.submit(lambda: None).result()


def _upload(folder: str, address: str, pattern: str) -> None:
  here, there = pathlib.Path(folder), epath.Path(address)

  def copy(name: pathlib.Path) -> None:
    target = there / str(name)
    try:
      version = _version(here / name)
      if _uploaded.get(str(here / name)) == version:
        return
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes((here / name).read_bytes())
    # Every storage has exceptions of its own.
    except Exception as error:
      raise Failed(f'{target} could not be written: {error}') from error
    _uploaded[str(here / name)] = version

  names = [path.relative_to(here) for path in here.glob(pattern)]
  names = [name for name in names if _is_kept(here, name)]
  # After a kill, a folder with files but no config would be no run, and one
  # with a status ahead of its files not what the status says.
  for order in (-1, 0, 1):
    _in_threads(
      copy, [name for name in names if _ORDER.get(name.name, 0) == order]
    )


def _is_kept(here: pathlib.Path, name: pathlib.Path) -> bool:
  # Of Weights & Biases, whose files change meanwhile, the id of the run.
  is_local = 'wandb' in name.parts[:-1] and name.name != 'id'
  is_local |= name.name in _LOCAL or '.tmp-' in name.name
  return not is_local and (here / name).is_file()


def download(folder: str, trials: Collection[str] | None = None) -> None:
  """Copies what is in the bucket of a staged folder into it.

  Args:
    trials: names of the trials of a sweep to copy; None: all.
  """
  address = origin(folder)
  if address == folder:
    return
  import fsspec

  # Another process may have written since the last listing.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  there, here = epath.Path(address), pathlib.Path(folder)
  files: list[pathlib.Path] = []
  folders = [there] if there.exists() else []

  def is_wanted(path: epath.Path) -> bool:
    is_other = (
      trials is not None
      and path.parent == there / 'trials'
      and path.name not in trials
    )
    return path.name not in _REMOTE and not is_other

  def copy(name: pathlib.Path) -> None:
    target = here / name
    content = (there / str(name)).read_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    _uploaded[str(target)] = _version(target)

  while folders:
    found = _in_threads(lambda folder: list(folder.iterdir()), folders)
    entries = list(filter(is_wanted, itertools.chain.from_iterable(found)))
    kinds = _in_threads(lambda entry: entry.is_dir(), entries)
    pairs = list(zip(entries, kinds, strict=True))
    folders = [entry for entry, is_folder in pairs if is_folder]
    files += [
      pathlib.Path(entry.relative_to(there))
      for entry, is_folder in pairs
      if not is_folder
    ]
  _in_threads(copy, files)


def _version(path: pathlib.Path) -> tuple[int, int]:
  found = path.stat()
  return found.st_size, found.st_mtime_ns


def _in_threads(function: Callable, values: list) -> list:
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    return list(pool.map(function, values))
