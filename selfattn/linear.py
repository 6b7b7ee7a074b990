"""Linear attention: sums over keys in place of a weight for each pair."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.attention import Attention
from selfattn.masks import Tokens, visible
from selfattn.positions.calls import check_returned, parts_with
from selfattn.positions.contract import Position
from selfattn.stack import Stack

# Tokens of a chunk. Pairs are formed within it alone.
_CHUNK = 64
# Fields of Attention that act on scores or weights, which are not formed.
_OF_SCORES = ('window', 'normaliser', 'softcap', 'broadcast_dropout', 'backend')


def feature_map(x: jax.Array) -> jax.Array:
  """elu(x) + 1, float32 (Katharopoulos et al. 2020, equation 7).

  Without the rounding of a sum of nearly -1 and 1.
  """
  x = x.astype(jnp.float32)
  return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


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
  B, L = len(q_BHLK), q_BHLK.shape[2]
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
  size = min(L, _CHUNK)
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
  padded_BL = jnp.pad(segments_BL, ((0, 0), (0, missing)), mode='edge')
  of_chunks = jnp.moveaxis(padded_BL.reshape(B, num_chunks, size), 1, 0)
  (total_BHKV, _), sums = jax.lax.scan(
    chunk,
    (past_BHKV, segments_BL[:, 0]),
    (split(q_BHLK), split(k_BHLK), split(v_BHLV), of_chunks),
  )
  shape = (B, H, num_chunks * size, v_BHLV.shape[-1])
  sums_BHLV = jnp.moveaxis(sums, 0, 2).reshape(shape)
  return sums_BHLV[:, :, :L], total_BHKV


def unsupported_position(method: Position) -> str | None:
  """Why linear attention does not support a position method, or None."""
  for _, part in method.parts:
    if 'state' in part.hooks:
      return 'linear attention keeps no keys, whose state its hooks read'
    for hook in sorted(part.hooks - {'embed', 'rotate'}):
      return f'linear attention forms no scores, which its {hook} hook is for'
    if part.rotated_dim != part.head_dim:
      return 'its rotation changes the width of the features'
    # xPos counts from the middle of all keys, which a sum no longer knows.
    if part.causal_only:
      return 'its rotation of a key depends on the other keys'
  return None


class LinearAttention(Attention):
  """Multi-head attention with weights phi(q) . phi(k) / sum phi(q) . phi(k).

  phi is `feature_map`, and the sum is over the keys that are not masked
  (Katharopoulos et al. 2020, equations 4 to 9). A rotation is that of the
  features in the numerator (Su et al. 2021, equation 19), so that weights may
  be negative. A cache holds sums over keys, of a size that no length changes;
  the output of tokens whose index is not after all of these is NaN.
  Weights are formed only where they are sown or returned.

  For self-attention without a `mask`, and without what acts on scores: window,
  softcap, normaliser, broadcast_dropout and backend.
  """

  def _check(self, method):
    super()._check(method)
    fields = type(self).__dataclass_fields__
    for name in _OF_SCORES:
      value, default = getattr(self, name), fields[name].default
      if value != default:
        raise ValueError(
          f'{name} = {value!r} must be {default!r}: linear attention forms no '
          'scores'
        )
    reason = unsupported_position(method)
    if reason:
      raise ValueError(f'{type(method).__name__} is unsupported: {reason}')

  def _continued(self, query, length, cache_len):
    """Sums cannot be written over: an index has to begin at their end."""
    end = self.get_variable('cache', 'end', 0)
    query, fits = super()._continued(query, length, cache_len)
    if length:
      fits &= jnp.asarray(query.index)[0, 0] == end
    return query, fits

  def _cached(self, k_BMGK, v_BMGK, query, cache_len):
    """These keys and values alone: `_attend` keeps sums."""
    del cache_len
    return k_BMGK, v_BMGK, query

  def _attend(
    self,
    q_BLHK,
    k_BMGK,
    v_BMGK,
    *,
    query_tokens,
    key_tokens,
    mask,
    position,
    position_params,
    dropout,
    layer,
    return_weights,
    terms,
  ):
    """Output (B, L, H, K), and the weights (B, H, L, L) or None."""
    del layer, terms
    query = query_tokens
    for name, is_given in (
      ('key_BMD', key_tokens is not query),
      ('mask', mask is not None),
      ('dropout', dropout is not None),
    ):
      if is_given:
        raise ValueError(f'{name} must be None in linear attention')
    repeats = q_BLHK.shape[2] // k_BMGK.shape[2]
    q_BLHK, k_BLHK = feature_map(q_BLHK), feature_map(k_BMGK)
    k_BLHK, v_BLHK = (
      jnp.repeat(x.astype(jnp.float32), repeats, axis=2)
      for x in (k_BLHK, v_BMGK)
    )
    if query.padding_mask is not None:
      k_BLHK = jnp.where(query.padding_mask[..., None, None], k_BLHK, 0)
    turned_q, turned_k = q_BLHK, k_BLHK
    for _, part, params in parts_with(position, 'rotate', position_params):
      turned_q, turned_k = part.rotate(params, turned_q, turned_k, query, query)
      for x_BLHK in (turned_q, turned_k):
        check_returned(part, 'rotate', x_BLHK, *q_BLHK.shape)
    q_BHLK, k_BHLK, v_BHLK, turned_q, turned_k = (
      x.swapaxes(1, 2) for x in (q_BLHK, k_BLHK, v_BLHK, turned_q, turned_k)
    )
    numerator_BHLK = self._sums('key_values', turned_q, turned_k, v_BHLK, query)
    ones_BHL1 = jnp.ones_like(v_BHLK[..., :1])
    total_BHL1 = self._sums('keys', q_BHLK, k_BHLK, ones_BHL1, query)
    # 0 only where all keys are masked, or all features underflow.
    total_BHL1 = jnp.where(total_BHL1 > 0, total_BHL1, 1)
    output_BLHK = (numerator_BHLK / total_BHL1).swapaxes(1, 2)
    output_BLHK = output_BLHK.astype(v_BMGK.dtype)
    if not return_weights:
      return output_BLHK, None
    if self._has_cache():
      raise ValueError('a cache holds sums, of which no weights can be made')
    weights_BHLM = jnp.einsum('BHLK,BHMK->BHLM', turned_q, turned_k)
    weights_BHLM = weights_BHLM / total_BHL1
    seen = visible(query, query, self.causal)
    if seen is not None:
      weights_BHLM = jnp.where(seen, weights_BHLM, 0)
    return output_BLHK, weights_BHLM

  def _sums(self, name, q_BHLK, k_BHLK, v_BHLV, tokens):
    """linear_sums, continued from those that the cache keeps."""
    if not self._has_cache():
      return linear_sums(q_BHLK, k_BHLK, v_BHLV, tokens, self.causal)[0]
    B, H, _, K = k_BHLK.shape
    kept = self.variable(
      'cache', name, jnp.zeros, (B, H, K, v_BHLV.shape[-1]), jnp.float32
    )
    sums_BHLV, kept.value = linear_sums(
      q_BHLK, k_BHLK, v_BHLV, tokens, self.causal, kept.value
    )
    return sums_BHLV


class LinearAttentionEncoder(Stack):
  """A stack of blocks of linear attention (Katharopoulos et al. 2020).

  Time and memory are linear in length, but for the weights where they are sown.
  Its position method embeds or rotates, and weights are not dropped. Its
  attributes are those of Stack.
  """

  def check(self, embed_dim, *, drops_weights, platform):
    super().check(embed_dim, drops_weights=drops_weights, platform=platform)
    if drops_weights:
      raise ValueError(
        'attention_dropout_rate = 0.0 is needed: linear attention forms no '
        'weights to drop'
      )
    reason = unsupported_position(self.position)
    if reason:
      raise ValueError(
        f'position = {type(self.position).__name__} is unsupported: {reason}; '
        'choose one that embeds or rotates, such as sinusoidal or rotary'
      )

  def _attention(self, index, **fields):
    del index
    return LinearAttention(**fields)
