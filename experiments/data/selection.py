"""Which rows a run uses: its splits, its classes, and what they consist of."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
import re

import numpy as np

from experiments.command.errors import UserError
from experiments.data.problems import problems
from experiments.data.rows import Rows
from experiments.data.splits import first_copies, fold, hold_out
from experiments.data.store import Arrays, Writer
from experiments.data.text_files import SPLITS, UNLABELLED


@dataclasses.dataclass(frozen=True)
class Selection:
  """The rows of a run.

  Attributes:
    splits: ascending row indices of train, validation and test, and of the
      unlabelled texts, if there are any.
    labels: names of the classes, by class index.
    fingerprint: SHA-256 of splits, labels and texts.
    unlabelled: the same of the unlabelled texts; '' if there are none.
    dropped: messages about rows that the settings leave out.
    problems: messages about probable mistakes in the rest.
  """

  splits: dict[str, np.ndarray]
  labels: list[str]
  fingerprint: str
  unlabelled: str
  dropped: list[str]
  problems: list[str]

  def write(self, writer: Writer) -> None:
    """Adds the arrays of `of`."""
    about = dataclasses.asdict(self)
    del about['splits']
    about = np.frombuffer(json.dumps(about).encode(), np.uint8)
    writer.add(about=about, **self.splits)

  def class_of(self, rows: Rows) -> np.ndarray:
    """int32, the class of each label of `rows`; -1 for those left out."""
    index_of = {label: index for index, label in enumerate(self.labels)}
    return np.array([index_of.get(name, -1) for name in rows.names], np.int32)


def of(arrays: Arrays) -> Selection:
  """The selection whose arrays `Selection.write` has added."""
  about = json.loads(arrays['about'].tobytes())
  names = [name for name in (*SPLITS, UNLABELLED) if name in arrays]
  splits = {name: arrays[name] for name in names}
  return Selection(splits, **about)


def select(rows: Rows, source, settings) -> Selection:
  """Splits the rows, and names their classes.

  Args:
    source: a data set of experiments.data.datasets.
    settings: experiments.data.loading.DataSettings.

  Raises:
    UserError: a split is empty, or has labels that are no classes.
  """
  dropped: list[str] = []
  given = _given(rows, source, dropped)
  splits = _splits(rows, given, settings, dropped)
  labels = _labels(rows, given['train'], source)
  labelled = {
    split: _of_labels(rows, split, splits[split], labels, source, dropped)
    for split in SPLITS
  }
  for split, chosen in labelled.items():
    _require_rows(split, chosen, settings.num_folds)
  splits |= labelled
  return Selection(
    splits,
    labels,
    _fingerprint(rows, labelled),
    _fingerprint(rows, {UNLABELLED: splits[UNLABELLED]})
    if UNLABELLED in splits
    else '',
    dropped,
    problems(rows, labelled, labels),
  )


def _given(rows: Rows, source, dropped) -> dict[str, np.ndarray]:
  """The rows of each split that has files, without those that are left out."""
  dtype = np.min_scalar_type(len(rows))
  found = {name: part.astype(dtype) for name, part in rows.splits().items()}
  found, messages = without_copies(
    rows, found, getattr(source, 'max_copies', 0)
  )
  dropped += messages
  return found


def _splits(rows: Rows, given, settings, dropped) -> dict[str, np.ndarray]:
  """Those, and the parts of train that are held out."""
  found = dict(given)
  how = (settings.seed, settings.split_by)
  if settings.num_folds:
    # Texts of test, if there are any, are not used.
    found['train'], found['test'] = fold(
      rows, found['train'], settings.num_folds, settings.fold, *how
    )
  for split, fraction in (
    ('test', settings.test_fraction),
    ('validation', settings.validation_fraction),
  ):
    if split not in found and fraction > 0:
      found['train'], found[split] = hold_out(
        rows, found['train'], fraction, *how
      )
  for split in SPLITS:
    _require_rows(split, found.get(split, ()), settings.num_folds)
  splits = {split: found[split] for split in SPLITS}
  if UNLABELLED in found:
    splits[UNLABELLED] = _unseen(rows, found[UNLABELLED], splits, dropped)
  return splits


def _unseen(rows: Rows, unlabelled, splits, dropped) -> np.ndarray:
  """The unlabelled rows whose texts are not in validation nor in test."""
  held_out = np.concatenate([splits['validation'], splits['test']])
  is_seen = np.isin(rows.hashes[unlabelled], rows.hashes[held_out])
  if is_seen.any():
    dropped.append(
      f'unlabelled texts dropped: {is_seen.sum()} of {len(unlabelled)}, which '
      'are in validation or test'
    )
  return unlabelled[~is_seen]


def without_copies(
  rows: Rows, splits: dict[str, np.ndarray], most: int
) -> tuple[dict[str, np.ndarray], list[str]]:
  """(the first `most` rows of each text and label of a split, messages).

  Args:
    most: 0 keeps all.
  """
  if not most:
    return splits, []
  kept, messages = {}, []
  for split, chosen in splits.items():
    kept[split] = first_copies(rows, chosen, most)
    if left_out := len(chosen) - len(kept[split]):
      messages.append(
        f'{split} rows dropped: {left_out} of {len(chosen)}, more than '
        f'{most} of one text and label (config.data.text.max_copies)'
      )
  return kept, messages


def _require_rows(split: str, chosen, num_folds: int) -> None:
  if len(chosen):
    return
  remedy = f'raise config.data.{split}_fraction'
  if split == 'test' and num_folds:
    remedy = f'lower config.data.num_folds = {num_folds}'
  if split == 'train':
    remedy = (
      'lower config.data.test_fraction or config.data.validation_fraction'
    )
  raise UserError(f'the {split} split is empty; give files for it, or {remedy}')


def _labels(rows: Rows, train: np.ndarray, source) -> list[str]:
  """Names of the classes: those in the settings, or else those in train.

  Train is as it was given, so that all folds have the same classes.
  """
  labels = list(getattr(source, 'classes', ()))
  labels = labels or sorted(
    (rows.names[n] for n in np.unique(rows.labels[train])), key=_by_value
  )
  if len(labels) < 2:
    raise UserError(f'the train split has one class only: {labels}')
  return labels


def _of_labels(rows: Rows, split, chosen, labels, source, dropped):
  """The row indices without those of unknown labels.

  Raises:
    UserError: there are such rows, and the settings do not drop them.
  """
  is_known = np.array([name in set(labels) for name in rows.names], bool)
  is_known = is_known[rows.labels[chosen]]
  unknown = chosen[~is_known]
  if not len(unknown):
    return chosen
  if getattr(source, 'unknown_labels', '') != 'drop':
    row = rows.row(unknown[0])
    raise UserError(
      f'{row.file} row {row.number}: label {row.label!r} of the {split} '
      f'split is not one of {labels}; list all in config.data.text.labels, '
      "or drop such rows with config.data.text.unknown_labels='drop'"
    )
  counts = collections.Counter(rows.labels[unknown].tolist())
  named = sorted((rows.names[label], count) for label, count in counts.items())
  shown = ', '.join(f'{label!r} {count}' for label, count in named)
  dropped.append(
    f'WARNING: {split} texts of unknown labels, dropped: '
    f'{len(unknown)} of {len(chosen)} ({shown})'
  )
  return chosen[is_known]


def _fingerprint(rows: Rows, splits: dict[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for split, chosen in splits.items():
    start = 0
    for texts in rows.stream(chosen):
      labels = rows.labels[chosen[start : start + len(texts)]].tolist()
      start += len(texts)
      text = ''.join(
        f'{split}\0{rows.names[label]}\0{text}\0'
        for label, text in zip(labels, texts, strict=True)
      )
      digest.update(text.encode())
  return digest.hexdigest()


def _by_value(label: str) -> tuple[float, str]:
  """A key that sorts numbers by value, before other labels."""
  is_number = re.fullmatch(r'[+-]?\d+(\.\d+)?', label)
  return (float(label) if is_number else math.inf, label)
