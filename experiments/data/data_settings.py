"""The settings of the data: which data set, how it is split and batched."""

from __future__ import annotations

import dataclasses

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError
from experiments.data import datasets
from experiments.data.contract import Dataset, Tokenization
from experiments.data.splits import GROUPINGS
from experiments.data.text_files import Text
from experiments.data.vocabularies import VOCABULARIES

SOURCES = Table(datasets.DATASETS, Dataset)
_VOCABULARIES = Table(VOCABULARIES, Tokenization)
_GROUPING = schema.Limit(
  f'{", ".join(map(repr, GROUPINGS))} or the name of a column', bool
)


@dataclasses.dataclass(frozen=True)
class DataSettings:
  """The data set, how it is split, and how it is batched.

  Attributes:
    source: the data set.
    text: its files, where `source` is text.
    dir: folder of the files; empty for generated data and the hub.
    max_length: tokens of a text, or of a pair with its two [SEP]; longer texts
      are truncated, of a pair the longer one first. Of a stream, the tokens of
      a window, each of which predicts the next one.
    seed: seed of generated data, of splits held out from train, and of the
      order of examples: runs that differ in config.seed only train on the same
      batches, unless config.train.shuffle_by_seed is set.
    validation_fraction: share of train to hold out for validation, if the data
      has no such split.
    test_fraction: share of train to hold out for test, if the data has no such
      split.
    num_folds: cross-validation: train is split into so many folds, of which one
      is test, at least 2; 0: none.
    fold: which fold is test, from 0.
    split_by: what is never split between train, validation and test: 'text',
      equal texts; 'sentence', also a sentence and its phrases; or the name of a
      column, rows with the same value.
    num_buckets: number of lengths that batches are padded to.
    vocabulary: how texts are split into tokens.
  """

  source: Call = schema.choice('word_order', SOURCES)
  text: Text = schema.section(Text)
  dir: str = ''
  max_length: int = schema.field(64, schema.POSITIVE)
  seed: int = schema.field(0, schema.SEED)
  validation_fraction: float = schema.field(0.1, schema.SHARE)
  test_fraction: float = schema.field(0.0, schema.SHARE)
  num_folds: int = schema.field(0, schema.at_least(0))
  fold: int = schema.field(0, schema.at_least(0))
  split_by: str = schema.field('text', _GROUPING)
  num_buckets: int = schema.field(2, schema.POSITIVE)
  vocabulary: Call = schema.choice('word', _VOCABULARIES)

  def dataset(self) -> Dataset:
    """The data set; one that reads files has the options of `text`."""
    is_text = issubclass(self.source.entry, Text)
    return self.source.make(**(vars(self.text) if is_text else {}))

  @property
  def group_column(self) -> str:
    """The column of the groups that are never split; '' if it is none."""
    return '' if self.split_by in GROUPINGS else self.split_by

  @property
  def is_stream(self) -> bool:
    """Whether an example is a window of all texts, one after another."""
    return self.source.entry.is_stream

  @property
  def pair_length(self) -> int | None:
    """Tokens of a pair, at most; None: the texts are no pairs."""
    return self.max_length if self.dataset().has_pairs else None

  @property
  def num_apart(self) -> int:
    """How many texts of an example are encoded apart; 0: it is one text."""
    return self.dataset().num_apart

  def further(self) -> Text:
    """How other files than those of the run are read.

    Of texts that are encoded apart, a file has one in each row.
    """
    source = self.dataset()
    if source.num_apart:
      column = self.text.text_columns[:1]
      return dataclasses.replace(self.text, join='space', text_columns=column)
    if isinstance(source, Text):
      return source
    join = 'pair' if source.has_pairs else self.text.join
    return dataclasses.replace(self.text, join=join)

  def moved_to(self, directory: str) -> DataSettings:
    """This data in another folder; UserError if it is in none."""
    if not self.dir:
      raise UserError(
        f'--data_dir={directory} is for data in a folder, and '
        f'config.data.source = {self.source} of this run is in none'
      )
    return dataclasses.replace(self, dir=directory)
