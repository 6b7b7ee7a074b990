"""Sums over keys that linear attention has in place of weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.arrays import placed
from selfattn.order import extended
from selfattn.tokens import Tokens

# Tokens of a chunk. Pairs are formed within it alone.
_CHUNK = 64


def linear_sums(
  q_BHLK: jax.Array,
  k_BHLK: jax.Array,
  v_BHLV: jax.Array,
  tokens: Tokens,
  causal: bool = False,
  past_BHKV: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Sums of (q_i . k_j) v_j over the keys j that query i may attend to.

  These are the numerators of equations 5 (all keys) and 9 (causal; the sums of
  equation 10) of Katharopoulos et al. 2020, in time and memory linear in L. A
  causal row is a scan over chunks, recomputed in the backward pass; a packed
  row is sorted by segment, and scanned in both directions if it is not causal.

  Args:
    q_BHLK, k_BHLK: features, float32; those of a masked key are 0.
    v_BHLV: values, float32.
    tokens: from `with_defaults`, for segments and index; no two tokens of a
      segment have the same index.
    causal: only keys at or before the query in the index.
    past_BHKV: sums of k v^T over the tokens before these, of a row that is one
      segment; these are in the order of their index.

  Returns:
    The sums (B, H, L, V), and the sum of k v^T over all keys of the last
    segment, with those of the past, (B, H, K, V).
  """
  if not q_BHLK.shape[2]:
    B, H, _, K = k_BHLK.shape
    nothing_BHKV = jnp.zeros((B, H, K, v_BHLV.shape[-1]), v_BHLV.dtype)
    return v_BHLV, nothing_BHKV if past_BHKV is None else past_BHKV
  if tokens.segments is None and not causal:
    total_BHKV = jnp.einsum('BHLK,BHLV->BHKV', k_BHLK, v_BHLV)
    if past_BHKV is not None:
      total_BHKV = total_BHKV + past_BHKV
    return jnp.einsum('BHLK,BHKV->BHLV', q_BHLK, total_BHKV), total_BHKV
  B, _, L, _ = q_BHLK.shape
  segments_BL = jnp.zeros((B, L), jnp.int32)
  if tokens.segments is not None:
    segments_BL = jnp.broadcast_to(jnp.asarray(tokens.segments), (B, L))
  rows = [q_BHLK, k_BHLK, v_BHLV]
  order_BL = None
  if past_BHKV is None and not _is_in_order(tokens):
    index_BL = jnp.broadcast_to(jnp.asarray(tokens.index), (B, L))
    order_BL = jnp.lexsort((index_BL, segments_BL))
    rows = [_take(x, order_BL) for x in rows]
    segments_BL = jnp.take_along_axis(segments_BL, order_BL, axis=1)
  q, k, v = rows
  sums_BHLV, total_BHKV = _scan(q, k, v, segments_BL, past_BHKV)
  if not causal:
    q, k, v = (jnp.flip(x, axis=2) for x in rows)
    back_BL = jnp.flip(segments_BL, axis=1)
    later_BHLV, _ = _scan(q, k, v, back_BL, is_strict=True)
    sums_BHLV = sums_BHLV + jnp.flip(later_BHLV, axis=2)
  if order_BL is not None:
    sums_BHLV = _take(sums_BHLV, jnp.argsort(order_BL, axis=1))
  return sums_BHLV, total_BHKV


def _is_in_order(tokens: Tokens) -> bool:
  """Whether the index is known while tracing, and grows along the row."""
  is_known = tokens.segments is None and isinstance(tokens.index, np.ndarray)
  return is_known and bool((np.diff(tokens.index) > 0).all())


def _take(x_BHLK, order_BL):
  return jnp.take_along_axis(x_BHLK, order_BL[:, None, :, None], axis=2)


def _scan(q_BHLK, k_BHLK, v_BHLV, segments_BL, past_BHKV=None, is_strict=False):
  """Sums over keys up to each query, of its segment; and their last state.

  Args:
    segments_BL: the tokens of a segment are neighbours.
    past_BHKV: of the first segment; None: nothing.
    is_strict: whether the key of the query itself is left out.
  """
  B, H, L, K = q_BHLK.shape
  # A length that is not known yet, in jax.export, is long.
  size = min(L, _CHUNK) if isinstance(L, int) else _CHUNK
  num_chunks = -(-L // size)
  missing = num_chunks * size - L
  pairs_LM = jnp.tri(size, k=-int(is_strict), dtype=bool)

  def split(x_BHLK):
    x_BHLK = jnp.pad(x_BHLK, ((0, 0), (0, 0), (0, missing), (0, 0)))
    shape = (*x_BHLK.shape[:2], num_chunks, size, x_BHLK.shape[-1])
    x_BHLK = x_BHLK.reshape(shape)
    return jnp.moveaxis(x_BHLK, 2, 0)

  @jax.checkpoint
  def chunk(carry, part):
    state_BHKV, segment_B = carry
    q_BHLK, k_BHLK, v_BHLV, segments_BL = part
    same_BLM = segments_BL[:, :, None] == segments_BL[:, None]
    scores_BHLM = jnp.einsum('BHLK,BHMK->BHLM', q_BHLK, k_BHLK)
    scores_BHLM = jnp.where(
      (same_BLM & pairs_LM[None])[:, None], scores_BHLM, 0
    )
    sums_BHLV = jnp.einsum('BHLM,BHMV->BHLV', scores_BHLM, v_BHLV)
    before_BHLV = jnp.einsum('BHLK,BHKV->BHLV', q_BHLK, state_BHKV)
    goes_on_BL = segments_BL == segment_B[:, None]
    sums_BHLV += jnp.where(goes_on_BL[:, None, :, None], before_BHLV, 0)
    last_B = segments_BL[:, -1]
    in_last_BL = segments_BL == last_B[:, None]
    k_BHLK = jnp.where(in_last_BL[:, None, :, None], k_BHLK, 0)
    is_same_B = (last_B == segment_B)[:, None, None, None]
    state_BHKV = jnp.where(is_same_B, state_BHKV, 0)
    state_BHKV += jnp.einsum('BHLK,BHLV->BHKV', k_BHLK, v_BHLV)
    return (state_BHKV, last_B), sums_BHLV

  if past_BHKV is None:
    past_BHKV = jnp.zeros((B, H, K, v_BHLV.shape[-1]), v_BHLV.dtype)
    past_BHKV = placed(past_BHKV, k_BHLK.sum(axis=(2, 3), keepdims=True))
  padded_BL = extended(segments_BL, missing)
  of_chunks = jnp.moveaxis(padded_BL.reshape(B, num_chunks, size), 1, 0)
  (total_BHKV, _), sums = jax.lax.scan(
    chunk,
    (past_BHKV, segments_BL[:, 0]),
    (split(q_BHLK), split(k_BHLK), split(v_BHLV), of_chunks),
  )
  shape = (B, H, num_chunks * size, v_BHLV.shape[-1])
  sums_BHLV = jnp.moveaxis(sums, 0, 2).reshape(shape)
  return sums_BHLV[:, :, :L], total_BHKV
