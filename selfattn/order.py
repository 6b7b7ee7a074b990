"""Sums over keys in the order of their index, wherever they are in the row."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.tokens import Tokens

# Keys whose sums are one matmul.
_BLOCK = 32


def later_sum(x_BHLM: jax.Array, index_BM) -> jax.Array:
  """Sums over the keys after each one, itself excluded: (B, H, L, M)."""
  return _in_order(x_BHLM, index_BM, jnp.greater)


def cumulative_sum(x_BHLM: jax.Array, index_BM) -> jax.Array:
  """Sums over the keys up to each one: (B, H, L, M)."""
  return x_BHLM + _in_order(x_BHLM, index_BM, jnp.less)


def _in_order(x_BHLM, index_BM, relation: Callable) -> jax.Array:
  """Sums over the keys before (jnp.less) or after (jnp.greater) each one.

  Keys of equal indices are in the order of the row.
  """
  is_known = isinstance(index_BM, np.ndarray)
  if is_known and (np.diff(index_BM) > 0).all():
    return _sums(x_BHLM, relation)
  shape = (index_BM.shape[0], 1, 1, index_BM.shape[1])
  order = jnp.argsort(jnp.asarray(index_BM), axis=-1).reshape(shape)
  order = jnp.broadcast_to(order, x_BHLM.shape)
  sums = _sums(jnp.take_along_axis(x_BHLM, order, axis=-1), relation)
  return jnp.take_along_axis(sums, jnp.argsort(order, axis=-1), axis=-1)


def _sums(x_BHLM, relation: Callable) -> jax.Array:
  """x times a triangle of ones, jnp.less or jnp.greater, by blocks of keys.

  On a CPU, several times as fast as a scan, whose steps recompute x. No sum
  has a term that a difference removes, however large that is, if it is finite.
  """
  *lead, M = x_BHLM.shape
  count = -(-M // _BLOCK)
  fill = [(0, 0)] * len(lead) + [(0, count * _BLOCK - M)]
  blocks = jnp.pad(x_BHLM, fill).reshape(*lead, count, _BLOCK)

  def times_triangle(x):
    # Not of NumPy: a number of blocks may be symbolic, as in jax.export.
    places = jnp.arange(x.shape[-1])
    triangle = relation(places[:, None], places[None]).astype(x.dtype)
    return jnp.matmul(x, triangle, precision='highest')

  of_other_blocks = times_triangle(blocks.sum(axis=-1))
  sums = times_triangle(blocks) + of_other_blocks[..., None]
  return sums.reshape(*lead, count * _BLOCK)[..., :M]


def prefix_sums(
  x_BMH: jax.Array, query: Tokens, key: Tokens
) -> tuple[jax.Array, jax.Array]:
  """Sums over keys up to each query, (B, L, H), and up to each key, (B, M, H).

  Keys are in the order of segments and index. A difference of two sums within a
  segment is the sum over the keys between.
  """
  order_BM, until_BL = ranks(query, key, x_BMH.shape[0])
  sums_BMH = keys_BMH = jnp.cumsum(ordered(x_BMH, order_BM), axis=1)
  if order_BM is not None:
    back_BM1 = jnp.argsort(order_BM, axis=-1)[..., None]
    keys_BMH = jnp.take_along_axis(sums_BMH, back_BM1, axis=1)
  sums = jnp.pad(sums_BMH, ((0, 0), (1, 0), (0, 0)))
  return jnp.take_along_axis(sums, until_BL[..., None], axis=1), keys_BMH


def ranks(
  query: Tokens, key: Tokens, B: int
) -> tuple[jax.Array | None, jax.Array]:
  """(the order of keys by segment and index, how many are up to each query).

  Both int32, (B, M) and (B, L); the order is None if it is that of the row.
  """
  M = key.index.shape[1]
  is_known = key.segments is None and isinstance(key.index, np.ndarray)
  if is_known and (key.index == np.arange(M)).all():
    until_BL = jnp.clip(jnp.asarray(query.index) + 1, 0, M)
    return None, jnp.broadcast_to(until_BL, (B, until_BL.shape[1]))
  k, q = (_segment_and_index(side, B) for side in (key, query))
  (ks, ki), (qs, qi) = ((x[:, None, :] for x in k), (x[:, :, None] for x in q))
  until_BL = ((ks < qs) | ((ks == qs) & (ki <= qi))).sum(axis=-1)
  return jnp.lexsort(k[::-1]), until_BL


def extended(x, count: int):
  """x (B, M, ...) and its last row again, `count` times.

  As jnp.pad(mode='edge'), which slices the other axes, too, and may not where
  they are sharded.
  """
  last = jnp.repeat(x[:, -1:], count, axis=1)
  return jnp.concatenate([x, last], axis=1)


def ordered(x, order_BM: jax.Array | None):
  """Rows of x, (1 or B, M, ...), in an order; None: as they are."""
  if order_BM is None:
    return x
  order = order_BM.reshape(order_BM.shape + (1,) * (x.ndim - 2))
  return jnp.take_along_axis(x, order, axis=1)


def columns_back(x_BHLM: jax.Array, order_BM: jax.Array | None) -> jax.Array:
  """Columns that are in an order, as they were before."""
  if order_BM is None:
    return x_BHLM
  back = jnp.argsort(order_BM, axis=-1)[:, None, None]
  back = jnp.broadcast_to(back, x_BHLM.shape)
  return jnp.take_along_axis(x_BHLM, back, axis=-1)


def _segment_and_index(tokens: Tokens, B: int):
  index = jnp.asarray(tokens.index)
  segments = tokens.segments
  segments = jnp.zeros_like(index) if segments is None else segments
  shape = (B, index.shape[1])
  return jnp.broadcast_to(segments, shape), jnp.broadcast_to(index, shape)
