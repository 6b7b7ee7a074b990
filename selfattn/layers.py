"""The layers of a stack: which one a hook runs in, and patterns over them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Layer:
  """One layer of a stack; an attention layer by itself is the only one.

  Attributes:
    index: its number, from 0; traced inside a scan over layers and in remat.
    count: the number of layers.
  """

  index: int | jax.Array = 0
  count: int = 1

  def value(self, function: Callable[[int], float]) -> jax.Array:
    """`function(index)` as a float32 scalar.

    The values of all layers are computed while tracing, and the index picks
    one, so that every form of a program has the same bits.
    """
    values = [function(index) for index in range(self.count)]
    return jnp.asarray(np.array(values, np.float32))[self.index]


ALONE = Layer()


class InLayers:
  """The base of hooks and normalisers, which may read `self.layer`."""

  layer: ClassVar[Layer] = ALONE

  def at(self, layer: Layer) -> Self:
    """A copy, equal to this one, for one layer."""
    copied = copy.copy(self)
    # `layer` is no field of the frozen dataclass, so it changes no hash.
    object.__setattr__(copied, 'layer', layer)
    return copied


def period(entries: Sequence) -> int:
  """The length of the shortest start that, repeated, makes all entries."""
  size = len(entries)
  return next(
    first
    for first in range(1, size + 1)
    if all(entries[n] == entries[n % first] for n in range(size))
    and size % first == 0
  )
