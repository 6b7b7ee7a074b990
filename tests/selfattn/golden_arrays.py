"""What other libraries compute, as scripts/make_*goldens.py have stored it."""

import functools
import pathlib

import numpy as np


@functools.cache
def stored(file):
  """All arrays of a file, by their names."""
  path = pathlib.Path(__file__).parent / f'goldens/{file}.npz'
  with np.load(path) as arrays:
    return dict(arrays)


def case(file, name):
  """The arrays of one case, by their names within it."""
  start = f'{name}/'
  return {
    key.removeprefix(start): array
    for key, array in stored(file).items()
    if key.startswith(start)
  }
