"""Labelled texts from files of common formats, or from the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from experiments.command.errors import UserError, at
from experiments.data import labels as labels_lib
from experiments.data import readers
from experiments.data.contract import SPLITS
from experiments.data.rows import Row
from experiments.data.text_options import TEXT_ONLY, TextOptions, named

# (label or None, path) of each file.
Files = Iterable[tuple[str | None, str]]


@dataclasses.dataclass(frozen=True)
class Text(TextOptions):
  """Labelled texts in files, or on the Hugging Face hub."""

  def text_of(self, columns: Sequence[str]) -> str | tuple[str, str]:
    """The text of a row, or its pair of texts, from its text columns.

    A subclass may join them in another way. A format without columns has one. A
    UserError says that they are no pair.
    """
    return _pair(columns) if self.has_pairs else ' '.join(columns)

  def label_of(self, cells: Sequence[str]) -> str:
    """The label of a row, or all of them as `labels.joined` writes a set.

    A subclass may read the cells, of label_column or of label_columns, in
    another way, or allow an empty one. A ValueError says that there is no
    label.
    """
    labels = labels_lib.parts(cells[0])
    if self.label_columns:
      labels = labels_lib.marked(self.label_columns, cells)
    elif self.label_separator:
      labels = labels_lib.separated(cells[0], self.label_separator)
    if labels is not None:
      return labels_lib.joined(map(self._shown, labels))
    if not cells[0]:
      raise ValueError('the label is empty; correct or remove the row')
    return self._shown(cells[0])

  def read(
    self, directory: str, seed: int, files: Mapping[str, Files] | None = None
  ) -> dict[str, Iterable[Row]]:
    """Rows of each split, in the order of its files, which are read once each.

    A UserError says which file is missing or, while iterating, which row is
    wrong. Without `files`, by split, they are those of the directory.
    """
    by_split = files or self.files(directory)

    def rows(split: str) -> Iterator[Row]:
      for label, path in by_split[split]:
        yield from self.read_file(path, label, split)

    return {split: rows(split) for split in by_split}

  def key(
    self,
    directory: str,
    digest: Callable[[str], str],
    files: Mapping[str, Files] | None = None,
  ) -> list:
    """All that the rows depend on, as a JSON value; files as of `read`.

    A UserError says which file cannot be read. `digest` is that of the content
    of a file.
    """
    options = dataclasses.asdict(self)
    for name in (*SPLITS, 'unknown_labels'):
      del options[name]
    content = []
    for split, of_split in (files or self.files(directory)).items():
      for label, path in of_split:
        is_hub = self.format == 'hub'
        parts = readers.hub_files(self, path) if is_hub else [path]
        name = os.path.relpath(path, directory or '.')
        try:
          content.append([split, label, name, list(map(digest, parts))])
        except OSError as error:
          raise UserError(f'{error.filename}: {error.strerror}') from error
    return [options, content]

  def files(self, directory: str) -> dict[str, Files]:
    """The files of the splits that have any; UserError if one is missing.

    Class folders that `labels` does not list are left out: that of texts
    without labels may hold most of a data set.
    """
    if self.format != 'hub' and not os.path.isdir(directory):
      raise UserError(f'config.data.dir = {directory!r} is not a folder')
    listed = {raw for raw, _ in map(named, self.labels)}
    are_folders = self.format == 'class_folders' and listed
    return {
      split: dict.fromkeys(
        (label, path)
        for name in getattr(self, split)
        for label, path in matching(
          self.format,
          name,
          directory,
          f'config.data.text.{split}',
          self.label_column != '',
        )
        if not are_folders or label is None or label in listed
      )
      for split in SPLITS
      if getattr(self, split)
    }

  def read_file(self, path: str, label: str | None, split: str):
    """Rows of one file or hub split; blank lines are none, but are counted.

    All have the label, or each its own where it is None. A UserError says which
    row is wrong.
    """
    columns, label_columns = [*self.text_columns], [*self.label_columns]
    if not label_columns and self.label_column:
      label_columns = [self.label_column]
    if self.format in TEXT_ONLY:
      columns, label_columns = [readers.TEXT], ['label'] * len(label_columns)
    if label is not None:
      label_columns = []
    count, of_file = len(columns), (label or '',)
    of_row = self.label_of if label_columns else lambda raw: self._shown(raw[0])
    shown: dict[tuple[str, ...], str] = {}
    for number, cells, _ in readers.rows(self, path, columns + label_columns):
      if cells is None:
        continue
      raw = tuple(cells[count:]) or of_file
      if raw not in shown:
        try:
          shown[raw] = of_row(raw)
        except ValueError as error:
          raise UserError(f'{path} row {number}: {error}') from None
      with at(f'{path} row {number}'):
        text = self.text_of(cells[:count])
      yield Row(text, shown[raw], path, number)

  def _shown(self, raw: str) -> str:
    parts = raw.split(':')
    raw = ':'.join(parts[: self.label_depth or len(parts)])
    names = dict(reversed([*map(named, self.labels)]))
    return names.get(raw) or raw


def _pair(columns: Sequence[str]) -> tuple[str, str]:
  """The pair of two columns, or of one text with a tab between the two."""
  texts = columns[0].split('\t', 1) if len(columns) == 1 else columns
  if len(texts) != 2:
    raise UserError(
      f'{columns[0]!a:.200} is no pair of texts: a tab must separate them, or '
      "config.data.text.join must be 'space'"
    )
  return texts[0], texts[1]


def matching(
  format: str, name: str, directory: str, key: str, is_labelled: bool = True
) -> Files:
  """The files that a name or a pattern matches, in order; UserError if none.

  With labels, a name of 'class_files' has one, and a folder of 'class_folders'
  has a folder for each. The key of the name is for messages.
  """
  if format == 'hub':
    return [(None, name)]
  if format == 'class_folders':
    folders = _paths(name, directory, key, True)
    return _texts(folders, f'{key} = {name!r}', is_labelled)
  label = None
  if format == 'class_files' and is_labelled:
    label, path = named(name)
    if not path:
      raise UserError(f"{key} = {name!r}: write label=file for 'class_files'")
    name = path
  return [(label, path) for path in _paths(name, directory, key, False)]


def _texts(folders: list[str], place: str, is_labelled: bool) -> Files:
  """The files of folders, or of the class folders in them; no hidden ones."""
  if is_labelled:
    inside = [path for folder in folders for path in _visible(folder)]
    folders = [path for path in inside if os.path.isdir(path)]
  files = []
  for folder in folders:
    texts = _visible(folder)
    inner = [path for path in texts if os.path.isdir(path)]
    if inner:
      raise UserError(f'{place}: {inner[0]} is a folder, not a file of text')
    if not texts:
      raise UserError(f'{place}: {folder} has no file')
    label = os.path.basename(folder) if is_labelled else None
    files += [(label, path) for path in texts]
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


def _visible(folder: str) -> list[str]:
  return sorted(glob.glob(os.path.join(glob.escape(folder), '*')))
