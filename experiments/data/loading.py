"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.values import Choice
from experiments.data import datasets
from experiments.data.batches import Examples, bucket_lengths, offsets
from experiments.data.splits import fold, hold_out
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

  def moved_to(self, directory: str) -> DataSettings:
    """The same data in another folder."""
    return dataclasses.replace(self, dir=directory)


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    labels: names of the classes, by class index.
    vocab_size: number of token ids.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
  """

  splits: dict[str, Examples]
  labels: list[str]
  vocab_size: int
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]


def load(settings: DataSettings, workdir: str) -> Data:
  """Reads, splits and tokenises, with the vocabulary of the workdir if any.

  Writes nothing: `files` of the result are to be stored in the workdir.

  Args:
    workdir: folder of a run; '' for none.

  Raises:
    UserError: the data is invalid, or not that of this workdir.
  """
  source = datasets.DATASETS[settings.source.name](**settings.source.options)
  rows = _read_splits(source, settings)
  labels = _labels(rows['train'], source)
  rows = _of_labels(rows, labels, source, settings.num_folds)
  facts = {
    'labels': labels,
    'counts': {split: len(rows[split]) for split in rows},
    'fingerprint': _fingerprint(rows),
  }
  if workdir and os.path.exists(os.path.join(workdir, 'data.json')):
    known = read_facts(workdir)
    if known != facts:
      raise UserError(
        f'the data has changed since {workdir} was created: '
        f'{known["counts"]} then, {facts["counts"]} now; '
        'restore it, or choose another --workdir'
      )
    tokenizer = read_tokenizer(workdir)
  else:
    chosen = settings.vocabulary
    vocabulary = VOCABULARIES[chosen.name](**chosen.options)
    tokenizer = vocabulary.train(row.text for row in rows['train'])
    for problem in datasets.problems(rows, labels):
      log(f'WARNING: {problem}')

  splits = {
    split: _encode(
      tokenizer, rows[split], labels, settings.max_length, f'{split} texts'
    )
    for split in rows
  }
  longest = max(int(examples.lengths.max()) for examples in splits.values())
  return Data(
    splits,
    labels,
    tokenizer.get_vocab_size(),
    bucket_lengths(splits['train'].lengths, settings.num_buckets, longest),
    {
      'tokenizer.json': tokenizer.to_str(pretty=True),
      'data.json': json.dumps(facts, indent=2),
    },
  )


def _read_splits(
  source, settings: DataSettings
) -> dict[str, list[datasets.Row]]:
  rows = source.read(settings.dir, settings.seed)
  how = (settings.seed, settings.split_by)
  if settings.num_folds:
    # Texts of test, if there are any, are not used.
    rows['train'], rows['test'] = fold(
      rows['train'], settings.num_folds, settings.fold, *how
    )
  for split, fraction in (
    ('test', settings.test_fraction),
    ('validation', settings.validation_fraction),
  ):
    if split not in rows and fraction > 0:
      rows['train'], rows[split] = hold_out(rows['train'], fraction, *how)
  for split in datasets.SPLITS:
    _require_rows(split, rows.get(split), settings.num_folds)
  return {split: rows[split] for split in datasets.SPLITS}


def _require_rows(split: str, rows, num_folds: int) -> None:
  if rows:
    return
  remedy = f'set config.data.{split}_fraction'
  if split == 'test' and num_folds:
    remedy = f'lower config.data.num_folds = {num_folds}'
  if split == 'train':
    remedy = (
      'lower config.data.test_fraction or config.data.validation_fraction'
    )
  raise UserError(f'the {split} split is empty; give files for it, or {remedy}')


def _labels(train: list[datasets.Row], source) -> list[str]:
  """Names of the classes: those in the settings, or else those in train."""
  named = getattr(source, 'labels', ())
  shown = [entry.partition('=')[2] or entry for entry in named]
  labels = list(dict.fromkeys(shown)) or sorted({row.label for row in train})
  if len(labels) < 2:
    raise UserError(f'the train split has one class only: {labels}')
  return labels


def _of_labels(rows, labels: list[str], source, num_folds: int):
  """Rows by split, without those with unknown labels.

  Raises:
    UserError: there are such rows, and the settings do not drop them.
  """
  known, kept = set(labels), {}
  for split in rows:
    kept[split] = [row for row in rows[split] if row.label in known]
    unknown = [row for row in rows[split] if row.label not in known]
    if unknown and getattr(source, 'unknown_labels', '') != 'drop':
      row = unknown[0]
      raise UserError(
        f'{row.file} row {row.number}: label {row.label!r} of the {split} '
        f'split is not one of {labels}; list all in config.data.text.labels, '
        "or drop such rows with config.data.text.unknown_labels='drop'"
      )
    if unknown:
      counts = sorted(collections.Counter(row.label for row in unknown).items())
      shown = ', '.join(f'{label!r} {count}' for label, count in counts)
      log(
        f'WARNING: {split} texts of unknown labels, dropped: '
        f'{len(unknown)} of {len(rows[split])} ({shown})'
      )
    _require_rows(split, kept[split], num_folds)
  return kept


def _fingerprint(rows) -> str:
  digest = hashlib.sha256()
  for split, examples in rows.items():
    for row in examples:
      digest.update(f'{split}\0{row.label}\0{row.text}\0'.encode())
  return digest.hexdigest()


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
  # The text '[PAD]' is tokenised as characters, not as a special token.
  tokenizer.encode_special_tokens = True
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
  if num_truncated := sum(len(e.ids) > max_length for e in encoded):
    log(
      f'{num_truncated} of {len(texts)} {name} are truncated to {max_length} '
      'tokens (config.data.max_length)'
    )
  ids = [np.asarray(e.ids[:max_length], np.int32) for e in encoded]
  lengths = np.array([len(i) for i in ids], np.int32)
  # One more token, so that the start of an empty last text is a valid index.
  tokens = np.concatenate([*ids, np.zeros(1, np.int32)])
  labels = np.zeros(len(ids), np.int32)
  return Examples(tokens, offsets(lengths), lengths, labels)


def _encode(
  tokenizer, rows, labels: list[str], max_length: int, name: str
) -> Examples:
  examples = encode(tokenizer, [row.text for row in rows], max_length, name)
  ids = {label: index for index, label in enumerate(labels)}
  return dataclasses.replace(
    examples, labels=np.array([ids[row.label] for row in rows], np.int32)
  )
