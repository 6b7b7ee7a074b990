"""Whether texts of validation or test are among those of train of another run.

Of its texts, a run keeps the least hashes: a sample that is the same for equal
texts, however the files are named, and all of them if they are few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

# Of a workdir.
FILE = 'train_hashes.json'
# Hashes that are kept, and that are sorted at once.
_KEPT, _CHUNK = 1_024, 1_000_000


def sample(hashes: np.ndarray, *rows: np.ndarray) -> np.ndarray:
  """The least distinct hashes of some rows, ascending, at most 1,024.

  Args:
    hashes: uint64, of all rows.
    rows: arrays of row indices.
  """
  least = np.zeros(0, np.uint64)
  for part in rows:
    for start in range(0, len(part), _CHUNK):
      found = hashes[part[start : start + _CHUNK]]
      least = merged([least, found])
  return least


def merged(samples: Iterable[np.ndarray]) -> np.ndarray:
  """The sample of all texts, from samples of some of them."""
  return np.unique(np.concatenate(list(samples)))[:_KEPT]


def seen(
  sample: np.ndarray, held_out: np.ndarray, own: np.ndarray
) -> tuple[int, int]:
  """(texts held out that are in a sample, those that could be).

  Args:
    sample: of the texts of train of another run.
    held_out: hashes of the texts of validation or test.
    own: hashes of train of this run; texts that are there, too, do not count.
  """
  least = np.unique(held_out)
  if len(sample) >= _KEPT:
    least = least[least <= sample[-1]]
  least = np.setdiff1d(least, own)
  return int(np.isin(least, sample).sum()), len(least)


def to_json(sample: np.ndarray) -> str:
  """The content of FILE."""
  return json.dumps(sample.tolist())


def from_json(text: str) -> np.ndarray:
  """What `to_json` wrote."""
  return np.array(json.loads(text), np.uint64)
