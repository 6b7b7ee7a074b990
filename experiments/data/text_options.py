"""The options of labelled texts in files: the keys config.data.text."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError
from experiments.data.contract import SPLITS, Dataset, Format
from experiments.data.formats import FORMATS, named

# What several columns of text become.
JOINS = ('space', 'pair')


def _is_encoding(name: str) -> bool:
  try:
    return bool(codecs.lookup(name))
  except LookupError:
    return False


_ENCODING = schema.Limit('an encoding, such as latin-1 or utf-16', _is_encoding)
_SOME = schema.Limit('at least one', bool)


@dataclasses.dataclass(frozen=True)
class TextOptions(Dataset):
  """Which files or hub data set, and how their rows are read.

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
      in 'lines' and the texts of classes, a tab separates the two.
    label_column: name of the column with the label, or its index; empty for
      files without labels, and then each line of 'lines' is a text.
    label_columns: names of columns of 0 and 1 in place of label_column, one for
      each label that a text may have.
    label_separator: what separates the labels of a text that has any number of
      them; empty: it has one, or a list, in formats that have lists.
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
    if self.has_pairs and format.has_columns and len(self.text_columns) != 2:
      raise UserError(
        f'config.data.text.text_columns = {self.text_columns!r} must be two '
        "columns for config.data.text.join = 'pair'"
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
