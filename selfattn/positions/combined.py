"""Several position methods at once."""

from __future__ import annotations

import dataclasses
import math

import jax

from selfattn.layers import Layer
from selfattn.positions.contract import HOOKS, Position


@dataclasses.dataclass(frozen=True)
class Combined(Position):
  """Several methods at once, such as `sinusoidal+t5`.

  Embeddings are applied in order, terms are added and factors of the scale
  multiplied; parameters are under the names of the parts. Hooks are called on
  each part, see `calls.parts_with`; those of this class raise TypeError.

  Attributes:
    parts: (name, method) of each.
    layers: names of the parts of the first layers, a pattern that is repeated;
      empty: all parts in every layer.

  Examples:
    >>> sizes = {'embed_dim': 12, 'num_heads': 3, 'causal': False}
    >>> both = selfattn.positions.make({'rotary': {}, 't5': {}}, **sizes)
    >>> [name for name, _ in both.parts]
    ['rotary', 't5']
  """

  parts: tuple[tuple[str, Position], ...] = ()
  layers: tuple[tuple[str, ...], ...] = ()

  @property
  def period(self):
    """The length of the pattern; 1 without one."""
    return len(self.layers) or 1

  def of_layer(self, index):
    """The parts of one layer, under the same names."""
    if not self.layers:
      return self
    names = self.layers[index % self.period]
    by_name = dict(self.parts)
    parts = tuple((name, by_name[name]) for name in names)
    return dataclasses.replace(self, parts=parts, layers=())

  def at(self, layer: Layer):
    """With every part at this layer."""
    parts = tuple((name, part.at(layer)) for name, part in self.parts)
    return dataclasses.replace(self, parts=parts)

  @property
  def hooks(self):
    """Names of the hooks that any part implements."""
    return frozenset().union(*(part.hooks for _, part in self.parts))

  @property
  def is_relative(self):
    """Whether all parts are."""
    return all(part.is_relative for _, part in self.parts)

  @property
  def supports_real_positions(self):
    """Whether every part does."""
    return all(part.supports_real_positions for _, part in self.parts)

  @property
  def uses_positions(self):
    """Whether any part does."""
    return any(part.uses_positions for _, part in self.parts)

  @property
  def supports_cache(self):
    """Whether all parts do."""
    return all(part.supports_cache for _, part in self.parts)

  @property
  def rotated_dim(self):
    """The width that the part which rotates turns to."""
    rotating = (part for _, part in self.parts if 'rotate' in part.hooks)
    return next((part.rotated_dim for part in rotating), self.head_dim)

  def rotated_dtype(self, dtype):
    """The type that the part which rotates turns to."""
    for _, part in self.parts:
      dtype = part.rotated_dtype(dtype)
    return super().rotated_dtype(dtype)

  @property
  def scale(self):
    """Product over the parts."""
    return math.prod(part.scale for _, part in self.parts)

  def init_model(self, key):
    """By name of the part, of those that have any."""
    return self._init(key, 'init_model')

  def init_layer(self, key):
    """By name of the part, of those that have any."""
    return self._init(key, 'init_layer')

  def _init(self, key, which):
    keys = jax.random.split(key, len(self.parts))
    made = {
      name: getattr(part, which)(key)
      for (name, part), key in zip(self.parts, keys, strict=True)
    }
    return {name: params for name, params in made.items() if params}

  def max_length(self):
    """The least of the parts."""
    limits = [part.max_length() for _, part in self.parts]
    return min((n for n in limits if n is not None), default=None)


def _of_parts(hook: str):
  def call(self, *args):
    raise TypeError(f'call {hook} on each part, see calls.parts_with')

  return call


for _hook in HOOKS:
  # Inherited ones would do nothing.
  setattr(Combined, _hook, _of_parts(_hook))
