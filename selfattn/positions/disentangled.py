"""Scores in which what a token is and where it stands meet apart."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import (
  Position,
  check_positions,
  require,
)
from selfattn.positions.distances import (
  distance_range,
  row_scores,
  skew,
)

_kernel = jax.nn.initializers.lecun_normal()


@dataclasses.dataclass(frozen=True)
class TransformerXL(Position):
  """Relative attention of Transformer-XL (Dai et al. 2019, section 3.3).

  The score is (q + u) . k + (q + w) . W r, with r the sinusoids of the distance
  query - key, W of each layer, and u and w of each layer and head: how much a
  head looks for a word, or for a distance, whatever the query is. XLNet's too.

  Attributes:
    base: base of the sinusoids, whose sines come first, then cosines.
  """

  base: float = 10_000.0

  per_layer = True
  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require(self.base > 1, 'base', self.base, 'greater than 1')
    require(self.embed_dim % 2 == 0, 'embed_dim', self.embed_dim, 'even')

  def init(self, key):
    """`kernel`: W (D, H K); `content_bias`, u, `position_bias`, w: (H, K)."""
    shape = (self.num_heads, self.head_dim)
    width = self.num_heads * self.head_dim
    return {
      'kernel': _kernel(key, (self.embed_dim, width)),
      'content_bias': jnp.zeros(shape),
      'position_bias': jnp.zeros(shape),
    }

  def content(self, params, q_BLHK, k_BMHK, query, key):
    # In float32: XLA lacks some of these matmuls of two bfloat16 on a CPU.
    q_BLHK, k_BMHK = (x.astype(jnp.float32) for x in (q_BLHK, k_BMHK))
    u_HK, w_HK = params['content_bias'], params['position_bias']
    of_keys = (k_BMHK * u_HK[None, None]).sum(axis=-1).swapaxes(1, 2)
    q_BLHK = q_BLHK + w_HK[None, None]
    distance_N = distance_range(query, key)
    if distance_N is not None:
      rows_HNK = self._rows(params, distance_N)
      term = skew(row_scores(q_BLHK.swapaxes(1, 2), rows_HNK))
    else:
      term = self._of_pairs(params, q_BLHK, query, key)
    return term + of_keys[:, :, None]

  def _of_pairs(self, params, q_BLHK, query, key):
    """(q W) r, by the sine of a difference, so that no pair has its own r."""
    read_BHLD = jnp.einsum('BLHK,DHK->BHLD', q_BLHK, self._by_head(params))
    of_sin, of_cos = jnp.split(read_BHLD, 2, axis=-1)
    sin, cos = jnp.split(self._sinusoids(query.positions)[:, None], 2, axis=-1)
    turned = jnp.concatenate(
      [of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos], axis=-1
    )
    keys_BMD = self._sinusoids(key.positions)
    keys_BMD = jnp.broadcast_to(
      keys_BMD, (turned.shape[0], *keys_BMD.shape[1:])
    )
    return jnp.einsum('BHLD,BMD->BHLM', turned, keys_BMD)

  def encoding(self, params, tokens):
    """W r by distance key - query, from the farthest left: (H, N, K)."""
    length = tokens.positions.shape[1]
    return self._rows(params, np.arange(1 - length, length))

  def _rows(self, params, distance_N):
    rows_ND = self._sinusoids(-distance_N[None])[0]
    return jnp.einsum('ND,DHK->HNK', rows_ND, self._by_head(params))

  def _by_head(self, params):
    shape = (self.embed_dim, self.num_heads, self.head_dim)
    return params['kernel'].reshape(shape)

  def _sinusoids(self, positions_BL):
    """Sines, then cosines: float32 (1 or B, L, D)."""
    rates = self.base ** (-np.arange(0, self.embed_dim, 2) / self.embed_dim)
    angle = angles(positions_BL, rates)
    xp = np if isinstance(angle, np.ndarray) else jnp
    r = xp.concatenate([xp.sin(angle), xp.cos(angle)], axis=-1)
    return jnp.asarray(r, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Tupe(Position):
  """Untied positions (Ke et al. 2021, equations 7 and 9): TUPE-A.

  The score is (q . k + (p_i U) . (p_j V)) / sqrt(2K): vectors of positions have
  their own matrices and never meet words. U, V and the table serve all layers.
  Join it with `t5` for TUPE-R.

  With `untie_cls`, what [CLS] gives and gets is a number of each head, not of
  its position, so that it sees all places alike.

  Attributes:
    max_len: rows of the table.
    untie_cls: whether [CLS] has a learned scalar instead of a position.
    init_std: standard deviation of the table at initialisation.
  """

  max_len: int = 512
  untie_cls: bool = True
  init_std: float = 1.0

  length_option = 'max_len'

  def __post_init__(self):
    require(self.max_len >= 1, 'max_len', self.max_len, 'at least 1')
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  @property
  def scale(self):
    return 2**-0.5

  def max_length(self):
    return self.max_len

  def init(self, key):
    """`table` (N or N + 2, D), whose last rows stand for [CLS], as a query and
    as a key; `norm_scale` and `norm_bias` (D,); `query` and `key`, with
    `kernel` (D, D)."""
    keys = jax.random.split(key, 3)
    D = self.embed_dim
    rows = self.max_len + 2 * self.untie_cls
    return {
      'table': self.init_std * jax.random.normal(keys[0], (rows, D)),
      'norm_scale': jnp.ones(D),
      'norm_bias': jnp.zeros(D),
      'query': {'kernel': _kernel(keys[1], (D, D))},
      'key': {'kernel': _kernel(keys[2], (D, D))},
    }

  def bias(self, params, query, key):
    q_NHK, k_NHK = self._projected(params)
    check_positions(query.positions, self.max_len)
    check_positions(key.positions, self.max_len)
    bias_BHLM = jnp.einsum(
      'BLHK,BMHK->BHLM',
      self._pick(q_NHK, query.positions, key),
      self._pick(k_NHK, key.positions, query),
    )
    if self.untie_cls and self.vocab_size is not None:
      theta_2H = (q_NHK[-2:] * k_NHK[-2:]).sum(axis=-1)
      of_query, of_key = theta_2H[:, None, :, None, None]
      cls = self.vocab_size + 1
      if query.ids is not None and key.ids is not None:
        is_cls_BM, is_cls_BL = key.ids == cls, query.ids == cls
        bias_BHLM = jnp.where(is_cls_BM[:, None, None], of_key, bias_BHLM)
        bias_BHLM = jnp.where(is_cls_BL[:, None, :, None], of_query, bias_BHLM)
    return bias_BHLM * (2 * self.head_dim) ** -0.5

  def encoding(self, params, tokens):
    """The bias of a sequence that attends to itself: (1 or B, H, L, L)."""
    return self.bias(params, tokens, tokens)

  def _projected(self, params):
    """Rows of the table as queries and as keys, each (N, H, K)."""
    rows = jax.nn.standardize(params['table'], axis=-1, epsilon=1e-5)
    rows = rows * params['norm_scale'][None] + params['norm_bias'][None]
    shape = (len(rows), self.num_heads, self.head_dim)
    return [
      (rows @ params[name]['kernel']).reshape(shape)
      for name in ('query', 'key')
    ]

  def _pick(self, rows_NHK, positions_BL, other):
    """NaN past the table; as many rows as the other side has."""
    rows_NHK = rows_NHK[: self.max_len]
    count = max(positions_BL.shape[0], other.positions.shape[0])
    picked = rows_NHK.at[positions_BL].get(
      mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
    )
    return jnp.broadcast_to(picked, (count, *picked.shape[1:]))
