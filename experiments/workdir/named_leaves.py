"""Leaves of trees by name, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np


def leaves(tree) -> dict[str, object]:
  """Leaves of a tree by name, `block_0/attention/query/kernel`."""
  paths, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {name_of(path): leaf for path, leaf in paths}


def name_of(path) -> str:
  """Name of the leaf at a path of jax.tree_util."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def nest(leaves: Mapping[str, object]) -> dict:
  """Nested dicts of leaves by name, the inverse of `leaves` of such dicts."""
  nested: dict = {}
  for name, leaf in leaves.items():
    *parents, last = name.split('/')
    node = nested
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return nested


def differences(found: Mapping, wanted: Mapping) -> list[str]:
  """How names, shapes and dtypes of arrays differ, a phrase for each array."""
  several = [f'{name} is missing' for name in wanted if name not in found]
  several += [f'{name} is extra' for name in found if name not in wanted]
  for name in wanted:
    if name in found:
      here = (tuple(found[name].shape), np.dtype(found[name].dtype))
      there = (tuple(wanted[name].shape), np.dtype(wanted[name].dtype))
      if here != there:
        several.append(
          f'{name} is {here[1]}{list(here[0])}, not {there[1]}{list(there[0])}'
        )
  return several
