"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import Reporter, log
from experiments.command.values import Choice
from experiments.data import datasets, selection, vocabularies
from experiments.data import rows as rows_lib
from experiments.data.batches import Examples, bucket_lengths, offsets
from experiments.data.store import Store, default_folder
from experiments.data.text_files import SPLITS, UNLABELLED
from experiments.data.vocabularies import VOCABULARIES


@dataclasses.dataclass(frozen=True)
class DataSettings:
  """The data set, how it is split, and how it is batched."""

  source: Choice
  dir: str
  max_length: int
  seed: int
  validation_fraction: float
  test_fraction: float
  num_folds: int
  fold: int
  split_by: str
  num_buckets: int
  vocabulary: Choice

  def labelled_only(self) -> DataSettings:
    """The same data without the unlabelled texts, if there are any."""
    name = self.source.name
    if not self.source.options.get(UNLABELLED):
      return self
    options = {**self.source.options, UNLABELLED: ()}
    return dataclasses.replace(self, source=Choice(name, {name: options}))

  def moved_to(self, directory: str) -> DataSettings:
    """The same data in another folder."""
    return dataclasses.replace(self, dir=directory)


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    pretraining: those of train, followed by the unlabelled ones, of class -1.
    labels: names of the classes, by class index.
    vocab_size: number of token ids.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
  """

  splits: dict[str, Examples]
  pretraining: Examples
  labels: list[str]
  vocab_size: int
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]


def load(settings: DataSettings, workdir: str) -> Data:
  """Reads, splits and tokenises, with the vocabulary of the workdir if any.

  What was read before is taken from `store`. Writes nothing into the workdir:
  `files` of the result are to be stored there.

  Args:
    workdir: folder of a run; '' for none.

  Raises:
    UserError: the data is invalid, or not that of this workdir.
  """
  source = datasets.DATASETS[settings.source.name](**settings.source.options)
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
      counts = [
        each['counts'] | {UNLABELLED: each[UNLABELLED]['count']}
        if UNLABELLED in each
        else each['counts']
        for each in (known, facts)
      ]
      raise UserError(
        f'the data has changed since {workdir} was created: '
        f'{counts[0]} then, {counts[1]} now; '
        'restore it, or choose another --workdir'
      )
    tokenizer = read_tokenizer(workdir)
  else:
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
    tokenizer.get_vocab_size(),
    bucket_lengths(train.lengths, settings.num_buckets, longest),
    {
      'tokenizer.json': tokenizer.to_str(pretty=True),
      'data.json': json.dumps(facts, indent=2),
    },
  )


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


def _vocabulary(store, rows, chosen, choice: Choice):
  """The vocabulary of the train and the unlabelled texts, trained once."""
  import tokenizers

  def write(writer):
    vocabulary = VOCABULARIES[choice.name](**choice.options)
    report = Reporter('{} texts read for the vocabulary')
    parts = [
      chosen.splits[name]
      for name in ('train', UNLABELLED)
      if name in chosen.splits
    ]
    texts = report.counted(rows.stream(np.sort(np.concatenate(parts))))
    text = vocabulary.train(texts).to_str()
    writer.add(tokenizer=np.frombuffer(text.encode(), np.uint8))

  if VOCABULARIES[choice.name].__module__ != vocabularies.__name__:
    # The file of a config, which may change, has registered it.
    store = Store(None)
  key = [chosen.fingerprint, chosen.unlabelled, choice.name]
  key += [dict(choice.options), tokenizers.__version__]
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
      ids = _ids(tokenizer, texts)
      ends = np.cumsum([len(i) for i in ids], dtype=np.int64) + end
      end = int(ends[-1])
      writer.add(tokens=_concatenated(ids, dtype), offsets=ends)
    # As in `encode`.
    writer.add(tokens=np.zeros(1, dtype))

  # Equal vocabularies of different runs have equal token ids.
  vocabulary = [tokenizer.to_str(), tokenizers.__version__]
  arrays = store.arrays('tokens', [key, vocabulary], write)
  offsets, found = arrays['offsets'], {}
  for split, part in chosen.splits.items():
    starts = offsets[part]
    lengths = (offsets[part + 1] - starts).astype(np.int32)
    _log_truncated(lengths, max_length, f'{split} texts')
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


def read_tokenizer(workdir: str):
  """The vocabulary of a workdir.

  Raises:
    UserError: tokenizer.json is missing or corrupt.
  """
  import tokenizers

  path = os.path.join(workdir, 'tokenizer.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir the folder of a run?')
  try:
    return tokenizers.Tokenizer.from_file(path)
  # The library raises bare Exception for a file that it cannot parse.
  except Exception as error:
    raise UserError(f'{path} is not a vocabulary: {error}') from error


def check_texts(texts: list[str]) -> None:
  """UserError if a text of --text is not valid UTF-8."""
  for text in texts:
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise UserError(f'--text={text!a} is not UTF-8') from error


def encode(
  tokenizer, texts: list[str], max_length: int, name: str = 'texts'
) -> Examples:
  """Token ids of each text, truncated to max_length; labels are all 0.

  Logs how many were truncated.

  Args:
    name: what the texts are called in that message.
  """
  ids = _ids(tokenizer, texts)
  lengths = np.array([len(i) for i in ids], np.int32)
  _log_truncated(lengths, max_length, name)
  lengths = np.minimum(lengths, max_length)
  # One more token, so that the start of an empty last text is a valid index.
  ids = [*(i[:max_length] for i in ids), [0]]
  labels = np.zeros(len(lengths), np.int32)
  tokens = _concatenated(ids, np.int32)
  return Examples(tokens, offsets(lengths), lengths, labels)


def _ids(tokenizer, texts: list[str]) -> list[list[int]]:
  # The text '[PAD]' is tokenised as characters, not as a special token.
  tokenizer.encode_special_tokens = True
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
  return [one.ids for one in encoded]


def _concatenated(ids: list[list[int]], dtype) -> np.ndarray:
  return np.fromiter(itertools.chain.from_iterable(ids), dtype)


def _log_truncated(lengths: np.ndarray, max_length: int, name: str) -> None:
  if num_truncated := int((lengths > max_length).sum()):
    log(
      f'{num_truncated} of {len(lengths)} {name} are truncated to {max_length} '
      'tokens (config.data.max_length)'
    )
