"""What a new run takes of parameters that are there: put in place, and said."""

from __future__ import annotations

import re
from typing import Any

import jax

from experiments.command.log import log
from experiments.workdir.checkpoints import leaves

_BLOCK = re.compile(r'\bblock_\d+\b')


def say(place: str, taken: list[str], skipped: list[str]) -> None:
  """Logs the names of parameters from a place, and of others with reasons."""
  log(f'loaded parameters from {place}: {", ".join(_by_block(taken, skipped))}')
  log(f'skipped parameters: {", ".join(skipped) or "none"}')


def _by_block(taken: list[str], skipped: list[str]) -> list[str]:
  """Names; those that all blocks have are one, since there may be hundreds."""
  some = {_BLOCK.sub('block_*', name).split(' ')[0] for name in skipped}
  named = {}
  for name in taken:
    of_all = _BLOCK.sub('block_*', name)
    named[name if of_all in some else of_all] = None
  return list(named)


def placed_as(drawn):
  """A function that puts an array where the drawn one is."""

  def place(path, array):
    leaf = drawn[path]
    if not isinstance(leaf, jax.Array):
      return array
    return jax.device_put(array.astype(leaf.dtype), leaf.sharding)

  return place


def replaced(params, values: dict[str, Any]):
  """Parameters with other values by name."""
  merged = [values.get(name, leaf) for name, leaf in leaves(params).items()]
  return jax.tree.unflatten(jax.tree.structure(params), merged)
