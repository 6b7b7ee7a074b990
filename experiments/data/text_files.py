"""Labelled texts from files of common formats, or from the Hugging Face hub."""

from __future__ import annotations

import codecs
import dataclasses
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator

from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from experiments.data import readers
from experiments.data.contract import Dataset
from experiments.data.rows import Row

SPLITS = ('train', 'validation', 'test')
UNLABELLED = 'unlabelled'
FORMATS = (
  'csv', 'lines', 'json', 'parquet', 'class_files', 'class_folders', 'hub',
)  # fmt: skip
# Formats of one column, the text.
_TEXT_ONLY = ('lines', 'class_files', 'class_folders')
# A name, in which == is an equals sign, and what follows =.
_NAMED = re.compile(r'((?:[^=]|==)*)(?:=(.*))?', re.DOTALL)


def named(entry: str) -> tuple[str, str]:
  """(name, rest) of `name=rest`; the rest may be empty.

  A name with an equals sign has it twice: `x==1=rest`.
  """
  name, rest = _NAMED.fullmatch(entry).groups('')
  return name.replace('==', '='), rest


@dataclasses.dataclass(frozen=True)
class Text(Dataset):
  """Labelled text in files, or on the Hugging Face hub.

  Attributes:
    format: 'csv': any delimited table; 'lines': label, space or tab, and text;
      'json': one object per line, or an array of objects; 'parquet';
      'class_files': one file per class, one text per line; 'class_folders': one
      folder per class, one text per file; 'hub': a data set on the hub, with
      config.data.dir empty.
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
      another name, with == for = in a raw name; empty: those of train, sorted,
      numbers by value.
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
    one_of(self.delimiter, readers.DELIMITERS, 'data.text.delimiter')
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
        if self.format == 'class_files' and not named(name)[1]:
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
      if both := sorted(paths[one] & paths[other]):
        more = f' (and {len(both) - 1} more files)' * (len(both) > 1)
        log(f'WARNING: {both[0]}{more} is read for {one} and for {other}')
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
      [
        split,
        label,
        os.path.relpath(path, directory or '.'),
        self._digests(path, split, digest),
      ]
      for split, files in self._found(directory).items()
      for label, path in files
    ]
    return [options, content]

  def _digests(self, path, split, digest) -> list:
    """The digest of a file, or those of the files of a hub split."""
    is_hub = self.format == 'hub'
    try:
      return [
        digest(file)
        for file in (readers.hub_files(self, path) if is_hub else [path])
      ]
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
      label, name = named(name)
    paths = self._matching(directory, split, name)
    if self.format != 'class_folders':
      return [(label, path) for path in paths]
    folders = [(None, path) for path in paths]
    if is_labelled:
      known = [raw for raw, _ in map(named, self.labels)]
      folders = [
        (entry.name, entry.path)
        for path in paths
        for entry in _visible(path)
        if entry.is_dir() and (not known or entry.name in known)
      ]
    if not folders:
      raise UserError(f'config.data.text.{split}: {paths} have no class folder')
    files = []
    for label, folder in folders:
      texts = [(label, entry.path) for entry in _visible(folder)]
      if not texts:
        raise UserError(f'config.data.text.{split}: {folder} has no file')
      files += texts
    return files

  def _matching(self, directory, split, name):
    """Paths of the files, or folders, that a name or a pattern matches."""
    is_folder = self.format == 'class_folders'
    names = [name]
    if not os.path.exists(os.path.join(directory, name)):
      names = sorted(glob.glob(name, root_dir=directory, recursive=True))
    paths = [os.path.normpath(os.path.join(directory, name)) for name in names]
    paths = [path for path in paths if os.path.isdir(path) == is_folder]
    if not paths:
      kind = 'folder' if is_folder else 'file'
      raise UserError(
        f'config.data.text.{split} has {name!r}, but {directory} has no such '
        f'{kind}, and none that it matches'
      )
    return paths

  def read_file(self, path: str, label: str | None, split: str):
    """Rows of one file or hub split; blank lines are none, but are counted.

    Args:
      label: of all of them; None: each has its own.

    Raises:
      UserError: it cannot be parsed.
    """
    columns = [*self.text_columns, self.label_column]
    if self.format in _TEXT_ONLY:
      columns = [readers.TEXT, 'label']
    has_labels = split != UNLABELLED and label is None
    columns = columns if has_labels else columns[:-1]
    shown: dict[str, str] = {}
    for number, texts, _ in readers.rows(self, path, columns):
      if texts is None:
        continue
      raw = texts.pop() if has_labels else label or ''
      if has_labels and not raw:
        raise UserError(
          f'{path} row {number}: the label is empty; correct or remove the row'
        )
      if raw not in shown:
        shown[raw] = self._label(raw)
      yield Row(' '.join(texts), shown[raw], path, number)

  @property
  def classes(self) -> list[str]:
    """The names of the classes that `labels` lists, in order."""
    entries = map(named, self.labels)
    return list(dict.fromkeys(shown or raw for raw, shown in entries))

  def _label(self, raw: str) -> str:
    parts = raw.split(':')
    raw = ':'.join(parts[: self.label_depth or len(parts)])
    names = dict(reversed([*map(named, self.labels)]))
    return names.get(raw) or raw


def _visible(folder: str) -> list[os.DirEntry]:
  """The files and folders in a folder that are not hidden, by name."""
  entries = [e for e in os.scandir(folder) if not e.name.startswith('.')]
  return sorted(entries, key=lambda entry: entry.name)


@dataclasses.dataclass(frozen=True)
class _Reading:
  """The rows of some files."""

  options: Text
  files: Iterable[tuple[str | None, str]]
  split: str

  def __iter__(self) -> Iterator[Row]:
    for label, path in self.files:
      yield from self.options.read_file(path, label, self.split)
