"""Which rows a run uses: its splits, its classes, and what they consist of."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
from typing import Any

import numpy as np

from experiments.command.errors import UserError, at
from experiments.data.contract import SPLITS
from experiments.data.labels import CLASSES, Classes, Labels, first
from experiments.data.rows import Rows
from experiments.data.splits import fold, hold_out, hold_out_last
from experiments.data.store import Store, packed, unpacked
from experiments.data.text_files import Text

# Types of facts, and of those of train, as data.json holds them.
_KINDS = {
  'labels': list[str], 'of_train': dict, 'counts': dict[str, int],
  'fingerprint': str,
}  # fmt: skip
_OF_TRAIN = {
  'rows': int, 'counts': list[int], 'mean': int | float, 'std': int | float,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Selection:
  """The rows of a run.

  Attributes:
    splits: ascending row indices of train, validation and test.
    facts: what a workdir keeps of them, a JSON value: `labels`, the names of
      the outputs in order, `of_train`, the rest of LabelFacts, `counts` of the
      splits, and `fingerprint`, SHA-256 of splits, labels and texts.
    problems: messages about rows that the settings leave out, and about
      probable mistakes in the rest.
  """

  splits: dict[str, np.ndarray]
  facts: dict[str, Any]
  problems: list[str]


def stored(
  store: Store, key: Any, rows: Rows, source, settings, reader: Labels
) -> Selection:
  """The Selection of select(rows, source, settings, reader), made once.

  The key is a JSON value, all that the rows depend on. With a reader of one's
  own, whose code may change, it is made each time.
  """
  if not type(reader).__module__.startswith('experiments.'):
    return select(rows, source, settings, reader)
  options = [list(source.classes), source.unknown_labels]
  names = ('dir', 'seed', 'validation_fraction', 'test_fraction')
  names += ('num_folds', 'fold', 'split_by')
  how = [getattr(settings, name) for name in names] + [repr(reader)]

  def make():
    about = dict(vars(select(rows, source, settings, reader)))
    yield about.pop('splits') | {'about': packed(about)}

  splits = dict(store.arrays('splits', [key, options, how], make))
  return Selection(**unpacked(splits.pop('about')), splits=splits)


def select(rows: Rows, source, settings, reader: Labels = CLASSES) -> Selection:
  """Splits the rows of a data set by DataSettings, and names the outputs.

  Each split of a stream is a range of rows. A UserError says which split is
  empty, or has labels that are not allowed.
  """
  dtype = np.min_scalar_type(len(rows))
  splits = {name: part.astype(dtype) for name, part in rows.splits().items()}
  _require_rows('train', splits['train'], 0)
  # Of train as it was given, so that all folds have the same classes.
  indices = np.unique(rows.labels[splits['train']])
  labels = list(source.classes) if reader.is_listable else []
  labels = labels or reader.names(rows.names[index] for index in indices)
  if len(labels) < reader.least:
    raise UserError(
      f'the train split has too few labels for config.task: {labels}; at least '
      f'{reader.least} must occur: change config.task, '
      'config.data.text.label_column or labels, or, for several labels of a '
      'text, config.data.text.label_separator or label_columns'
    )
  values, is_known = reader.values(rows.names, labels)
  is_known = is_known[rows.labels]
  _hold_out(rows, splits, settings, source.is_stream)
  remedy = _remedy(source, reader)
  labelled, dropped = {}, []
  for split in SPLITS:
    chosen = splits.get(split, np.zeros(0, dtype))
    labelled[split], lines = known(
      rows, chosen, is_known, split, source.unknown_labels,
      reader.allowed(labels), remedy,
    )  # fmt: skip
    dropped += lines
    with at('; '.join(lines)) if lines else contextlib.nullcontext():
      _require_rows(split, labelled[split], settings.num_folds)
  # The pieces of a stream have no labels.
  of_train = values[rows.labels[[] if source.is_stream else labelled['train']]]
  facts = {
    'labels': labels,
    'of_train': reader.facts(labels, of_train).to_json(),
    'counts': {split: len(chosen) for split, chosen in labelled.items()},
    'fingerprint': _fingerprint(rows, labelled, source.is_stream),
  }
  if source.is_stream:
    # Its pieces are often blank, or equal.
    return Selection(labelled, facts, of_tail(rows, labelled))
  lines = dropped + problems(rows, labelled) + alike(labels)
  if isinstance(reader, Classes):
    of_splits = {
      split: values[rows.labels[labelled[split]]] for split in SPLITS
    }
    lines += missing(of_splits, labels)
  return Selection(labelled, facts, lines)


def _remedy(source, reader: Labels) -> str:
  """What to do about labels that are not known."""
  if source.is_generated:
    return 'change config.task: a program makes these labels'
  owner, listed = type(source).__name__, 'classes'
  if isinstance(source, Text):
    owner, listed = 'config.data.text', 'labels'
  remedy = f"drop such rows with {owner}.unknown_labels='drop'"
  if reader.is_listable:
    remedy = (
      f'list all in {owner}.{listed}, or {remedy}; '
      'an equals sign in a label is doubled there'
    )
  return remedy


def problems(rows: Rows, splits: dict[str, np.ndarray]) -> list[str]:
  """Messages about probable mistakes in the texts of splits, with examples."""
  is_blank = {split: rows.is_blank(splits[split]) for split in splits}
  doubts = [
    (f'empty {split} texts', split, is_blank[split]) for split in splits
  ]
  if len(rows.groups):
    doubts += [
      (f'{split} texts without a group', split, rows.groups[chosen] < 0)
      for split, chosen in splits.items()
    ]
  for other, split in itertools.combinations(splits, 2):
    text = f'{split} texts also in {other} (equal but for case and space)'
    is_seen = np.isin(rows.hashes[splits[split]], rows.hashes[splits[other]])
    doubts.append((text, split, is_seen & ~is_blank[split]))
    if len(rows.groups):
      text = f'{split} texts of groups that are also in {other}'
      groups = rows.groups[splits[split]], rows.groups[splits[other]]
      doubts.append((text, split, np.isin(*groups) & (groups[0] >= 0)))
  lines = []
  for text, split, is_doubted in doubts:
    if is_doubted.any():
      read = map(rows.row, splits[split][is_doubted])
      places = first(f'{row.file}:{row.number}' for row in read)
      lines.append(
        f'{text}: {is_doubted.sum()} of {len(splits[split])} ({places})'
      )
  return lines


def of_tail(rows: Rows, splits: dict[str, np.ndarray]) -> list[str]:
  """Messages about splits of a stream that are of fewer files than it has."""
  ends = np.cumsum([0, *rows.counts.values()])
  lines = []
  for split, chosen in splits.items():
    if split in rows.counts or not len(chosen):
      continue
    begin = ends[np.searchsorted(ends, chosen[0], side='right') - 1]
    files = np.unique(rows.files[begin : chosen[-1] + 1])
    held = np.unique(rows.files[chosen])
    if len(held) < len(files):
      name = os.path.basename(rows.paths[held[0]])
      lines.append(
        f'{split} is the end of the stream, in {len(held)} of {len(files)} '
        f'files of train, from {name} on; config.data.text.{split} names '
        'other files'
      )
  return lines


def missing(values: dict[str, np.ndarray], classes: list[str]) -> list[str]:
  """Messages about classes without texts; values are their indices by split."""
  lines = []
  for split, of_rows in values.items():
    counts = np.bincount(of_rows, minlength=len(classes))
    absent = np.flatnonzero(counts == 0)
    if len(absent):
      lines.append(
        f'classes without {split} texts: {len(absent)} of {len(classes)} '
        f'({first(repr(classes[index]) for index in absent)})'
      )
  return lines


def alike(names: list[str]) -> list[str]:
  """A message about names that differ by the white space around them."""
  seen: dict[str, str] = {}
  for name in names:
    other = seen.setdefault(name.strip(), name)
    if other != name:
      return [
        f'labels {other!r} and {name!r} differ by white space only; correct '
        'the files, or give both one name in config.data.text.labels'
      ]
  return []


def known(
  rows: Rows,
  chosen: np.ndarray,
  is_known: np.ndarray,
  split: str,
  unknown: str,
  allowed: str,
  remedy: str,
) -> tuple[np.ndarray, list[str]]:
  """(the row indices whose labels are known, messages about the others).

  `is_known` is of each row. A UserError says which labels are not what is
  allowed, and ends with the remedy, unless `unknown` is 'drop'.
  """
  others = chosen[~is_known[chosen]]
  if not len(others):
    return chosen, []
  counts = np.bincount(rows.labels[others], minlength=len(rows.names))
  shown = first(
    f'{rows.names[label]!r} {counts[label]}'
    for label in np.argsort(-counts, kind='stable')
    if counts[label]
  )
  if unknown != 'drop':
    row = rows.row(others[0])
    raise UserError(
      f'{row.file} row {row.number}: label {row.label!r} is not '
      f'{allowed}; {len(others)} of {len(chosen)} {split} '
      f'texts have unknown labels ({shown}); {remedy}'
    )
  return chosen[is_known[chosen]], [
    f'{split} texts of unknown labels, dropped: {len(others)} of '
    f'{len(chosen)} ({shown})'
  ]


def _hold_out(
  rows: Rows, splits: dict[str, np.ndarray], settings, is_stream: bool
) -> None:
  """Takes the splits that have no files from train."""
  how = (settings.seed, settings.split_by)
  if settings.num_folds:
    # Texts of test, if there are any, are not used.
    splits['train'], splits['test'] = fold(
      rows, splits['train'], settings.num_folds, settings.fold, *how
    )
  for split, fraction in (
    ('test', settings.test_fraction),
    ('validation', settings.validation_fraction),
  ):
    if split not in splits and fraction > 0:
      splits['train'], splits[split] = (
        hold_out_last(rows, splits['train'], fraction)
        if is_stream
        else hold_out(rows, splits['train'], fraction, *how)
      )


def _require_rows(split: str, chosen, num_folds: int = 0) -> None:
  """UserError if a split is empty."""
  if len(chosen):
    return
  raise UserError(
    f'the {split} split is empty; give config.data.text.{split}, or change '
    'config.data.test_fraction, config.data.validation_fraction or '
    f'config.data.num_folds = {num_folds}'
  )


def _fingerprint(
  rows: Rows, splits: dict[str, np.ndarray], is_stream: bool
) -> str:
  digest = hashlib.sha256()
  for split, chosen in splits.items():
    if is_stream:
      digest.update(f'{split} {len(chosen)}\0'.encode())
      for texts in rows.stream(chosen):
        digest.update(''.join(texts).encode())
      continue
    labels = iter(rows.labels[chosen].tolist())
    for texts in rows.stream(chosen):
      text = ''.join(
        f'{split}\0{rows.names[next(labels)]}\0{text}\0' for text in texts
      )
      digest.update(text.encode())
  return digest.hexdigest()


def read_facts(workdir: str) -> dict[str, Any]:
  """The facts of a workdir, as of Selection; UserError without intact ones."""
  # Late: it imports jax, for which --help does not wait.
  from experiments.workdir.workdir import check_json, read_json

  facts = read_json(workdir, 'data.json', {})
  if not facts:
    raise UserError(
      f'{workdir}/data.json has no facts; is --workdir the folder of a run?'
    )
  check_json(workdir, 'data.json', facts, _KINDS, _KINDS)
  of_train = facts['of_train']
  check_json(workdir, 'data.json', of_train, _OF_TRAIN, _OF_TRAIN)
  return facts


def check_facts(workdir: str, facts: dict[str, Any]) -> None:
  """UserError if these are not the facts of the workdir."""
  known = read_facts(workdir)
  if known == facts:
    return
  then, now = known['counts'], facts['counts']
  what = f'it had {then} rows, and has {now}'
  if then == now:
    what = f'it has {now} rows as before, with other contents'
  raise UserError(
    f'the data has changed since {workdir} was created: {what}; restore it in '
    'config.data.dir, or choose another --workdir'
  )
