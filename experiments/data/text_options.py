"""The options of labelled texts in files: the keys config.data.text."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from experiments.command import schema
from experiments.command.errors import UserError
from experiments.data import readers
from experiments.data.contract import SPLITS, Dataset

FORMATS = (
  'csv', 'lines', 'json', 'parquet', 'class_files', 'class_folders', 'hub',
)  # fmt: skip
# What several columns of text become.
JOINS = ('space', 'pair')
# Formats of one column, the text.
TEXT_ONLY = ('lines', 'class_files', 'class_folders')


def _is_encoding(name: str) -> bool:
  try:
    return bool(codecs.lookup(name))
  except LookupError:
    return False


_ENCODING = schema.Limit('an encoding, such as latin-1 or utf-16', _is_encoding)


def named(entry: str) -> tuple[str, str]:
  """(name, rest) of `name=rest`; the rest may be empty.

  A name with an equals sign has it twice: `x==1=rest`.
  """
  name, _, rest = entry.replace('==', '\0').partition('=')
  return name.replace('\0', '='), rest.replace('\0', '==')


@dataclasses.dataclass(frozen=True)
class TextOptions(Dataset):
  """Which files or hub data set, and how their rows are read.

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
    hub_name: name of a data set on the hub, such as `nyu-mll/glue`.
    hub_config: configuration of the data set on the hub, such as `sst2`; empty
      if it has only one.
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
  """

  format: str = schema.field('csv', schema.one_of(FORMATS))
  train: tuple = schema.field(
    ('train.tsv',), schema.Limit('at least one', bool)
  )
  validation: tuple = ()
  test: tuple = ()
  hub_name: str = ''
  hub_config: str = ''
  text_columns: tuple = schema.field(
    ('text',), schema.Limit('at least one', bool)
  )
  join: str = schema.field('space', schema.one_of(JOINS))
  label_column: str = 'label'
  label_columns: tuple = ()
  label_separator: str = ''
  delimiter: str = schema.field('tab', schema.one_of(readers.DELIMITERS))
  quoted: bool = False
  header: bool = True
  encoding: str = schema.field('utf-8', _ENCODING)
  label_depth: int = schema.field(0, schema.at_least(0))
  labels: tuple = ()
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
    is_hub = self.format == 'hub'
    named = self.hub_name or (not is_hub and self.hub_config)
    if is_hub != bool(named) or (is_hub and directory):
      raise UserError(
        f'config.data.text.hub_name = {self.hub_name!r} and hub_config = '
        f'{self.hub_config!r} must name a data set for the format hub, with '
        f'config.data.dir = {directory!r} empty, and be empty elsewhere'
      )
    has_columns = self.format not in TEXT_ONLY
    if self.has_pairs and has_columns and len(self.text_columns) != 2:
      raise UserError(
        f'config.data.text.text_columns = {self.text_columns!r} must be two '
        "columns for config.data.text.join = 'pair'"
      )
    if self.label_columns and self.format in TEXT_ONLY:
      raise UserError(
        f'config.data.text.label_columns = {self.label_columns} must be empty '
        f'for config.data.text.format = {self.format!r}, which has no columns'
      )
    if not is_hub and not directory:
      raise UserError('config.data.dir is empty; give the folder of the data')

  def changed(self, options: Mapping[str, Any]) -> Self:
    """The options of another file; UserError for one that is not allowed."""
    values = dataclasses.asdict(self) | dict(options)
    if values['format'] != 'hub':
      values |= {'hub_name': '', 'hub_config': ''}
    return schema.read(type(self), values, 'data.text')
