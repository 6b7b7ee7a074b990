"""Whether texts of validation or test are among those of train of another run.

Of its texts, a run keeps the least hashes: a sample that is the same for equal
texts, however the files are named, and all of them if they are few.
"""

from __future__ import annotations

import json

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
      least = merged(least, hashes[part[start : start + _CHUNK]])
  return least


def merged(*samples: np.ndarray) -> np.ndarray:
  """The sample of all texts, from samples of some of them."""
  return np.unique(np.concatenate(samples))[:_KEPT]


def seen(
  sample: np.ndarray, held_out: np.ndarray, own: np.ndarray
) -> tuple[int, int]:
  """(texts held out that are in a sample, those that could be).

  Args:
    sample: of the texts of train of another run.
    held_out: hashes of the texts of validation or test.
    own: hashes of train of this run; texts that are there, too, do not count.
  """
  if len(sample) >= _KEPT:
    held_out, own = (each[each <= sample[-1]] for each in (held_out, own))
  compared = np.setdiff1d(held_out, own)
  return int(np.isin(compared, sample).sum()), len(compared)


def to_json(sample: np.ndarray) -> str:
  """The content of FILE."""
  return json.dumps(sample.tolist())


def from_json(text: str) -> np.ndarray:
  """What `to_json` wrote."""
  return np.array(json.loads(text), np.uint64)
