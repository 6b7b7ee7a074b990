"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import datasets, encoding, facts, selection
from experiments.data import rows as rows_lib
from experiments.data.batches import Examples, bucket_lengths
from experiments.data.contract import Dataset, Tokenization
from experiments.data.facts import read_facts
from experiments.data.file_names import matching
from experiments.data.labels import CLASSES, LabelFacts, Labels
from experiments.data.rows import Row, Rows
from experiments.data.splits import GROUPINGS
from experiments.data.store import Arrays, Store, default_folder, digest
from experiments.data.text_files import UNLABELLED, Text
from experiments.data.vocabularies import VOCABULARIES, Vocabulary

SOURCES = Table(datasets.DATASETS, Dataset)
_VOCABULARIES = Table(VOCABULARIES, Tokenization)


@dataclasses.dataclass(frozen=True)
class DataSettings:
  """The data set, how it is split, and how it is batched.

  Attributes:
    source: the data set.
    text: its files, where `source` is text.
    dir: folder of the files; empty for generated data and the hub.
    max_length: tokens of a text; longer texts are truncated.
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
      equal texts; 'sentence', also a sentence and its phrases.
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
  split_by: str = schema.field('text', schema.one_of(GROUPINGS))
  num_buckets: int = schema.field(2, schema.POSITIVE)
  vocabulary: Call = schema.choice('word', _VOCABULARIES)

  def dataset(self) -> Dataset:
    """The data set; one that reads files has the options of `text`."""
    is_text = issubclass(self.source.entry, Text)
    return self.source.make(**(vars(self.text) if is_text else {}))

  def labelled_only(self) -> DataSettings:
    """This data without the unlabelled texts, if there are any."""
    text = dataclasses.replace(self.text, unlabelled=())
    return dataclasses.replace(self, text=text)

  def moved_to(self, directory: str) -> DataSettings:
    """This data in another folder.

    Raises:
      UserError: it is in no folder.
    """
    if not self.dir:
      raise UserError(
        f'--data_dir={directory} is for data in a folder, and '
        f'config.data.source = {self.source} of this run is in none'
      )
    return dataclasses.replace(self, dir=directory)


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    with_unlabelled: those of train, followed by the unlabelled ones, whose
      labels mean nothing.
    label_facts: names of the outputs, and what train has of each.
    vocabulary: number of token ids, and which of them begin a word.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
  """

  splits: dict[str, Examples]
  with_unlabelled: Examples
  label_facts: LabelFacts
  vocabulary: Vocabulary
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]


def load(
  settings: DataSettings,
  workdir: str,
  tokenizer=None,
  labels: Labels | None = CLASSES,
) -> Data:
  """Reads, splits and tokenises, with the vocabulary of the workdir if any.

  What was read before is taken from `store`. Writes nothing into the workdir:
  `files` of the result are to be stored there.

  Args:
    workdir: folder of a run; '' for none.
    tokenizer: that of a new run; None: it has a vocabulary of its own.
    labels: how the task reads them; None: it does not.

  Raises:
    UserError: the data is invalid, or not that of this workdir.
  """
  source, directory = settings.dataset(), settings.dir
  # Data that a program makes is made again as fast as it is read. A class that
  # inherits its key may read otherwise.
  key_of = vars(type(source)).get('key')
  store = Store(default_folder() if key_of else None)
  rows, key = _read(
    store,
    directory,
    lambda: source.read(directory, settings.seed),
    lambda: key_of(source, directory, digest) if key_of else None,
  )
  reader = labels or Labels()
  chosen = selection.stored(store, key, rows, source, settings, reader)
  is_new = not facts.exist(workdir)
  if not is_new:
    facts.check(workdir, chosen.facts)
    tokenizer = encoding.read_tokenizer(workdir)
  elif tokenizer is None:
    tokenizer = encoding.vocabulary(store, rows, chosen, settings.vocabulary)
  arrays = encoding.tokens(store, key, rows, tokenizer)
  if is_new:
    unknown = encoding.unknown_tokens(arrays, chosen.splits)
    for problem in [*chosen.problems, *unknown]:
      log(f'WARNING: {problem}')
  files = {
    'tokenizer.json': tokenizer.to_str(pretty=True),
    'data.json': json.dumps(chosen.facts, indent=2),
  }
  known = LabelFacts.of(chosen.facts)
  return _data(
    arrays, rows, chosen.splits, reader, known, tokenizer, settings, files
  )


def load_file(
  settings: DataSettings,
  workdir: str,
  name: str,
  options: Mapping[str, Any],
  labels: Labels | None,
  unknown_labels: str,
) -> Data:
  """Another file than those of a run.

  Args:
    settings: of the run.
    workdir: of the run; its own files are not read.
    name: as in config.data.text.test, of a file below the current folder.
    options: fields of Text in which the file differs from those of the run.
    labels: how the task reads them; None: not at all.
    unknown_labels: what to do with rows of other labels: 'error' or 'drop'.

  Returns:
    the file as the only split, test.

  Raises:
    UserError: the data of the run is made by a program, or the file is invalid.
  """
  source = settings.dataset()
  if not isinstance(source, Text):
    raise UserError(
      f'--file={name} needs a run on texts, but this one has '
      f'config.data.source = {settings.source}'
    )
  source = source.changed(options)
  if labels is None and source.format != 'lines':
    source = source.changed({'label_column': '', 'label_columns': ()})
  directory = '' if source.format == 'hub' else os.getcwd()
  files = {'test': matching(source.format, name, directory, '--file')}
  store = Store(default_folder())
  rows, key = _read(
    store,
    directory,
    lambda: source.read(directory, 0, files),
    lambda: source.key(directory, digest, files),
  )
  reader, known = labels or Labels(), LabelFacts.of(read_facts(workdir))
  _, is_known = reader.values(rows.names, known.names)
  chosen, problems = selection.known(
    rows,
    np.arange(len(rows)),
    is_known[rows.labels],
    '--file',
    unknown_labels,
    reader.allowed(known.names),
    '--unknown_labels=drop leaves such rows out',
  )
  if not len(chosen):
    raise UserError(f'--file={name} has no text of a label of the run')
  tokenizer, splits = encoding.read_tokenizer(workdir), {'test': chosen}
  arrays = encoding.tokens(store, key, rows, tokenizer)
  for problem in [*problems, *encoding.unknown_tokens(arrays, splits)]:
    log(f'WARNING: {problem}')
  return _data(arrays, rows, splits, reader, known, tokenizer, settings, {})


def _read(
  store: Store,
  directory: str,
  read: Callable[[], Mapping[str, Iterable[Row]]],
  key_of: Callable[[], Any],
) -> tuple[Rows, Any]:
  """(the rows of all files, the key of what they depend on)."""

  def make():
    yield from rows_lib.chunks(read(), directory)
    if key_of() != key:
      raise UserError(
        f'a file in {directory} has changed while it was read; run the same '
        'command again'
      )

  key = key_of()
  return rows_lib.of(store.arrays('rows', key, make), directory), key


def _data(
  arrays: Arrays,
  rows: Rows,
  splits: dict[str, np.ndarray],
  reader: Labels,
  label_facts: LabelFacts,
  tokenizer,
  settings: DataSettings,
  files: dict[str, str],
) -> Data:
  """Rows and their tokens as a run has them; logs how many are truncated."""
  values, _ = reader.values(rows.names, label_facts.names)
  examples = {}
  for split, part in splits.items():
    starts, ends = arrays['offsets'][part], arrays['offsets'][part + 1]
    lengths = (ends - starts).astype(np.int32)
    whole = Examples(
      arrays['tokens'], starts, lengths, values[rows.labels[part]]
    )
    examples[split] = encoding.truncated(
      whole, settings.max_length, f'{split} texts'
    )
  longest = max(int(e.lengths.max(initial=0)) for e in examples.values())
  unlabelled = examples.pop(UNLABELLED, None)
  # The first split: train, or that of another file.
  first = next(iter(examples.values()))
  return Data(
    examples,
    first.followed_by(unlabelled) if unlabelled else first,
    label_facts,
    Vocabulary.of(tokenizer),
    bucket_lengths(first.lengths, settings.num_buckets, longest),
    files,
  )
