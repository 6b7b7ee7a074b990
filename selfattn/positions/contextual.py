"""Contextual positions, from the text itself: CoPE and forget gates."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.masks import Tokens
from selfattn.positions.contract import Position, require


@dataclasses.dataclass(frozen=True)
class Cope(Position):
  """Contextual positions (Golovneva et al. 2024, equations 3 to 5).

  The position of a key is the sum of sigmoid(scaled score) over the keys from
  it to the query, both included. The vector at this position, linearly
  interpolated between two rows of a table, is multiplied with the query, as a
  key is.

  In causal encoders, this is the method of the paper. Our extension to keys on
  both sides: later keys are counted likewise, with a table of their own.

  Attributes:
    max_position: last row of the table; positions beyond it are clipped.
    init_std: standard deviation at initialisation.
  """

  max_position: int = 64
  init_std: float = 1.0

  per_layer = True
  is_relative = True

  def __post_init__(self):
    require(
      self.max_position >= 1, 'max_position', self.max_position, 'at least 1'
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  def init(self, key):
    """`table`: (1 or 2 sides, N, K), shared by the heads."""
    sides = 1 if self.causal else 2
    shape = (sides, self.max_position + 1, self.head_dim)
    return {'table': self.init_std * jax.random.normal(key, shape)}

  def scores(self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key):
    del bias_BHLM
    ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    ahead = jnp.asarray(ahead_BLM)[:, None]
    gates = jax.nn.sigmoid(content_BHLM)
    gates = gates if mask is None else jnp.where(mask, gates, 0.0)
    before = jnp.where(ahead <= 0, gates, 0.0)
    in_order = _sum_until(before, key.index)
    total = before.sum(axis=-1, keepdims=True)
    term = self._read(params['table'][0], q_BLHK, total - in_order + before)
    if self.causal:
      return term
    after = _sum_until(jnp.where(ahead >= 0, gates, 0.0), key.index)
    return jnp.where(
      ahead <= 0, term, self._read(params['table'][1], q_BLHK, after)
    )

  def _read(self, table_NK, q_BLHK, position_BHLM):
    """Scaled scores of queries and the vectors at fractional positions."""
    table_NK = table_NK.astype(q_BLHK.dtype)
    scores = jnp.einsum(
      'BLHK,NK->BHLN', q_BLHK, table_NK, preferred_element_type=jnp.float32
    )
    position = jnp.minimum(position_BHLM, self.max_position)
    below = jnp.floor(position).astype(jnp.int32)
    above = jnp.minimum(below + 1, self.max_position)
    at_below, at_above = (
      jnp.take_along_axis(scores, index, axis=-1) for index in (below, above)
    )
    mixed = at_below + (position - below) * (at_above - at_below)
    return mixed * self.head_dim**-0.5


@dataclasses.dataclass(frozen=True)
class Forgetting(Position):
  """Forget gates (Lin et al. 2025, FoX, equations 6 and 7).

  Token l has a gate f_l = sigmoid(w x_l + b) in each head, from the input of
  the layer. The bias of an earlier key is the sum of log f_l over the tokens
  after the key, up to the query: a data-dependent ALiBi.

  In a bidirectional encoder, the bias of a later key sums over other gates, of
  the tokens after the query, up to the key (as the data-dependent ALiBi of
  x-transformers).

  Attributes:
    bias_init: b at initialisation; a larger one forgets less.
  """

  bias_init: float = 0.0

  per_layer = True
  is_relative = True

  def init(self, key):
    """`kernel` (D, H or 2H) and `bias`: gates of earlier, then later keys."""
    count = self.num_heads if self.causal else 2 * self.num_heads
    kernel = jax.nn.initializers.lecun_normal()(key, (self.embed_dim, count))
    return {'kernel': kernel, 'bias': jnp.full(count, self.bias_init)}

  def state(self, params, x_BLD, tokens):
    """Logarithms of the gates, float32 (B, L, H or 2H); 0 at padding."""
    x_BLD = x_BLD.astype(jnp.float32)
    gates = jax.nn.log_sigmoid(
      x_BLD @ params['kernel'] + params['bias'][None, None]
    )
    if tokens.padding_mask is None:
      return gates
    return jnp.where(tokens.padding_mask[..., None], gates, 0.0)

  def bias(self, params, query, key):
    sums_BLH, sums_BMH = _sums(key.state, query, key)
    bias = sums_BLH[:, :, None] - sums_BMH[:, None]
    bias = jnp.moveaxis(bias, -1, 1)
    ahead = jnp.asarray(key.index[:, None, :] - query.index[:, :, None])[
      :, None
    ]
    if self.causal:
      return jnp.where(ahead <= 0, bias, 0.0)
    before, after = jnp.split(bias, 2, axis=1)
    return jnp.where(ahead <= 0, before, -after)


def _is_in_order(index) -> bool:
  """Whether keys are known to be in the order of their index."""
  return isinstance(index, np.ndarray) and bool((np.diff(index) > 0).all())


def _sum_until(x_BHLM: jax.Array, index_BM) -> jax.Array:
  """Cumulative sums over keys, in the order of their index."""
  if _is_in_order(index_BM):
    return jnp.cumsum(x_BHLM, axis=-1)
  shape = (len(index_BM), 1, 1, index_BM.shape[1])
  order = jnp.argsort(jnp.asarray(index_BM), axis=-1).reshape(shape)
  order = jnp.broadcast_to(order, x_BHLM.shape)
  sums = jnp.cumsum(jnp.take_along_axis(x_BHLM, order, axis=-1), axis=-1)
  return jnp.take_along_axis(sums, jnp.argsort(order, axis=-1), axis=-1)


def _sums(
  x_BMH: jax.Array, query: Tokens, key: Tokens
) -> tuple[jax.Array, jax.Array]:
  """Sums over keys up to each query, (B, L, H), and up to each key, (B, M, H).

  In the order of segments and index, so that a difference within a segment is
  the sum over the tokens between.
  """
  B, M, _ = x_BMH.shape
  is_known = key.segments is None and isinstance(key.index, np.ndarray)
  if is_known and (key.index == np.arange(M)).all():
    sums_BMH = jnp.cumsum(x_BMH, axis=1)
    until_BL = jnp.clip(jnp.asarray(query.index) + 1, 0, M)
    keys_BMH = sums_BMH
  else:
    k, q = (_segment_and_index(side, B) for side in (key, query))
    order_BM = jnp.lexsort(k[::-1])
    ordered = jnp.take_along_axis(x_BMH, order_BM[..., None], axis=1)
    sums_BMH = jnp.cumsum(ordered, axis=1)
    back_BM1 = jnp.argsort(order_BM, axis=-1)[..., None]
    keys_BMH = jnp.take_along_axis(sums_BMH, back_BM1, axis=1)
    (ks, ki), (qs, qi) = (
      (x[:, None, :] for x in k),
      (x[:, :, None] for x in q),
    )
    until_BL = ((ks < qs) | ((ks == qs) & (ki <= qi))).sum(axis=-1)
  sums = jnp.pad(sums_BMH, ((0, 0), (1, 0), (0, 0)))
  until = jnp.broadcast_to(until_BL, (B, until_BL.shape[1]))[..., None]
  return jnp.take_along_axis(sums, until, axis=1), keys_BMH


def _segment_and_index(tokens: Tokens, B: int):
  index = jnp.asarray(tokens.index)
  segments = tokens.segments
  segments = jnp.zeros_like(index) if segments is None else segments
  shape = (B, index.shape[1])
  return jnp.broadcast_to(segments, shape), jnp.broadcast_to(index, shape)
