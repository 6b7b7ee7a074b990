"""Texts to batches, and a batch as a pure function of the step.

Nothing about the order of the data is ever saved: the examples of an epoch
are shuffled by (seed, epoch), so a run resumes by arithmetic, on any number
of devices.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments import datasets
from experiments.choices import UserError
from experiments.settings import DataSettings
from experiments.vocabulary import PAD, VOCABULARIES

# Batches that are sorted by length together: enough for batches of one
# length, few enough that an epoch stays well shuffled.
_POOL = 50


class Batch(NamedTuple):
  """Arrays of one step; a row of weight 0 is padding.

  Attributes:
    tokens: int32 (batch, length).
    lengths: int32 (batch,), tokens of each row that are real.
    labels: int32 (batch,).
    weights: float32 (batch,), 1 for an example, 0 for padding.
  """

  tokens: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray
  weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Examples:
  """Tokenised examples of one split, end to end in one array."""

  tokens: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def batch(self, rows: np.ndarray, size: int, length: int) -> Batch:
    """The examples `rows`, padded to `size` rows of `length` tokens."""
    lengths, starts, labels = np.zeros((3, size), np.int32)
    lengths[: len(rows)] = self.lengths[rows]
    starts[: len(rows)] = self.starts[rows]
    labels[: len(rows)] = self.labels[rows]
    column = np.arange(length, dtype=np.int32)
    is_token = column < lengths[:, None]
    index = np.where(is_token, starts[:, None] + column, 0)
    tokens = np.where(is_token, self.tokens[index], PAD).astype(np.int32)
    weights = (np.arange(size) < len(rows)).astype(np.float32)
    return Batch(tokens, lengths, labels, weights)


@dataclasses.dataclass(frozen=True)
class Data:
  """Everything a run reads.

  Attributes:
    splits: train, validation, test.
    labels: names of the classes, by their number.
    vocab_size: number of token ids.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: name and text of what a workdir keeps of the data.
  """

  splits: dict[str, Examples]
  labels: list[str]
  vocab_size: int
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]


def load(settings: DataSettings, workdir: str) -> Data:
  """Reads, splits and tokenises, with the workdir's vocabulary if it has one.

  Writes nothing: `files` of the result are for the workdir.

  Raises:
    UserError: the data is broken, or not what this workdir was made from.
  """
  rows = _read_splits(settings)
  labels = _labels(rows, settings)
  facts = {
    'labels': labels,
    'counts': {split: len(rows[split]) for split in rows},
    'fingerprint': _fingerprint(rows),
  }
  if os.path.exists(os.path.join(workdir, 'data.json')):
    known = read_facts(workdir)
    if known != facts:
      raise UserError(
        f'the data is not what {workdir} was made from: '
        f'{known["counts"]} then, {facts["counts"]} now; '
        'restore it, or choose another --workdir'
      )
    tokenizer = read_tokenizer(workdir)
  else:
    chosen = settings.vocabulary
    vocabulary = VOCABULARIES[chosen.name](**chosen.options)
    tokenizer = vocabulary.train(row.text for row in rows['train'])

  splits = {
    split: _encode(tokenizer, rows[split], labels, settings.max_length)
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


def _read_splits(settings: DataSettings) -> dict[str, list[datasets.Row]]:
  source = datasets.DATASETS[settings.source.name](**settings.source.options)
  rows = source.read(settings.dir, settings.seed)
  for split, fraction in (
    ('test', settings.test_fraction),
    ('validation', settings.validation_fraction),
  ):
    if split not in rows and fraction > 0:
      rows['train'], rows[split] = datasets.cut(
        rows['train'], fraction, settings.seed
      )
  for split in datasets.SPLITS:
    if not rows.get(split):
      raise UserError(
        f'the {split} split is empty; name files for it, or set '
        f'config.data.{"test" if split == "test" else "validation"}_fraction'
      )
  return {split: rows[split] for split in datasets.SPLITS}


def _labels(rows, settings: DataSettings) -> list[str]:
  named = settings.source.options.get('labels', ())
  labels = [entry.partition('=')[2] or entry for entry in named]
  labels = labels or sorted({row.label for row in rows['train']})
  if len(labels) < 2:
    raise UserError(f'the train split has one class only: {labels}')
  for split in rows:
    for row in rows[split]:
      if row.label not in labels:
        raise UserError(
          f'{row.file} row {row.number}: label {row.label!r} of the {split} '
          f'split is not one of {labels}'
        )
  return labels


def _fingerprint(rows) -> str:
  digest = hashlib.sha256()
  for split, examples in rows.items():
    for row in examples:
      digest.update(f'{split}\0{row.label}\0{row.text}\0'.encode())
  return digest.hexdigest()


def read_facts(workdir: str) -> dict:
  """Labels, counts and fingerprint of the data a workdir was made from.

  Raises:
    UserError: there are none.
  """
  path = os.path.join(workdir, 'data.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir that of a run?')
  with open(path) as file:
    return json.load(file)


def read_tokenizer(workdir: str):
  """The vocabulary of a workdir.

  Raises:
    UserError: there is none, or it is torn.
  """
  import tokenizers

  path = os.path.join(workdir, 'tokenizer.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir that of a run?')
  try:
    return tokenizers.Tokenizer.from_file(path)
  # The library raises bare Exception for a file it cannot parse.
  except Exception as error:
    raise UserError(f'{path} is not a vocabulary: {error}') from error


def encode(tokenizer, texts: list[str], max_length: int) -> Examples:
  """Ids of each text, cut to max_length; labels are all 0."""
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
  ids = [np.asarray(e.ids[:max_length], np.int32) for e in encoded]
  lengths = np.array([len(i) for i in ids], np.int32)
  # A last 0, so that an empty split and empty texts have a token to point at.
  tokens = np.concatenate([*ids, np.zeros(1, np.int32)])
  starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)[: len(ids)]
  return Examples(tokens, starts, lengths, np.zeros(len(ids), np.int32))


def _encode(tokenizer, rows, labels: list[str], max_length: int) -> Examples:
  examples = encode(tokenizer, [row.text for row in rows], max_length)
  ids = {label: index for index, label in enumerate(labels)}
  return dataclasses.replace(
    examples, labels=np.array([ids[row.label] for row in rows], np.int32)
  )


def bucket_lengths(
  lengths: np.ndarray, num_buckets: int, longest: int
) -> tuple[int, ...]:
  """At most num_buckets lengths that pad the given ones least.

  Exact, by dynamic programming over candidate lengths: all of them, or
  quantiles where there are many. The last one is `longest`, or the greatest
  of `lengths` if that is more.
  """
  quantiles = np.quantile(lengths, np.linspace(0, 1, 257), method='higher')
  longest = max(1, longest, int(lengths.max()))
  ends = np.unique([0, *quantiles, longest]).astype(int)
  ordered = np.sort(lengths)
  count = np.searchsorted(ordered, ends, side='right')
  tokens = np.concatenate([[0], np.cumsum(ordered)])[count]
  # Empty texts count as inside the first bucket, whichever it is.
  count[0] = 0
  # padding[i, j]: what lengths in (ends[i], ends[j]] need to reach ends[j].
  padding = ends * (count - count[:, None]) - (tokens - tokens[:, None])
  padding = np.where(ends > ends[:, None], padding, np.inf)

  best, choices = padding[0], []
  for _ in range(1, min(num_buckets, len(ends) - 1)):
    total = best[:, None] + padding
    choices.append(total.argmin(axis=0))
    best = total.min(axis=0)
  cuts = [len(ends) - 1]
  for choice in reversed(choices):
    cuts.append(int(choice[cuts[-1]]))
  return tuple(int(ends[cut]) for cut in reversed(cuts))


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """Batches of the training split by step, from 0, without end.

  Every epoch holds each example once; its last batch may be short. Texts of
  similar length share a batch.
  """

  examples: Examples
  batch_size: int
  seed: int
  bucket_lengths: tuple[int, ...]
  _orders: dict = dataclasses.field(default_factory=dict, repr=False)

  @property
  def steps_per_epoch(self) -> int:
    """Batches of an epoch, the short one included."""
    return -(-len(self.examples) // self.batch_size)

  def __call__(self, step: int) -> Batch:
    """The batch of update `step` + 1."""
    epoch, index = divmod(step, self.steps_per_epoch)
    if epoch not in self._orders:
      self._orders.clear()
      self._orders[epoch] = self._order(epoch)
    rows = self._orders[epoch][index]
    length = fit(int(self.examples.lengths[rows].max()), self.bucket_lengths)
    return self.examples.batch(rows, self.batch_size, length)

  def _order(self, epoch: int) -> list[np.ndarray]:
    rng = np.random.default_rng((self.seed, epoch))
    shuffled = rng.permutation(len(self.examples))
    batches = []
    for start in range(0, len(shuffled), _POOL * self.batch_size):
      pool = shuffled[start : start + _POOL * self.batch_size]
      pool = pool[np.argsort(self.examples.lengths[pool], kind='stable')]
      batches += [
        pool[first : first + self.batch_size]
        for first in range(0, len(pool), self.batch_size)
      ]
    return [batches[index] for index in rng.permutation(len(batches))]


def eval_batches(
  examples: Examples, batch_size: int, lengths: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Every example once, short ones first: (rows in the split, batch)."""
  order = np.argsort(examples.lengths, kind='stable')
  for start in range(0, len(order), batch_size):
    rows = order[start : start + batch_size]
    length = fit(int(examples.lengths[rows].max()), lengths)
    yield rows, examples.batch(rows, batch_size, length)


def fit(length: int, lengths: tuple[int, ...]) -> int:
  """The shortest of `lengths` that holds `length` tokens."""
  return next(bucket for bucket in lengths if bucket >= length)
