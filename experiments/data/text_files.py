"""Labelled texts in files, in whichever of the usual forms they come."""

from __future__ import annotations

import codecs
import collections
import csv
import dataclasses
import glob
import itertools
import os
import re
from typing import NamedTuple

from experiments.command.errors import UserError, one_of
from experiments.command.log import log

SPLITS = ('train', 'validation', 'test')
FORMATS = (
  'csv', 'lines', 'json', 'parquet', 'class_files', 'class_folders', 'hub',
)  # fmt: skip
DELIMITERS = {'comma': ',', 'tab': '\t', 'semicolon': ';', 'bar': '|'}


class Row(NamedTuple):
  """A labelled text, and where it stands: a file and its row, from 1."""

  text: str
  label: str
  file: str
  number: int


@dataclasses.dataclass(frozen=True)
class Text:
  """Labelled text in files, or on the Hugging Face hub.

  Attributes:
    format: one of FORMATS. 'csv' covers every delimited table; 'lines' is a
      label, a blank and the text; 'json' one object a line; 'class_files' one
      file a class, a text a line; 'class_folders' one folder a class, a text
      a file; 'hub' a data set by its name, with config.data.dir empty.
    train, validation, test: file names below config.data.dir, or patterns:
      `part-*.tsv`, `**/*.tsv`, whose files follow one another by name; a
      folder for 'class_folders'; `label=file` for 'class_files'; names of hub
      splits for 'hub'. An empty one is cut from train.
    hub_name: of a data set on the hub, `nyu-mll/glue`, for 'hub'.
    hub_config: of its parts the one to read, `sst2`; empty: it has one only.
    text_columns: names of columns, joined by a blank where there are several;
      their numbers from 0 in a file without a header.
    label_column: likewise.
    delimiter: one of DELIMITERS, for 'csv'.
    quoted: whether double quotes enclose fields, for 'csv'.
    header: whether the first line names the columns, for 'csv'.
    encoding: of the files; a byte order mark of UTF-8 is no part of a text.
    label_depth: parts of a label like DESC:manner that count; 0: all.
    labels: `raw=shown` for each class, in order; empty: those of train, sorted.
    unknown_labels: what rows of other labels are: 'error', or 'drop'.
    max_copies: rows of one text and label that are kept in a split, the first
      ones; 0: all.
  """

  format: str = 'csv'
  train: tuple = ('train.tsv',)
  validation: tuple = ()
  test: tuple = ()
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
    # On a command line 0,1 are numbers; names of labels and columns are not.
    for field in ('train', 'validation', 'test', 'text_columns', 'labels'):
      names = tuple(map(str, getattr(self, field)))
      object.__setattr__(self, field, names)

  def check(self, directory: str) -> None:
    """UserError for wrong options; whether files exist, `read` asks."""
    one_of(self.format, FORMATS, 'data.text.format')
    one_of(self.delimiter, DELIMITERS, 'data.text.delimiter')
    one_of(self.unknown_labels, ('error', 'drop'), 'data.text.unknown_labels')
    if not self.train:
      raise UserError('config.data.text.train is empty; name at least one file')
    if not self.text_columns:
      raise UserError('config.data.text.text_columns is empty; name a column')
    if self.max_copies < 0:
      raise UserError(
        f'config.data.text.max_copies = {self.max_copies} must be 0, which '
        'keeps all, or more'
      )
    try:
      codecs.lookup(self.encoding)
    except LookupError as error:
      raise UserError(f'config.data.text.encoding: {error}') from error
    self._check_place(directory)
    for split in SPLITS:
      for name in getattr(self, split):
        if self.format == 'class_files' and '=' not in name:
          raise UserError(
            f'config.data.text.{split} has {name!r}; '
            "write label=file for 'class_files'"
          )

  def _check_place(self, directory):
    if self.format != 'hub':
      if self.hub_name or self.hub_config:
        raise UserError(
          f'config.data.text.hub_name = {self.hub_name!r} and hub_config = '
          f'{self.hub_config!r} must be empty for config.data.text.format = '
          f'{self.format!r}'
        )
      if not directory:
        raise UserError('config.data.dir is empty; say where the data is')
    elif directory or not self.hub_name:
      raise UserError(
        f'config.data.text.hub_name = {self.hub_name!r} must name a data set, '
        f'and config.data.dir = {directory!r} must be empty, for '
        "config.data.text.format = 'hub'"
      )

  def read(self, directory: str, seed: int) -> dict[str, list[Row]]:
    """Rows by split, in the order of the files; only splits that are given.

    A file that several names of a split stand for is read once.

    Raises:
      UserError: a file is broken, or, before any is read, not there.
    """
    del seed
    if self.format != 'hub' and not os.path.isdir(directory):
      raise UserError(f'config.data.dir = {directory!r} is not a folder')
    files = {
      split: dict.fromkeys(
        file
        for name in getattr(self, split)
        for file in self._files(directory, split, name)
      )
      for split in SPLITS
      if getattr(self, split)
    }
    paths = {split: {path for _, path in files[split]} for split in files}
    for one, other in itertools.combinations(files, 2):
      for path in sorted(paths[one] & paths[other]):
        log(f'WARNING: {path} is read for {one} and for {other}')
    return {
      split: self._first_copies(
        [
          row
          for label, path in found
          for row in self._read_file(path, label, split)
        ],
        split,
      )
      for split, found in files.items()
    }

  def _first_copies(self, rows, split):
    """Those of the rows that max_copies keeps."""
    if not self.max_copies:
      return rows
    counts, kept = collections.Counter(), []
    for row in rows:
      counts[row.text, row.label] += 1
      if counts[row.text, row.label] <= self.max_copies:
        kept.append(row)
    if left_out := len(rows) - len(kept):
      log(
        f'{split} rows left out: {left_out} of {len(rows)}, beyond '
        f'{self.max_copies} of one text and label (config.data.text.max_copies)'
      )
    return kept

  def _files(self, directory, split, name):
    """(label or None, path) of each file that one name stands for."""
    if self.format == 'hub':
      return [(None, name)]
    label = None
    if self.format == 'class_files':
      label, _, name = name.partition('=')
    paths = self._matching(directory, split, name)
    if self.format != 'class_folders':
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
    """Paths of the files, or folders, that a name or a pattern stands for."""
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

  def _read_file(self, path, label, split):
    """Rows of one file, folder or hub split."""
    columns = [*self.text_columns, self.label_column]
    if label is not None or self.format == 'lines':
      columns = ['text']
    records = self._records(path, columns, split)
    for number, record in enumerate(records, 1):
      texts, found = list(record), label
      if self.format == 'lines':
        found, _, texts[0] = record[0].partition(' ')
      elif label is None:
        found = texts.pop()
      if found in (None, '') or None in texts:
        raise UserError(f'{path} row {number}: no text or no label in {record}')
      yield Row(' '.join(map(str, texts)), self._label(found), path, number)

  def _label(self, raw) -> str:
    parts = str(raw).split(':')
    raw = ':'.join(parts[: self.label_depth or len(parts)])
    for entry in self.labels:
      name, _, shown = entry.partition('=')
      if raw == name:
        return shown or name
    return raw

  def _records(self, path, columns, split):
    """Tuples of the named columns, through the datasets library."""
    # Here, since only real text needs it: it takes a second to import.
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
      if self.format == 'hub':
        table = datasets.load_dataset(
          self.hub_name, self.hub_config or None, split=path
        )
      else:
        loader, arguments = self._loader(path, split, datasets)
        table = datasets.load_dataset(
          loader, split='train', streaming=True, **arguments
        )
      for record in table:
        missing = [name for name in columns if name not in record]
        if missing:
          raise UserError(
            f'{path} has no column {missing[0]!r} but {sorted(record)}; '
            'change config.data.text.text_columns or label_column'
            + self._about_quotes(path)
          )
        yield tuple(record[name] for name in columns)
    except (ValueError, OSError, csv.Error, DatasetsError) as error:
      reason = ' '.join(str(error).split())
      if self.format == 'hub':
        place = f'{self.hub_name}: cannot read its split {path!r}'
        reason += f' (config.data.text.hub_name, hub_config, {split})'
      else:
        place = f'{path}: cannot read this {split} file'
        reason += self._about_quotes(path)
      raise UserError(f'{place}: {reason}') from error

  def _about_quotes(self, path) -> str:
    """What helps where a table cannot be read that has quotes around fields."""
    if self.format != 'csv' or self.quoted:
      return ''
    mark = re.escape(DELIMITERS[self.delimiter])
    enclosed = re.compile(rf'(^|{mark})".*"({mark}|\s*$)')
    with open(path, encoding=self._codec, errors='replace') as file:
      found = any(map(enclosed.search, file))
    return '; quotes enclose fields: config.data.text.quoted=True' * found

  @property
  def _codec(self) -> str:
    """The encoding that also reads over a byte order mark, if there is one."""
    is_utf_8 = codecs.lookup(self.encoding).name == 'utf-8'
    return 'utf-8-sig' if is_utf_8 else self.encoding

  def _loader(self, path, split, datasets):
    """Name and arguments of a loader of the datasets library."""
    paths = [path]
    if self.format == 'class_folders':
      paths = sorted(entry.path for entry in os.scandir(path))
    for file in map(os.path.abspath, paths):
      if '::' in file:
        raise UserError(
          f"{file}: '::' in a path is a chained URL to the datasets library; "
          f'rename it (config.data.dir, text.{split})'
        )
    # The library takes a name for a pattern.
    names = list(map(glob.escape, paths))
    if self.format in ('lines', 'class_files'):
      return 'text', {'data_files': names, 'encoding': self._codec}
    if self.format == 'class_folders':
      arguments = {'encoding': self._codec, 'sample_by': 'document'}
      return 'text', {'data_files': names, **arguments}
    if self.format in ('json', 'parquet'):
      return self.format, {'data_files': names}
    delimiter = DELIMITERS[self.delimiter]
    with open(path, encoding=self._codec, newline='') as file:
      quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
      reader = csv.reader(file, delimiter=delimiter, quoting=quoting)
      first = next(reader, [])
      second = next((row for row in reader if row), first)
    # Later rows with too many fields are found by the library; in this one it
    # would take the first field for an index, and shift the others.
    if len(second) > len(first):
      raise UserError(
        f'{path} row 1: {len(second)} fields, but {len(first)} columns'
        + self._about_quotes(path)
      )
    columns = first if self.header else [str(n) for n in range(len(first))]
    # Everything is a string: a text may read 'None', a label '01'.
    text = datasets.Value('string')
    return 'csv', {
      'data_files': names,
      'names': columns,
      'skiprows': 1 if self.header else 0,
      'delimiter': delimiter,
      'quoting': quoting,
      # Which reads over a mark, too.
      'encoding': self.encoding,
      'keep_default_na': False,
      'features': datasets.Features({name: text for name in columns}),
    }
