"""Sums over keys in the order of their index, wherever they are in the row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.tokens import Tokens


def later_sum(x_BHLM: jax.Array, index_BM) -> jax.Array:
  """Sums over the keys after each one, itself excluded: (B, H, L, M)."""
  reverse = cumulative_sum(x_BHLM[..., ::-1], -index_BM[:, ::-1], True)
  return reverse[..., ::-1]


def cumulative_sum(
  x_BHLM: jax.Array, index_BM, is_exclusive: bool = False
) -> jax.Array:
  """Sums over keys up to each one, or before it: (B, H, L, M)."""

  def sums(x):
    if is_exclusive:
      x = jnp.pad(x, [(0, 0)] * 3 + [(1, 0)])[..., :-1]
    return jnp.cumsum(x, axis=-1)

  is_known = isinstance(index_BM, np.ndarray)
  if is_known and (np.diff(index_BM) > 0).all():
    return sums(x_BHLM)
  shape = (len(index_BM), 1, 1, index_BM.shape[1])
  order = jnp.argsort(jnp.asarray(index_BM), axis=-1).reshape(shape)
  order = jnp.broadcast_to(order, x_BHLM.shape)
  ordered = sums(jnp.take_along_axis(x_BHLM, order, axis=-1))
  return jnp.take_along_axis(ordered, jnp.argsort(order, axis=-1), axis=-1)


def prefix_sums(
  x_BMH: jax.Array, query: Tokens, key: Tokens
) -> tuple[jax.Array, jax.Array]:
  """Sums over keys up to each query, (B, L, H), and up to each key, (B, M, H).

  Keys are in the order of segments and index. A difference of two sums within a
  segment is the sum over the keys between.
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
