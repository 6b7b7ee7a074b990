"""Learned vectors for distances, which queries are multiplied with.

Where a sequence attends to itself and its positions are consecutive, the
products with all distances are computed and then shifted row by row, which is
data movement only ("skewing", Huang et al. 2018, section 3.4.1); elsewhere each
pair picks its distance.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.contract import Position, distances, require


def skew(x: jax.Array) -> jax.Array:
  """From columns that are distances to columns that are keys.

  Args:
    x: (..., L, L + M - 1); column c of every row is distance c - (L - 1).

  Returns:
    (..., L, M), where row l, column m is distance m - l of row l.
  """
  num_rows, width = x.shape[-2:]
  num_keys = width - num_rows + 1
  if num_rows == 1:
    return x
  # Read with rows one element shorter, every row starts one distance earlier.
  flat = x.reshape(*x.shape[:-2], -1)
  flat = flat[..., num_rows - 1 :][..., : num_rows * (width - 1)]
  return flat.reshape(*x.shape[:-1], width - 1)[..., :num_keys]


def unskew(x: jax.Array) -> jax.Array:
  """The transpose of `skew`: (..., L, M) to (..., L, L + M - 1)."""
  num_rows, num_keys = x.shape[-2:]
  width = num_rows + num_keys - 1
  if num_rows == 1:
    return x
  before = [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, [*before, (0, 0), (0, width - 1 - num_keys)])
  flat = x.reshape(*x.shape[:-2], -1)
  flat = jnp.pad(flat, [*before, (num_rows - 1, 1)])
  return flat.reshape(*x.shape[:-2], num_rows, width)


@dataclasses.dataclass(frozen=True)
class RelativeKeys(Position):
  """A key at distance d = key - query adds q . a[d] to the score.

  Distances are clipped to max_distance. Every layer has a table of its own; a
  causal one has no row for what comes after.

  Attributes:
    max_distance: beyond it, all distances on one side are alike.
    init_std: standard deviation of a fresh entry; as large as a key's, since
      small ones leave training where it would be without positions.
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
    """N, distances that are told apart."""
    return (1 if self.causal else 2) * self.max_distance + 1

  def index(self, distance):
    """Row of each distance; a causal table ends with distance 0."""
    last = 0 if self.causal else self.max_distance
    return distance.clip(-self.max_distance, last) + self.max_distance

  def content(self, params, q_BLHK, k_BMHK, query, key):
    del k_BMHK
    q_BHLK = q_BLHK.swapaxes(1, 2)
    table = params['keys'].astype(q_BHLK.dtype)
    spread = _spread(query.positions, key.positions)
    if spread is None:
      products = _products(q_BHLK, table)
      index_BLM = self.index(distances(query, key))
      return _pick(products, index_BLM)
    # What comes after is hidden from a causal query: half the products.
    seen = spread[spread <= 0] if self.causal else spread
    products = _products(q_BHLK, table[..., self.index(seen), :])
    hidden = len(spread) - len(seen)
    return skew(jnp.pad(products, [(0, 0)] * 3 + [(0, hidden)]))

  def encoding(self, params, tokens):
    """Key vectors by distance, from the farthest left: (1 or H, N, K)."""
    length = tokens.positions.shape[1]
    rows = params['keys'][..., self.index(np.arange(1 - length, length)), :]
    return rows.reshape(-1, *rows.shape[-2:])


@dataclasses.dataclass(frozen=True)
class Shaw(RelativeKeys):
  """Relative position representations (Shaw et al. 2018, equations 3 to 5).

  The heads of a layer share one table. With `with_values`, a key at distance d
  also adds b[d], times its weight after dropout, to what the query gathers.
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
    table = params['values'].astype(weights_BHLM.dtype)
    spread = _spread(query.positions, key.positions)
    if spread is not None:
      by_distance, table = unskew(weights_BHLM), table[self.index(spread)]
    else:
      index_BLM = self.index(distances(query, key))
      by_distance = _collect(weights_BHLM, index_BLM, self.num_rows)
    return jnp.einsum('BHLN,NK->BLHK', by_distance, table)


@dataclasses.dataclass(frozen=True)
class MusicTransformer(RelativeKeys):
  """Relative attention with a table a head (Huang et al. 2018, section 3.4)."""

  def init(self, key):
    shape = (self.num_heads, self.num_rows, self.head_dim)
    return {'keys': self.init_std * jax.random.normal(key, shape)}


def _spread(query_BL, key_BM):
  """All distances in order, if both sides are known and consecutive."""
  if not isinstance(query_BL, np.ndarray) or not isinstance(key_BM, np.ndarray):
    return None
  if len(query_BL) > 1 or len(key_BM) > 1:
    return None
  if (np.diff(query_BL) != 1).any() or (np.diff(key_BM) != 1).any():
    return None
  return np.arange(
    key_BM[0, 0] - query_BL[0, -1], key_BM[0, -1] - query_BL[0, 0] + 1
  )


def _products(q_BHLK, table):
  """Queries times the rows of a table, of all heads or of each: float32."""
  axes = 'NK' if table.ndim == 2 else 'HNK'
  return jnp.einsum(
    f'BHLK,{axes}->BHLN', q_BHLK, table, preferred_element_type=jnp.float32
  )


def _pick(x_BHLN, index_BLM):
  """x[b, h, l, index[b, l, m]]."""
  shape = (*x_BHLN.shape[:3], index_BLM.shape[-1])
  index = jnp.broadcast_to(jnp.asarray(index_BLM)[:, None], shape)
  return jnp.take_along_axis(x_BHLN, index, axis=-1)


def _collect(weights_BHLM, index_BLM, num_rows):
  """The transpose of `_pick`: sums of weights by their index."""
  shape = weights_BHLM.shape
  index = jnp.broadcast_to(jnp.asarray(index_BLM)[:, None], shape)
  zeros = jnp.zeros((*shape[:3], num_rows), weights_BHLM.dtype)
  batch, head, row = jnp.ogrid[: shape[0], : shape[1], : shape[2]]
  where = (batch[..., None], head[..., None], row[..., None], index)
  return zeros.at[where].add(weights_BHLM)
