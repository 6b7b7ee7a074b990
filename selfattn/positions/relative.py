"""Learned vectors by distance, which queries are multiplied with."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from selfattn.positions.contract import Position, require
from selfattn.positions.distances import distance_scores, distance_sums


@dataclasses.dataclass(frozen=True)
class RelativeKeys(Position):
  """q . a[d] is added to the score of a key at distance d = key - query.

  Distances are clipped to max_distance. Every layer has a table of its own; in
  a causal encoder, it has no rows for later keys.

  Attributes:
    max_distance: distances beyond it share the last row of their side.
    init_std: standard deviation at initialisation; as large as that of keys,
      since with a small one training stays where it is without positions.
  """

  max_distance: int = 32
  init_std: float = 1.0

  per_layer = True
  is_relative = True

  def __post_init__(self):
    require(
      self.max_distance >= 1, 'max_distance', self.max_distance, 'at least 1'
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  @property
  def num_rows(self) -> int:
    """N, number of distances with a row each."""
    return (1 if self.causal else 2) * self.max_distance + 1

  def index(self, distance):
    """Row of each distance; the last row of a causal table is distance 0."""
    last = 0 if self.causal else self.max_distance
    return distance.clip(-self.max_distance, last) + self.max_distance

  def content(self, params, q_BLHK, k_BMHK, query, key):
    del k_BMHK
    return distance_scores(
      q_BLHK, params['keys'], self.index, query, key, self.causal
    )

  def encoding(self, params, tokens):
    """Vectors of distances 1 - L to L - 1, (1 or H, 2L - 1, K)."""
    length = tokens.positions.shape[1]
    table_HNK = params['keys']
    if table_HNK.ndim == 2:
      table_HNK = table_HNK[None]
    return table_HNK[:, self.index(np.arange(1 - length, length))]


@dataclasses.dataclass(frozen=True)
class Shaw(RelativeKeys):
  """Relative position representations (Shaw et al. 2018, equations 3 to 5).

  The heads of a layer share one table. With `with_values`, b[d] is added to the
  value of a key at distance d.

  Attributes:
    with_values: whether vectors of distances are added to values, too.
  """

  with_values: bool = False

  @property
  def hooks(self):
    """Without `value`, unless there is a table b."""
    return super().hooks if self.with_values else super().hooks - {'value'}

  def init(self, key):
    keys = jax.random.split(key)
    shape = (self.num_rows, self.head_dim)
    params = {'keys': self.init_std * jax.random.normal(keys[0], shape)}
    if self.with_values:
      params['values'] = self.init_std * jax.random.normal(keys[1], shape)
    return params

  def value(self, params, weights_BHLM, query, key):
    return distance_sums(weights_BHLM, params['values'], self.index, query, key)


@dataclasses.dataclass(frozen=True)
class MusicTransformer(RelativeKeys):
  """A table for each head (Music Transformer, Huang et al. 2018, 3.4)."""

  def init(self, key):
    shape = (self.num_heads, self.num_rows, self.head_dim)
    return {'keys': self.init_std * jax.random.normal(key, shape)}
