"""The layers of a stack: which one a hook runs in, and patterns over them."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

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


def narrowed(tree: Any) -> Any:
  """A tree whose arrays of float64, as of JAX's x64 mode, are float32."""

  def narrow(leaf):
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf

  return jax.tree.map(narrow, tree)


class InLayers:
  """The base of hooks and normalisers, which may read `self.layer`.

  Parameters of every subclass are float32, in JAX's x64 mode, too.
  """

  layer: ClassVar[Layer] = ALONE

  def __init_subclass__(cls, **options):
    super().__init_subclass__(**options)
    for name in ('init', 'init_model', 'init_layer'):
      if name in vars(cls):
        setattr(cls, name, _narrow(vars(cls)[name]))

  def at(self, layer: Layer) -> Self:
    """A copy, equal to this one, for one layer."""
    copied = copy.copy(self)
    # `layer` is no field of the frozen dataclass, so it changes no hash.
    object.__setattr__(copied, 'layer', layer)
    return copied


def _narrow(init: Callable) -> Callable:
  @functools.wraps(init)
  def run(self, key):
    return narrowed(init(self, key))

  return run


def period(entries: Sequence) -> int:
  """The length of the shortest start that, repeated, makes all entries."""
  size = len(entries)
  return next(
    first
    for first in range(1, size + 1)
    if all(entries[n] == entries[n % first] for n in range(size))
    and size % first == 0
  )
