"""Labelled texts from files of common formats, or from the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from experiments.command.errors import UserError, at
from experiments.data import labels as labels_lib
from experiments.data import pairs, readers
from experiments.data.contract import SPLITS, UNLABELLED
from experiments.data.file_names import Files, matching, named
from experiments.data.rows import Row
from experiments.data.text_options import TEXT_ONLY, TextOptions


@dataclasses.dataclass(frozen=True)
class Text(TextOptions):
  """Labelled texts in files, or on the Hugging Face hub."""

  def text_of(self, columns: Sequence[str]) -> str | tuple[str, str]:
    """The text of a row, or its pair of texts, from its text columns.

    A subclass may join them in another way.

    Args:
      columns: their values; of a format without columns, the one text.

    Raises:
      UserError: they are no pair.
    """
    return pairs.of_columns(columns) if self.has_pairs else ' '.join(columns)

  def label_of(self, cells: Sequence[str]) -> str:
    """The label of a row, or all of them as `labels.joined` writes a set.

    A subclass may read it in another way, or allow an empty one.

    Args:
      cells: the values of label_column, or of label_columns.

    Raises:
      ValueError: there is no label.
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
    """Rows of the given splits, in the order of the files.

    A file that several names or patterns of a split match is read once.

    Args:
      files: by split; None: `files` of the directory.

    Raises:
      UserError: a file is missing; while iterating: one cannot be parsed.
    """
    del seed
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
    """All that the rows depend on, as a JSON value.

    Args:
      digest: of the content of a file.
      files: as of `read`.

    Raises:
      UserError: a file is missing or cannot be read.
    """
    options = dataclasses.asdict(self)
    for name in (*SPLITS, UNLABELLED, 'unknown_labels'):
      del options[name]
    content = [
      [
        split,
        label,
        os.path.relpath(path, directory or '.'),
        self._digests(path, digest),
      ]
      for split, of_split in (files or self.files(directory)).items()
      for label, path in of_split
    ]
    return [options, content]

  def _digests(self, path: str, digest) -> list:
    """The digest of a file, or those of the files of a hub split."""
    paths = readers.hub_files(self, path) if self.format == 'hub' else [path]
    try:
      return [digest(file) for file in paths]
    except OSError as error:
      raise UserError(f'{error.filename}: {error.strerror}') from error

  def files(self, directory: str) -> dict[str, Files]:
    """The files of the splits that have any.

    Class folders that `labels` does not list are left out: that of texts
    without labels may hold most of a data set.

    Raises:
      UserError: a file is missing.
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
          self.label_column != '' and split != UNLABELLED,
        )
        if not are_folders or label is None or label in listed
      )
      for split in (*SPLITS, UNLABELLED)
      if getattr(self, split)
    }

  def read_file(self, path: str, label: str | None, split: str):
    """Rows of one file or hub split; blank lines are none, but are counted.

    Args:
      label: of all of them; None: each has its own.

    Raises:
      UserError: it cannot be parsed.
    """
    columns, label_columns = [*self.text_columns], [*self.label_columns]
    if not label_columns and self.label_column:
      label_columns = [self.label_column]
    if self.format in TEXT_ONLY:
      columns, label_columns = [readers.TEXT], ['label'] * len(label_columns)
    if split == UNLABELLED or label is not None:
      label_columns = []
    count, of_file = len(columns), (label or '',)
    of_row = self.label_of if label_columns else self._of_file
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

  def _of_file(self, cells: tuple[str, ...]) -> str:
    """The label of a file, which all of its rows have; '' if it has none."""
    return self._shown(cells[0])

  def _shown(self, raw: str) -> str:
    parts = raw.split(':')
    raw = ':'.join(parts[: self.label_depth or len(parts)])
    names = dict(reversed([*map(named, self.labels)]))
    return names.get(raw) or raw
