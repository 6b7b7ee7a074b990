"""From the names of files in a config, or in --file, to paths."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable

from experiments.command.errors import UserError

# (label or None, path) of each file.
Files = Iterable[tuple[str | None, str]]


def named(entry: str) -> tuple[str, str]:
  """(name, rest) of `name=rest`; the rest may be empty.

  A name with an equals sign has it twice: `x==1=rest`.
  """
  name, _, rest = entry.replace('==', '\0').partition('=')
  return name.replace('\0', '='), rest.replace('\0', '==')


def matching(
  format: str, name: str, directory: str, key: str, is_labelled: bool = True
) -> Files:
  """The files that a name or a pattern matches, in order.

  Args:
    format: as of text_options.TextOptions.
    key: of the name, for messages.
    is_labelled: whether a name of 'class_files' has a label, and a folder of
      'class_folders' a folder for each.

  Raises:
    UserError: there is none.
  """
  if format == 'hub':
    return [(None, name)]
  if format == 'class_folders':
    folders = [(None, path) for path in _paths(name, directory, key, True)]
    return _texts(folders, f'{key} = {name!r}', is_labelled)
  label = None
  if format == 'class_files' and is_labelled:
    label, path = named(name)
    if not path:
      raise UserError(f"{key} = {name!r}: write label=file for 'class_files'")
    name = path
  return [(label, path) for path in _paths(name, directory, key, False)]


def _texts(folders: Files, place: str, is_labelled: bool) -> Files:
  """The files of folders, or of the class folders in them."""
  if is_labelled:
    folders = [
      (entry.name, entry.path)
      for _, path in folders
      for entry in _visible(path)
      if entry.is_dir()
    ]
  files = []
  for label, folder in folders:
    texts = [(label, entry.path) for entry in _visible(folder)]
    if not texts:
      raise UserError(f'{place}: {folder} has no file')
    files += texts
  if not files:
    raise UserError(f'{place} has no class folder')
  return files


def _paths(name: str, directory: str, key: str, is_folder: bool) -> list[str]:
  """Paths of the files, or folders, that a name or a pattern matches."""
  names = [name]
  if not os.path.exists(os.path.join(directory, name)):
    names = sorted(glob.glob(name, root_dir=directory, recursive=True))
  paths = [os.path.normpath(os.path.join(directory, name)) for name in names]
  paths = [path for path in paths if os.path.isdir(path) == is_folder]
  if not paths:
    kind = 'folder' if is_folder else 'file'
    where = '' if os.path.isabs(name) else f' in {directory}'
    raise UserError(
      f'{key} = {name!r}: there is no such {kind}{where}, and none that it '
      'matches'
    )
  return paths


def _visible(folder: str) -> list[os.DirEntry]:
  """The files and folders in a folder that are not hidden, by name."""
  entries = [e for e in os.scandir(folder) if not e.name.startswith('.')]
  return sorted(entries, key=lambda entry: entry.name)
