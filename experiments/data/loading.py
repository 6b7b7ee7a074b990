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
from experiments.data.contract import Dataset, Tokenization
from experiments.data.splits import GROUPINGS
from experiments.data.store import (
  Arrays,
  Store,
  default_folder,
  digest,
  packed,
  unpacked,
)
from experiments.data.text_files import SPLITS, UNLABELLED, Text
from experiments.data.vocabularies import (
  SPECIAL_TOKENS,
  UNK,
  VOCABULARIES,
  Vocabulary,
)

# Warn if a greater part of the tokens of a split is unknown.
_MANY_UNKNOWN = 0.1

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
  store = _store(source)
  rows, key = _read(store, source, settings)
  chosen = _select(store, key, rows, source, settings)
  for line in chosen.dropped:
    log(line)
  facts = _facts(chosen)
  is_new = not (workdir and os.path.exists(_facts_path(workdir)))
  if not is_new:
    _check_facts(workdir, facts)
    tokenizer = encoding.read_tokenizer(workdir)
  elif tokenizer is None:
    tokenizer = _vocabulary(store, rows, chosen, settings.vocabulary)
  arrays = _tokens(store, key, rows, tokenizer)
  if is_new:
    for problem in [*chosen.problems, *_unknown_tokens(arrays, chosen.splits)]:
      log(f'WARNING: {problem}')
  examples = _examples(arrays, rows, chosen.splits, chosen.labels, settings)
  files = {
    'tokenizer.json': tokenizer.to_str(pretty=True),
    'data.json': json.dumps(facts, indent=2),
  }
  return _data(examples, 'train', chosen.labels, tokenizer, settings, files)


def load_file(
  settings: DataSettings,
  workdir: str,
  name: str,
  split: str,
  unknown_labels: str,
) -> Data:
  """Another file with the columns and the format of those of a run.

  Args:
    settings: of the run.
    workdir: of the run; its own files are not read.
    name: as in config.data.text.test, of a file below the current folder.
    split: 'test', or UNLABELLED for a file that needs no labels.
    unknown_labels: 'error', or 'drop': what to do with rows of labels that are
      no classes of the run.

  Returns:
    the file as the only split, test.

  Raises:
    UserError: the data of the run is made by a program, or the file is invalid.
  """
  if not issubclass(settings.source.entry, Text):
    raise UserError(
      f'--file={name} needs a run on texts, but this one has '
      f'config.data.source = {settings.source}'
    )
  files = dict.fromkeys((*SPLITS, UNLABELLED), ()) | {split: (name,)}
  source = dataclasses.replace(settings.dataset(), **files)
  store = _store(source)
  here = settings.moved_to(settings.dir and os.getcwd())
  rows, key = _read(store, source, here)
  labels, chosen = read_facts(workdir)['labels'], np.arange(len(rows))
  if split != UNLABELLED:
    chosen, dropped = selection.known(
      rows,
      chosen,
      labels,
      split,
      unknown_labels,
      '--unknown_labels=drop leaves such rows out',
    )
    for line in dropped:
      log(line)
  if not len(chosen):
    raise UserError(f'--file={name} has no text of a class of the run')
  tokenizer, splits = encoding.read_tokenizer(workdir), {'test': chosen}
  arrays = _tokens(store, key, rows, tokenizer)
  for problem in _unknown_tokens(arrays, splits):
    log(f'WARNING: {problem}')
  examples = _examples(arrays, rows, splits, labels, settings)
  return _data(examples, 'test', labels, tokenizer, settings, {})


def read_facts(workdir: str) -> dict:
  """Labels, counts and fingerprint of the data of a workdir.

  Raises:
    UserError: data.json is missing or corrupt.
  """
  path = _facts_path(workdir)
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


def _facts_path(workdir: str) -> str:
  return os.path.join(workdir, 'data.json')


def _facts(chosen: selection.Selection) -> dict:
  """What a workdir keeps of the data."""
  counts = {split: len(part) for split, part in chosen.splits.items()}
  count = counts.pop(UNLABELLED, 0)
  more = {'count': count, 'fingerprint': chosen.unlabelled}
  return {
    'labels': chosen.labels,
    'counts': counts,
    'fingerprint': chosen.fingerprint,
  } | ({UNLABELLED: more} if chosen.unlabelled else {})


def _check_facts(workdir: str, facts: dict) -> None:
  """UserError if the data is not that of the workdir."""
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


def _counts(facts: dict) -> dict[str, int]:
  """Number of texts of all splits."""
  more = facts.get(UNLABELLED)
  return facts['counts'] | ({UNLABELLED: more['count']} if more else {})


def _store(source) -> Store:
  # Data that a program makes is made again as fast as it is read.
  return Store(default_folder() if _has_key(source) else None)


def _read(store, source, settings: DataSettings):
  """(the rows of all files, the key of what they depend on)."""
  directory = settings.dir
  splits = source.read(directory, settings.seed)

  def current():
    return source.key(directory, digest) if _has_key(source) else None

  def make():
    yield from rows_lib.chunks(splits, directory)
    if current() != key:
      raise UserError(
        f'config.data.dir = {directory!r}: a file has changed while it was '
        'read; run the same command again'
      )

  key = current()
  return rows_lib.of(store.arrays('rows', key, make), directory), key


def _has_key(source) -> bool:
  """Whether its own class has a key, not a base, which may read otherwise."""
  return 'key' in vars(type(source))


def _select(store, key, rows, source, settings) -> selection.Selection:
  options = ('labels', 'unknown_labels', 'max_copies')
  options = [getattr(source, name, None) for name in options]
  how = ('dir', 'seed', 'validation_fraction', 'test_fraction')
  how += ('num_folds', 'fold', 'split_by')
  how = [getattr(settings, name) for name in how]

  def make():
    yield selection.select(rows, source, settings).arrays()

  return selection.of(store.arrays('splits', [key, options, how], make))


def _vocabulary(store, rows, chosen, choice: Call):
  """The vocabulary of the train and the unlabelled texts, trained once."""
  import tokenizers

  def make():
    vocabulary = choice.make()
    report = Reporter('{} texts read for the vocabulary')
    parts = [
      chosen.splits[name]
      for name in ('train', UNLABELLED)
      if name in chosen.splits
    ]
    texts = report.counted(rows.stream(np.sort(np.concatenate(parts))))
    tokenizer = vocabulary.train(texts)
    first = [tokenizer.id_to_token(n) for n in range(len(SPECIAL_TOKENS))]
    if first != SPECIAL_TOKENS:
      raise UserError(
        f'config.data.vocabulary = {choice}: its first ids are {first}, and '
        f'must be {SPECIAL_TOKENS}'
      )
    yield {'tokenizer': packed(tokenizer.to_str())}

  if ':' in choice.name:
    # Its file may change.
    store = Store(None)
  key = [chosen.fingerprint, chosen.unlabelled, str(choice)]
  key += [tokenizers.__version__]
  arrays = store.arrays('vocabulary', key, make)
  return tokenizers.Tokenizer.from_str(unpacked(arrays['tokenizer']))


def _tokens(store, key, rows, tokenizer) -> Arrays:
  """Of all rows: `tokens`, `offsets` as of texts, and `unknown` counts."""
  import tokenizers

  def make():
    dtype = np.min_scalar_type(tokenizer.get_vocab_size() - 1)
    end = 0
    yield {'offsets': np.zeros(1, np.int64)}
    for texts in Reporter('{} texts tokenised').counted(rows.stream()):
      ids, lengths = encoding.token_ids(tokenizer, texts)
      text_of = np.repeat(np.arange(len(texts)), lengths)
      unknown = np.bincount(text_of[ids == UNK], minlength=len(texts))
      yield {
        'tokens': ids.astype(dtype),
        'offsets': np.cumsum(lengths, dtype=np.int64) + end,
        'unknown': unknown.astype(np.int32),
      }
      end += len(ids)
    # As in `encode`.
    yield {'tokens': np.zeros(1, dtype)}

  # Equal vocabularies of different runs have equal token ids.
  vocabulary = [tokenizer.to_str(), tokenizers.__version__]
  return store.arrays('tokens', [key, vocabulary], make)


def _examples(
  arrays: Arrays, rows, splits, labels: list[str], settings: DataSettings
) -> dict[str, Examples]:
  """The examples of each split; logs how many are truncated."""
  offsets, examples = arrays['offsets'], {}
  class_of = selection.class_of(rows, labels)
  for split, part in splits.items():
    starts, ends = offsets[part], offsets[part + 1]
    whole = Examples(
      arrays['tokens'],
      starts,
      (ends - starts).astype(np.int32),
      class_of[rows.labels[part]],
    )
    examples[split] = encoding.truncated(
      whole, settings.max_length, f'{split} texts'
    )
  return examples


def _data(examples, train: str, labels, tokenizer, settings, files) -> Data:
  """Examples as a run has them; lengths are fitted to those of `train`."""
  unlabelled, trained = examples.pop(UNLABELLED, None), examples[train]
  parts = [*examples.values(), *([unlabelled] if unlabelled else [])]
  longest = max(int(part.lengths.max(initial=0)) for part in parts)
  return Data(
    examples,
    trained.followed_by(unlabelled) if unlabelled else trained,
    labels,
    Vocabulary.of(tokenizer),
    bucket_lengths(trained.lengths, settings.num_buckets, longest),
    files,
  )


def _unknown_tokens(arrays: Arrays, splits) -> list[str]:
  """Messages about splits with many tokens that are not in the vocabulary."""
  lines, offsets = [], arrays['offsets']
  for split, chosen in splits.items():
    unknown = int(arrays['unknown'][chosen].sum())
    count = int((offsets[chosen + 1] - offsets[chosen]).sum())
    if split in ('validation', 'test') and unknown > _MANY_UNKNOWN * count:
      lines.append(
        f'unknown tokens of {split}: {unknown} of {count} '
        f'({unknown / count:.0%}); config.data.vocabulary=bpe has none'
      )
  return lines
