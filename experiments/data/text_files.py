"""Labelled texts from files of any format, or from the Hugging Face hub."""

from __future__ import annotations

import codecs
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError, at
from experiments.data import labels as labels_lib
from experiments.data import readers
from experiments.data.contract import SPLITS, Dataset, Files, Format
from experiments.data.formats import FORMATS, ClassFolders, named
from experiments.data.rows import Row
from experiments.data.text_format import TEXT

# What several columns of text become.
JOINS = ('space', 'pair', 'apart')


def _is_encoding(name: str) -> bool:
  try:
    return bool(codecs.lookup(name))
  # ValueError: a name that is not ASCII, or has a NUL.
  except (LookupError, ValueError):
    return False


_ENCODING = schema.Limit('an encoding, such as latin-1 or utf-16', _is_encoding)
_SOME = schema.Limit('at least one', bool)


@dataclasses.dataclass(frozen=True)
class Text(Dataset):
  """Labelled texts in files, or on the Hugging Face hub.

  Fields are the keys config.data.text.

  Attributes:
    format: how the files are read.
    train: names of files below config.data.dir, or patterns such as
      `part-*.tsv` and `**/*.tsv`, read in order of file name; a folder for
      'class_folders'; `label=file` for 'class_files'; names of splits for
      'hub'.
    validation: files of the validation split, as for train; empty: a share of
      train is held out, see config.data.validation_fraction.
    test: files of the test split, as for train; empty: see
      config.data.test_fraction and config.data.num_folds.
    text_columns: names of the columns with the text; indices from 0 in a file
      without header.
    join: what several columns are: 'space': one text, joined by spaces; 'pair':
      two texts, `[CLS] a [SEP] b [SEP]`, which the model tells from each other;
      'apart': texts that are encoded apart, for config.task=contrastive; in
      'lines' and the texts of classes, a tab separates two.
    label_column: name of the column with the label, or its index; empty for
      files without labels, and then each line of 'lines' is a text.
    label_columns: names of columns of 0 and 1 in place of label_column, one for
      each label that a text may have.
    label_separator: what separates the labels of a text that has any number of
      them; '[]': they are a list as programs print it, such as ['a', 'b'];
      empty: it has one, or a list, in formats that have lists.
    encoding: encoding of the files; a UTF-8 byte order mark is skipped.
    label_depth: number of levels to keep of a label such as DESC:manner, which
      has two; 0: all.
    labels: the classes in order, each as in the files, or `raw=shown` for
      another name, with == for = in a raw name; empty: those of train, sorted,
      numbers by value.
    unknown_labels: what to do with rows of other labels.
  """

  format: Call = schema.choice('tsv', Table(FORMATS, Format))
  train: tuple = schema.field(('train.tsv',), _SOME)
  validation: tuple = schema.field(())
  test: tuple = schema.field(())
  text_columns: tuple = schema.field(('text',), _SOME)
  join: str = schema.field('space', schema.one_of(JOINS))
  label_column: str = schema.field('label')
  label_columns: tuple = schema.field(())
  label_separator: str = schema.field('')
  encoding: str = schema.field('utf-8', _ENCODING)
  label_depth: int = schema.field(0, schema.at_least(0))
  labels: tuple = schema.field(())
  unknown_labels: str = schema.field('error', schema.one_of(('error', 'drop')))

  def __post_init__(self):
    # 0,1 on a command line is parsed as integers, but names are strings.
    names = ('text_columns', 'label_columns', 'labels')
    for field in (*SPLITS, *names):
      names = tuple(map(str, getattr(self, field)))
      object.__setattr__(self, field, names)

  @property
  def has_pairs(self) -> bool:
    return self.join == 'pair'

  @property
  def num_apart(self) -> int:
    if self.join != 'apart':
      return 0
    return len(self.text_columns) if self.format.entry.has_columns else 2

  @property
  def classes(self) -> list[str]:
    """The names that `labels` lists, or else label_columns, in order."""
    entries = map(named, self.labels or self.label_columns)
    return list(dict.fromkeys(shown or raw for raw, shown in entries))

  def check(self, directory: str) -> None:
    """UserError for options that exclude each other; files are not read."""
    format = self.format.make()
    if bool(directory) != format.has_files:
      allowed = 'the folder of the files' if format.has_files else 'empty'
      raise UserError(
        f'config.data.dir = {directory!r} must be {allowed} for '
        f'config.data.text.format = {self.format}'
      )
    counts = {'pair': (2,), 'apart': (2, 3)}.get(self.join)
    if format.has_columns and counts and len(self.text_columns) not in counts:
      raise UserError(
        f'config.data.text.text_columns = {self.text_columns!r} must be '
        f'{" or ".join(map(str, counts))} columns for config.data.text.join = '
        f'{self.join!r}'
      )
    if self.label_columns and not format.has_columns:
      raise UserError(
        f'config.data.text.label_columns = {self.label_columns} must be empty '
        f'for config.data.text.format = {self.format}, which has no columns'
      )

  @classmethod
  def of(cls, **options) -> Self:
    """Options as a config writes them; UserError for one that is wrong."""
    made = schema.read(cls, schema.defaults(cls) | options, 'data.text')
    made.format.make()
    return made

  def changed(self, options: Mapping[str, Any]) -> Self:
    """The options of another file; UserError for one that is not allowed."""
    return self.of(**{**schema.flat(self), **options})

  def text_of(self, columns: Sequence[str]) -> str | tuple[str, ...]:
    """The text of a row, or its several texts, from its text columns.

    A subclass may join them in another way. A format without columns has one. A
    UserError says that they are no pair.
    """
    if self.join == 'space':
      return ' '.join(columns)
    return tuple(columns) if len(columns) > 1 else _pair(columns[0], self.join)

  def label_of(self, cells: Sequence[str]) -> str:
    """The label of a row, or all of them as `labels.joined` writes a set.

    A subclass may read the cells, of label_column or of label_columns, in
    another way, or allow an empty one. A ValueError says that there is no
    label.
    """
    labels = None
    if cells[0] == labels_lib.NULL:
      raise ValueError(
        f'the label is {cells[0]}, the null of MySQL; correct or remove the row'
      )
    if self.label_columns:
      labels = labels_lib.marked(self.label_columns, cells)
    elif isinstance(cells[0], labels_lib.Listed):
      labels = labels_lib.parts(cells[0])
    elif self.label_separator == labels_lib.PRINTED:
      labels = labels_lib.printed(cells[0])
    else:
      labels_lib.check_is_unquoted(cells[0])
      labels_lib.check_is_no_list(cells[0], self.label_separator != '')
      if self.label_separator:
        labels = labels_lib.separated(cells[0], self.label_separator)
    if labels is not None:
      labels_lib.check_are_names(labels)
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
        if not are_folders or label is None or self._cut(label) in listed
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
    shown: dict[tuple, str] = {}
    for number, cells, _ in readers.rows(self, path, columns + label_columns):
      if cells is None:
        continue
      raw = tuple(cells[count:]) or of_file
      # A list is another label than its text.
      key = raw, type(raw[0])
      if key not in shown:
        try:
          shown[key] = of_row(raw)
        except ValueError as error:
          raise UserError(f'{path} row {number}: {error}') from None
        if not readers.is_decoded(shown[key]):
          raise UserError(
            f'the label {shown[key]!a} is not UTF-8; rename its folder, or '
            'change config.data.text.labels'
          )
      with at(f'{path} row {number}'):
        text = self.text_of(cells[:count])
      yield Row(text, shown[key], path, number)

  def _shown(self, raw: str) -> str:
    cut = self._cut(raw)
    if raw and not cut:
      raise ValueError(
        f'the label {raw!r} is empty at config.data.text.label_depth = '
        f'{self.label_depth}; correct or remove the row'
      )
    names = dict(reversed([*map(named, self.labels)]))
    return names.get(cut) or cut

  def _cut(self, raw: str) -> str:
    levels = raw.split(':')
    return ':'.join(levels[: self.label_depth or len(levels)])


def _pair(text: str, join: str) -> tuple[str, str]:
  """The two texts between which a tab is."""
  first, tab, second = text.partition('\t')
  if not tab:
    raise UserError(
      f'{text!a:.200} is no pair of texts (config.data.text.join = {join!r}): '
      'a tab must separate them'
    )
  return first, second
