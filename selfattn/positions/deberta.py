"""Disentangled attention of DeBERTa."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.contract import Position, add, require, require_one_of
from selfattn.positions.distances import distance_scores

_kernel = jax.nn.initializers.lecun_normal()
TERMS = ('both', 'content_to_position', 'position_to_content')
BIASES = ('none', 'query', 'both')


@dataclasses.dataclass(frozen=True)
class Deberta(Position):
  """Disentangled attention (He et al. 2021, equations 2 to 4).

  The score is (q_i . k_j + q_i . Kr[i - j] + k_j . Qr[i - j]) / sqrt(3K):
  content to content, content to position, position to content; the last row as
  in the authors' code, where the paper has j - i. One table of vectors by
  distance serves all layers, each of which projects it to Kr and Qr: by
  matrices for the table alone or, with share_projections (share_att_key of
  DeBERTa v2), by those of its keys and queries.

  Distances are clipped to max_distance or, with num_buckets (DeBERTa v2), put
  into buckets that grow as a logarithm beyond half of num_buckets.

  Attributes:
    max_distance: distances beyond it are clipped.
    num_buckets: number of buckets of distances on each side; 0: one row a
      distance.
    terms: which of the two terms with positions the score has; with one of
      them, the scale is 1/sqrt(2K).
    init_std: standard deviation of the table at initialisation.
    share_projections: whether the table has no matrices of its own.
    projection_bias: which of these matrices have a bias: none, that to Qr
      (DeBERTa v1), or both (v2).
    table_norm: whether the table is normalised (norm_rel_ebd of DeBERTa v2).
    eps: epsilon of that norm.
  """

  max_distance: int = 64
  num_buckets: int = 0
  terms: str = 'both'
  init_std: float = 1.0
  share_projections: bool = False
  projection_bias: str = 'none'
  table_norm: bool = False
  eps: float = 1e-7

  per_layer = True
  is_relative = True

  def __post_init__(self):
    require(
      self.max_distance >= 1, 'max_distance', self.max_distance, 'at least 1'
    )
    require(
      self.num_buckets == 0 or 4 <= self.num_buckets < self.max_distance,
      'num_buckets',
      self.num_buckets,
      f'0, or from 4 to below max_distance = {self.max_distance}',
    )
    require_one_of(TERMS, 'terms', self.terms)
    require_one_of(BIASES, 'projection_bias', self.projection_bias)
    require(0 < self.eps < 1, 'eps', self.eps, 'between 0 and 1')
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  @property
  def hooks(self):
    """The hooks of the class; `rows` with share_projections only."""
    return super().hooks - (set() if self.share_projections else {'rows'})

  @property
  def scale(self):
    return (3 if self.terms == 'both' else 2) ** -0.5

  @property
  def _rows(self) -> int:
    return self.num_buckets or self.max_distance

  def init_model(self, key):
    """`table`: (2k, D), rows by query - key + k.

    With table_norm, `norm_scale` and `norm_bias`, (D,).
    """
    D = self.embed_dim
    params = {
      'table': self.init_std * jax.random.normal(key, (2 * self._rows, D))
    }
    if self.table_norm:
      params |= {'norm_scale': jnp.ones(D), 'norm_bias': jnp.zeros(D)}
    return params

  def init_layer(self, key):
    """`query` and `key`: `kernel` (D, H K), for those of TERMS that read them.

    And `bias` (H K,), of those that have one. None with share_projections.
    """
    if self.share_projections:
      return {}
    sides = {
      'both': ('query', 'key'),
      'content_to_position': ('key',),
      'position_to_content': ('query',),
    }[self.terms]
    shape = (self.embed_dim, self.embed_dim)
    keys = jax.random.split(key, len(sides))
    params = {
      side: {'kernel': _kernel(key, shape)}
      for side, key in zip(sides, keys, strict=True)
    }
    for side, of_side in params.items():
      if self.projection_bias in (side, 'both'):
        of_side['bias'] = jnp.zeros(self.embed_dim)
    return params

  def index(self, distance):
    """Row of distances query - key; any shape of integers."""
    k = self._rows
    if not self.num_buckets:
      return distance.clip(-k, k - 1) + k
    xp = np if isinstance(distance, np.ndarray) else jnp
    size = xp.asarray(self._buckets())[abs(distance).clip(0, self.max_distance)]
    return (xp.sign(distance) * size).clip(-k, k - 1) + k

  def _buckets(self):
    """Bucket of each distance from 0 to max_distance.

    By NumPy in float64, so that traced and known distances have the same one.
    """
    half = self._rows // 2
    size = np.arange(self.max_distance + 1)
    far = math.log((self.max_distance - 1) / half)
    steps = np.log(np.maximum(size, half) / half) / far * (half - 1)
    return np.where(size <= half, size, half + np.ceil(steps)).astype(int)

  def rows(self, params):
    table = params['table']
    if not self.table_norm:
      return table
    table = jax.nn.standardize(table, axis=-1, epsilon=self.eps)
    return table * params['norm_scale'][None] + params['norm_bias'][None]

  def content(self, params, q_BLHK, k_BMHK, query, key):
    terms = []
    if self.terms != 'position_to_content':
      rows_HNK = self._project(params, 'key')
      terms.append(
        distance_scores(
          q_BLHK, rows_HNK, lambda ahead: self.index(-ahead), query, key
        )
      )
    if self.terms != 'content_to_position':
      rows_HNK = self._project(params, 'query')
      of_keys = distance_scores(k_BMHK, rows_HNK, self.index, key, query)
      terms.append(of_keys.swapaxes(2, 3))
    return add(terms)

  def _project(self, params, side):
    """Kr of the side 'key', or Qr of 'query': (H, N, K)."""
    if self.share_projections:
      return params[f'{side}_rows']
    rows = self.rows(params) @ params[side]['kernel']
    if 'bias' in params[side]:
      rows += params[side]['bias'][None]
    shape = (len(rows), self.num_heads, self.head_dim)
    return rows.reshape(shape).swapaxes(0, 1)

  def encoding(self, params, tokens):
    """Kr, or Qr where there is none, by distance key - query: (H, N, K)."""
    length = tokens.positions.shape[1]
    has_keys = self.terms != 'position_to_content'
    rows_HNK = self._project(params, 'key' if has_keys else 'query')
    return rows_HNK[:, self.index(-np.arange(1 - length, length))]
