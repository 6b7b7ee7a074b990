"""Labelled texts from files of common formats, or from the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from experiments.command import schema
from experiments.command.errors import UserError, at
from experiments.data import labels as labels_lib
from experiments.data import readers
from experiments.data.contract import SPLITS, Files
from experiments.data.formats import TEXT, ClassFolders, named
from experiments.data.rows import Row
from experiments.data.text_options import TextOptions


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
    options = schema.flat(self)
    for name in (*SPLITS, 'unknown_labels'):
      del options[name]
    content, format = [], self.format.make()
    for split, of_split in (files or self.files(directory)).items():
      for label, path in of_split:
        name = os.path.relpath(path, directory or '.')
        try:
          digests = [digest(part) for part in format.contents(path)]
        # Every library has exceptions of its own.
        except Exception as error:
          raise readers.refusal(error, self, path, 1) from error
        content.append([split, label, name, digests])
    return [options, content]

  def files(self, directory: str) -> dict[str, Files]:
    """The files of the splits that have any; UserError if one is missing.

    Class folders that `labels` does not list are left out: that of texts
    without labels may hold most of a data set.
    """
    format = self.format.make()
    if format.has_files and not os.path.isdir(directory):
      raise UserError(f'config.data.dir = {directory!r} is not a folder')
    listed = {raw for raw, _ in map(named, self.labels)}
    are_folders = isinstance(format, ClassFolders) and listed
    return {
      split: dict.fromkeys(
        (label, path)
        for name in getattr(self, split)
        for label, path in format.files(
          name, directory, f'config.data.text.{split}', self.label_column != ''
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
    if not self.format.entry.has_columns:
      columns, label_columns = [TEXT], ['label'] * len(label_columns)
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
