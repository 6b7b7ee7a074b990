"""Labelled texts from files of common formats, or from the Hugging Face hub."""

from __future__ import annotations

import codecs
import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from experiments.data import file_records
from experiments.data.rows import Row

SPLITS = ('train', 'validation', 'test')
UNLABELLED = 'unlabelled'
FORMATS = (
  'csv', 'lines', 'json', 'parquet', 'class_files', 'class_folders', 'hub',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Text:
  """Labelled text in files, or on the Hugging Face hub.

  Attributes:
    format: 'csv': any delimited table; 'lines': label, space
      and text; 'json': one object per line; 'parquet'; 'class_files': one file
      per class, one text per line; 'class_folders': one folder per class, one
      text per file; 'hub': a data set on the hub, with config.data.dir empty.
    train: names of files below config.data.dir, or patterns such as
      `part-*.tsv` and `**/*.tsv`, read in order of file name; a folder for
      'class_folders'; `label=file` for 'class_files'; names of splits for
      'hub'.
    validation: files of the validation split, as for train; empty: a share of
      train is held out, see config.data.validation_fraction.
    test: files of the test split, as for train; empty: see
      config.data.test_fraction and config.data.num_folds.
    unlabelled: names of files with texts without labels, as for train, for
      tasks without labels: the vocabulary is that of train and of these. Of
      'lines' and 'class_files', each line is a text; of 'class_folders', each
      file of the folder. Texts that are in validation or test are left out.
    hub_name: name of a data set on the hub, such as `nyu-mll/glue`.
    hub_config: configuration of the data set on the hub, such as `sst2`; empty
      if it has only one.
    text_columns: names of the columns with the text, joined by a space if there
      are several; indices from 0 in a file without header.
    label_column: name of the column with the label, or its index.
    delimiter: character between fields, for 'csv'.
    quoted: whether double quotes may enclose fields, for 'csv'.
    header: whether the first line holds the names of the columns, for 'csv'.
    encoding: encoding of the files; a UTF-8 byte order mark is skipped.
    label_depth: number of levels to keep of a label such as DESC:manner, which
      has two; 0: all.
    labels: the classes in order, each as in the files, or `raw=shown` for
      another name; empty: those of train, sorted.
    unknown_labels: what to do with rows of other labels.
    max_copies: number of rows with the same text and label to keep per split,
      the first ones; 0: all.
  """

  format: str = 'csv'
  train: tuple = ('train.tsv',)
  validation: tuple = ()
  test: tuple = ()
  unlabelled: tuple = ()
  hub_name: str = ''
  hub_config: str = ''
  text_columns: tuple = ('text',)
  label_column: str = 'label'
  delimiter: str = 'tab'
  quoted: bool = False
  header: bool = True
  encoding: str = 'utf-8'
  label_depth: int = 0
  labels: tuple = ()
  unknown_labels: str = 'error'
  max_copies: int = 0

  def __post_init__(self):
    # 0,1 on a command line is parsed as integers, but names are strings.
    for field in (*SPLITS, UNLABELLED, 'text_columns', 'labels'):
      names = tuple(map(str, getattr(self, field)))
      object.__setattr__(self, field, names)

  def check(self, directory: str) -> None:
    """UserError for invalid options; `read` checks whether files exist."""
    one_of(self.format, FORMATS, 'data.text.format')
    one_of(self.delimiter, file_records.DELIMITERS, 'data.text.delimiter')
    one_of(self.unknown_labels, ('error', 'drop'), 'data.text.unknown_labels')
    if not self.train:
      raise UserError('config.data.text.train is empty; give at least one file')
    if not self.text_columns:
      raise UserError('config.data.text.text_columns is empty; give a column')
    if self.max_copies < 0:
      raise UserError(
        f'config.data.text.max_copies = {self.max_copies} must be at least 0 '
        '(0 keeps all)'
      )
    try:
      codecs.lookup(self.encoding)
    except LookupError as error:
      raise UserError(f'config.data.text.encoding: {error}') from error
    self._check_source(directory)
    for split in SPLITS:
      for name in getattr(self, split):
        if self.format == 'class_files' and '=' not in name:
          raise UserError(
            f'config.data.text.{split} has {name!r}; '
            "write label=file for 'class_files'"
          )

  def _check_source(self, directory):
    if self.format != 'hub':
      if self.hub_name or self.hub_config:
        raise UserError(
          f'config.data.text.hub_name = {self.hub_name!r} and hub_config = '
          f'{self.hub_config!r} must be empty for config.data.text.format = '
          f'{self.format!r}'
        )
      if not directory:
        raise UserError('config.data.dir is empty; give the folder of the data')
    elif directory or not self.hub_name:
      raise UserError(
        f'config.data.text.hub_name = {self.hub_name!r} must name a data set, '
        f'and config.data.dir = {directory!r} must be empty, for '
        "config.data.text.format = 'hub'"
      )

  def read(self, directory: str, seed: int) -> dict[str, Iterable[Row]]:
    """Rows of the given splits, in the order of the files.

    Files are read by whoever iterates over the rows, each time anew.

    A file that several names or patterns of a split match is read once.

    Raises:
      UserError: a file is missing; while iterating: one cannot be parsed.
    """
    del seed
    files = self._found(directory)
    paths = {split: {path for _, path in files[split]} for split in files}
    for one, other in itertools.combinations(files, 2):
      for path in sorted(paths[one] & paths[other]):
        log(f'WARNING: {path} is read for {one} and for {other}')
    return {split: _Reading(self, files[split], split) for split in files}

  def key(self, directory: str, digest: Callable[[str], str]) -> list:
    """All that the rows depend on, as a JSON value.

    Args:
      digest: of the content of a file.

    Raises:
      UserError: a file is missing or cannot be read.
    """
    options = dataclasses.asdict(self)
    for name in (*SPLITS, UNLABELLED, 'unknown_labels', 'max_copies'):
      del options[name]
    content = [
      [split, label, os.path.relpath(path, directory or '.'), digests]
      for split, files in self._found(directory).items()
      for label, path in files
      for digests in [self._digests(path, split, digest)]
    ]
    return [options, content]

  def _digests(self, path, split, digest) -> list:
    """Names and digests of the files of one file, folder or hub split."""
    files = [path]
    if self.format == 'hub':
      files = file_records.hub_files(self, path, split)
    if self.format == 'class_folders':
      files = sorted(entry.path for entry in os.scandir(path))
    try:
      return [[os.path.basename(file), digest(file)] for file in files]
    except OSError as error:
      raise UserError(
        f'{error.filename}: cannot read this {split} file: {error.strerror}'
      ) from error

  def _found(self, directory):
    """(label or None, path) of the files by split, each once."""
    if self.format != 'hub' and not os.path.isdir(directory):
      raise UserError(f'config.data.dir = {directory!r} is not a folder')
    return {
      split: dict.fromkeys(
        file
        for name in getattr(self, split)
        for file in self._files(directory, split, name)
      )
      for split in (*SPLITS, UNLABELLED)
      if getattr(self, split)
    }

  def _files(self, directory, split, name):
    """(label or None, path) of each file that a name or pattern matches."""
    if self.format == 'hub':
      return [(None, name)]
    label = None
    is_labelled = split != UNLABELLED
    if self.format == 'class_files' and is_labelled:
      label, _, name = name.partition('=')
    paths = self._matching(directory, split, name)
    if self.format != 'class_folders' or not is_labelled:
      return [(label, path) for path in paths]
    known = [label.partition('=')[0] for label in self.labels]
    folders = [
      (entry.name, entry.path)
      for path in paths
      for entry in sorted(os.scandir(path), key=lambda entry: entry.name)
      if entry.is_dir() and (not known or entry.name in known)
    ]
    if not folders:
      raise UserError(f'config.data.text.{split}: {paths} have no class folder')
    return folders

  def _matching(self, directory, split, name):
    """Paths of the files, or folders, that a name or a pattern matches."""
    is_folder = self.format == 'class_folders'
    path = os.path.join(directory, name)
    if os.path.exists(path):
      paths = [path]
    else:
      pattern = os.path.join(glob.escape(directory), name)
      paths = sorted(glob.glob(pattern, recursive=True))
    paths = [path for path in paths if os.path.isdir(path) == is_folder]
    if not paths:
      kind = 'folder' if is_folder else 'file'
      reason = f'is not a {kind}' if os.path.exists(path) else 'does not exist'
      if glob.escape(name) != name:
        reason = f'matches no {kind}'
      raise UserError(f'config.data.text.{split} names {path}, which {reason}')
    return list(map(os.path.normpath, paths))

  def read_file(self, path: str, label: str | None, split: str):
    """Rows of one file, folder or hub split.

    Args:
      label: of all of them; None: each has its own.

    Raises:
      UserError: it cannot be parsed.
    """
    is_labelled = split != UNLABELLED
    columns = list(self.text_columns)
    if self.format in ('lines', 'class_files', 'class_folders'):
      columns = ['text']
    elif is_labelled:
      columns.append(self.label_column)
    records = file_records.read(self, path, columns, split)
    shown: dict[str, str] = {}
    for number, record in enumerate(records, 1):
      texts, found = list(record), label
      if is_labelled and self.format == 'lines' and None not in texts:
        found, _, texts[0] = record[0].partition(' ')
      elif is_labelled and label is None:
        found = texts.pop()
      has_label = found not in (None, '') or not is_labelled
      if not has_label or None in texts:
        raise UserError(
          f'{path} row {number}: no text or no label in {record}; correct or '
          'remove the row'
        )
      found = str(found) if is_labelled else ''
      if found not in shown:
        shown[found] = self._label(found)
      yield Row(' '.join(map(str, texts)), shown[found], path, number)

  def _label(self, raw: str) -> str:
    parts = raw.split(':')
    raw = ':'.join(parts[: self.label_depth or len(parts)])
    for entry in self.labels:
      name, _, shown = entry.partition('=')
      if raw == name:
        return shown or name
    return raw


@dataclasses.dataclass(frozen=True)
class _Reading:
  """The rows of some files."""

  options: Text
  files: Iterable[tuple[str | None, str]]
  split: str

  def __iter__(self) -> Iterator[Row]:
    for label, path in self.files:
      yield from self.options.read_file(path, label, self.split)
