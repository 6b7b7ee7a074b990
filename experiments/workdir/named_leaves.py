"""Leaves of trees by name, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def leaves(tree) -> dict[str, Any]:
  """Leaves of a tree by name, `block_0/attention/query/kernel`."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def differences(saved: Mapping, arrays: Mapping) -> list[str]:
  """Phrases on saved arrays that differ from others: names, shapes, dtypes."""
  phrases = [f'{name} is missing' for name in arrays if name not in saved]
  phrases += [f'{name} is extra' for name in saved if name not in arrays]
  for name in arrays:
    if name in saved:
      here, there = _kind(saved[name]), _kind(arrays[name])
      if here != there:
        phrases.append(f'{name} is {here}, not {there}')
  return phrases


def _kind(array) -> str:
  return f'{np.dtype(array.dtype)}{list(array.shape)}'
