"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError
from experiments.command.log import Reporter, log
from experiments.data import (
  datasets,
  encoding,
  selection,
)
from experiments.data import rows as rows_lib
from experiments.data.batches import Examples, bucket_lengths
from experiments.data.splits import GROUPINGS
from experiments.data.store import Store, default_folder
from experiments.data.text_files import SPLITS, UNLABELLED, Text
from experiments.data.vocabularies import VOCABULARIES, Vocabulary

SOURCES = Table(datasets.DATASETS)
_VOCABULARIES = Table(VOCABULARIES)


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

  def dataset(self):
    """The data set; one that reads files has the options of `text`."""
    is_text = issubclass(self.source.entry, Text)
    return self.source.make(**(vars(self.text) if is_text else {}))

  def labelled_only(self) -> DataSettings:
    """The same data without the unlabelled texts, if there are any."""
    text = dataclasses.replace(self.text, unlabelled=())
    return dataclasses.replace(self, text=text)

  def moved_to(self, directory: str) -> DataSettings:
    """The same data in another folder."""
    return dataclasses.replace(self, dir=directory)


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    with_unlabelled: those of train, followed by the unlabelled ones, of class
      -1.
    labels: names of the classes, by class index.
    vocabulary: number of token ids, and which of them begin a word.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
  """

  splits: dict[str, Examples]
  with_unlabelled: Examples
  labels: list[str]
  vocabulary: Vocabulary
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]


def load(settings: DataSettings, workdir: str, tokenizer=None) -> Data:
  """Reads, splits and tokenises, with the vocabulary of the workdir if any.

  What was read before is taken from `store`. Writes nothing into the workdir:
  `files` of the result are to be stored there.

  Args:
    workdir: folder of a run; '' for none.
    tokenizer: that of a new run; None: it has a vocabulary of its own.

  Raises:
    UserError: the data is invalid, or not that of this workdir.
  """
  source = settings.dataset()
  # Data that a program makes is made again as fast as it is read.
  store = Store(default_folder() if _has_key(source) else None)
  rows, key = _read(store, source, settings)
  chosen = _select(store, key, rows, source, settings)
  counts = {split: len(part) for split, part in chosen.splits.items()}
  facts = {
    'labels': chosen.labels,
    'counts': {split: counts[split] for split in SPLITS},
    'fingerprint': chosen.fingerprint,
  }
  if UNLABELLED in counts:
    more = {'count': counts[UNLABELLED], 'fingerprint': chosen.unlabelled}
    facts[UNLABELLED] = more
  for line in chosen.dropped:
    log(line)
  if workdir and os.path.exists(os.path.join(workdir, 'data.json')):
    known = read_facts(workdir)
    if UNLABELLED not in facts:
      # What only evaluates does not read them.
      known.pop(UNLABELLED, None)
    if known != facts:
      raise UserError(
        f'the data has changed since {workdir} was created: '
        f'{_counts(known)} then, {_counts(facts)} now; '
        'restore it, or choose another --workdir'
      )
    tokenizer = encoding.read_tokenizer(workdir)
  else:
    if tokenizer is None:
      tokenizer = _vocabulary(store, rows, chosen, settings.vocabulary)
    for problem in chosen.problems:
      log(f'WARNING: {problem}')
  examples = _examples(store, key, rows, chosen, tokenizer, settings.max_length)
  longest = max(int(part.lengths.max(initial=0)) for part in examples.values())
  train, unlabelled = examples['train'], examples.pop(UNLABELLED, None)
  return Data(
    examples,
    train if unlabelled is None else train.followed_by(unlabelled),
    chosen.labels,
    Vocabulary.of(tokenizer),
    bucket_lengths(train.lengths, settings.num_buckets, longest),
    {
      'tokenizer.json': tokenizer.to_str(pretty=True),
      'data.json': json.dumps(facts, indent=2),
    },
  )


def _counts(facts: dict) -> dict[str, int]:
  """Number of texts of all splits."""
  more = facts.get(UNLABELLED)
  return facts['counts'] | ({UNLABELLED: more['count']} if more else {})


def _read(store, source, settings: DataSettings):
  """(the rows of all files, the key of what they depend on)."""
  directory = settings.dir
  splits = source.read(directory, settings.seed)

  def current():
    is_stored = _has_key(source)
    return source.key(directory, store.digest) if is_stored else None

  def write(writer):
    rows_lib.write(splits, directory, writer)
    if current() != key:
      raise UserError(
        f'config.data.dir = {directory!r}: a file has changed while it was '
        'read; run the same command again'
      )

  key = current()
  return rows_lib.of(store.arrays('rows', key, write), directory), key


def _has_key(source) -> bool:
  """Whether its own class has a key, not a base, which may read otherwise."""
  return 'key' in vars(type(source))


def _select(store, key, rows, source, settings) -> selection.Selection:
  options = ('labels', 'unknown_labels', 'max_copies')
  options = [getattr(source, name, None) for name in options]
  how = ('dir', 'seed', 'validation_fraction', 'test_fraction')
  how += ('num_folds', 'fold', 'split_by')
  how = [getattr(settings, name) for name in how]

  def write(writer):
    selection.select(rows, source, settings).write(writer)

  return selection.of(store.arrays('splits', [key, options, how], write))


def _vocabulary(store, rows, chosen, choice: Call):
  """The vocabulary of the train and the unlabelled texts, trained once."""
  import tokenizers

  def write(writer):
    vocabulary = choice.make()
    report = Reporter('{} texts read for the vocabulary')
    parts = [
      chosen.splits[name]
      for name in ('train', UNLABELLED)
      if name in chosen.splits
    ]
    texts = report.counted(rows.stream(np.sort(np.concatenate(parts))))
    text = vocabulary.train(texts).to_str()
    writer.add(tokenizer=np.frombuffer(text.encode(), np.uint8))

  if ':' in choice.name:
    # Its file may change.
    store = Store(None)
  key = [chosen.fingerprint, chosen.unlabelled, str(choice)]
  key += [tokenizers.__version__]
  arrays = store.arrays('vocabulary', key, write)
  text = arrays['tokenizer'].tobytes().decode()
  return tokenizers.Tokenizer.from_str(text)


def _examples(
  store, key, rows, chosen, tokenizer, max_length: int
) -> dict[str, Examples]:
  """The examples of each split; logs how many are truncated."""
  import tokenizers

  def write(writer):
    dtype = np.min_scalar_type(tokenizer.get_vocab_size() - 1)
    writer.add(offsets=np.zeros(1, np.int64))
    end = 0
    for texts in Reporter('{} texts tokenised').counted(rows.stream()):
      ids = encoding.token_ids(tokenizer, texts)
      ends = np.cumsum([len(i) for i in ids], dtype=np.int64) + end
      end = int(ends[-1])
      writer.add(tokens=encoding.concatenated(ids, dtype), offsets=ends)
    # As in `encode`.
    writer.add(tokens=np.zeros(1, dtype))

  # Equal vocabularies of different runs have equal token ids.
  vocabulary = [tokenizer.to_str(), tokenizers.__version__]
  arrays = store.arrays('tokens', [key, vocabulary], write)
  offsets, found = arrays['offsets'], {}
  for split, part in chosen.splits.items():
    starts = offsets[part]
    lengths = (offsets[part + 1] - starts).astype(np.int32)
    encoding.log_truncated(lengths, max_length, f'{split} texts')
    labels = chosen.class_of(rows)[rows.labels[part]]
    lengths = np.minimum(lengths, max_length)
    found[split] = Examples(arrays['tokens'], starts, lengths, labels)
  return found


def read_facts(workdir: str) -> dict:
  """Labels, counts and fingerprint of the data of a workdir.

  Raises:
    UserError: data.json is missing or corrupt.
  """
  path = os.path.join(workdir, 'data.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir the folder of a run?')
  try:
    with open(path, encoding='utf-8') as file:
      facts = json.load(file)
    if not isinstance(facts, dict) or not {'labels', 'counts'} <= facts.keys():
      raise ValueError('no labels or no counts')
  except ValueError as error:
    raise UserError(f'{path} is corrupt: {error}') from error
  return facts
