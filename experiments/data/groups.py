"""Groups of rows, such as those of an author, which no two splits share.

The rows of a group have the same value in a column of the files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import withheld
from experiments.data import readers
from experiments.data.contract import Files
from experiments.data.labels import Listed
from experiments.data.rows import Rows, distinct
from experiments.data.store import Arrays
from experiments.data.text_files import Text


def read(
  source: Text, directory: str, column: str, rows: Rows
) -> Iterator[Arrays]:
  """Yields `groups`, int32, the group of each of the rows, in their order.

  It is -1 for a row that has none, which is allowed where rows are not split:
  also of files without the column.

  A UserError says which row of train has none, or that the rows are not those
  of the files.
  """
  index: dict[str, int] = {}
  groups, files = np.full(len(rows), -1, np.int32), source.files(directory)
  for split, chosen in rows.splits().items():
    values = _values(source, files.get(split, ()), column)
    numbered = (
      (n, index.setdefault(name, len(index)) if name else -1)
      for n, name in values
    )
    try:
      # They were said of the texts.
      with withheld():
        found = np.fromiter(numbered, np.dtype((np.int64, 2))).astype(int)
    except UserError:
      # There is no such column.
      if split == 'train':
        raise
      continue
    if split == 'train' and (found[:, 1] < 0).any():
      row = rows.row(chosen[found[:, 1].argmin()])
      raise UserError(
        f'{row.file} row {row.number}: column {column!r} is empty or a list, '
        'and each row must have one group; correct or remove the row, or '
        'change config.data.split_by'
      )
    if not np.array_equal(rows.numbers[chosen], found[:, 0]):
      raise UserError(
        f'config.data.split_by = {column!r} needs the rows of the files as '
        f'they are, and {type(source).__name__} reads others; write '
        "'text' or 'sentence'"
      )
    groups[chosen] = found[:, 1]
  yield {'groups': groups}


def _values(source: Text, files: Files, column: str) -> Iterator:
  """(number, value of the column or '') of each row of a split."""
  for _, path in files:
    for number, cells, _ in readers.rows(source, path, [column]):
      if cells is None:
        continue
      yield number, '' if isinstance(cells[0], Listed) else cells[0].strip()


def parted(
  rows: Rows, chosen: np.ndarray, shares: np.ndarray, seed: int
) -> np.ndarray:
  """The part of each of the chosen rows: shares of them, of whole groups.

  Each part has a group, and its share of rows but for less than the size of the
  largest group; of two parts, for half of it, unless one is a single group. A
  group goes where it leaves the least sum over parts of the squared differences
  from the share, of all rows and of those of each label. Larger groups come
  first, in powers of two; the seed draws their order.

  Args:
    shares: equal, or of two parts.

  Raises:
    UserError: there are fewer groups than parts.
  """
  group_of, first = distinct(rows.groups[chosen])
  if len(first) < len(shares):
    raise UserError(
      f'{len(shares)} splits or folds of {len(chosen)} texts need as many '
      f'groups, and the texts have {len(first)} of config.data.split_by; name '
      'another column, or change config.data.test_fraction, '
      'config.data.validation_fraction or config.data.num_folds'
    )
  sizes, width = np.bincount(group_of), len(rows.names)
  largest = sizes.max()
  # How many rows of each label a group has, one after another.
  pairs, counts = np.unique(
    group_of * width + rows.labels[chosen], return_counts=True
  )
  owner, labels = np.divmod(pairs, width)
  bounds = np.searchsorted(owner, np.arange(len(sizes) + 1))
  drawn = np.random.default_rng(seed).permutation(len(sizes))
  order = np.lexsort((drawn, -np.frexp(sizes)[1]))
  part_of, is_empty = np.empty(len(sizes), int), np.ones(len(shares), bool)
  # Rows that each part lacks of its share of those so far.
  lacks, by_label = np.zeros(len(shares)), np.zeros((len(shares), width))
  for left, group in zip(range(len(sizes), 0, -1), order, strict=True):
    at = slice(bounds[group], bounds[group + 1])
    size, of_label = sizes[group], counts[at]
    lacks += shares * size
    # So that what parts lack differs by the largest group at most.
    may_take = lacks >= lacks.max() - (largest - size)
    if left <= is_empty.sum():
      may_take = is_empty
    lack = by_label[:, labels[at]] + shares[:, None] * of_label
    gain = (2 * lack - of_label) * of_label
    gain = (gain.sum(1) + (2 * lacks - size) * size) / shares
    part = np.where(may_take, gain, -np.inf).argmax()
    part_of[group], is_empty[part] = part, False
    lacks[part] -= size
    lack[part] -= of_label
    by_label[:, labels[at]] = lack
  return part_of[group_of]


def balance(
  rows: Rows, splits: dict[str, np.ndarray], column: str
) -> list[str]:
  """A message about how near the labels of what was split are to those of all.

  There is none where the files have all splits, or the rows no groups.
  """
  given = rows.splits()['train']
  counts = {
    split: np.bincount(rows.labels[chosen], minlength=len(rows.names))
    for split, chosen in splits.items()
    if np.isin(chosen, given).all()
  }
  if not len(rows.groups) or len(counts) == 1:
    return []
  of_all = np.sum([*counts.values()], axis=0)
  shares = np.array([of / of.sum() for of in counts.values()])
  apart = abs(shares - of_all / of_all.sum())
  part, label = np.unravel_index(apart.argmax(), apart.shape)
  return [
    f'config.data.split_by = {column!r}: {len(np.unique(rows.groups[given]))} '
    'groups are split whole; the share of a label in a split differs from that '
    f'in all by {apart.max():.3f} at most ({rows.names[label]!r} in '
    f'{[*counts][part]})'
  ]
