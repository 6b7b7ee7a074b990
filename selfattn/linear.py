"""Linear attention: sums over keys in place of a weight for each pair."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from selfattn.attention import Attention
from selfattn.linear_sums import linear_sums
from selfattn.masks import visible
from selfattn.positions.calls import check_returned, parts_with
from selfattn.positions.contract import Position
from selfattn.stack import Stack

# Fields of Attention that act on scores or weights, which are not formed.
_OF_SCORES = (
  'window', 'normaliser', 'scale', 'softcap', 'broadcast_dropout', 'backend',
)  # fmt: skip


def feature_map(x: jax.Array) -> jax.Array:
  """elu(x) + 1, float32 (Katharopoulos et al. 2020, equation 7).

  It is computed without the rounding of a sum of nearly -1 and 1.
  """
  x = x.astype(jnp.float32)
  return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


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
  outputs from a token on whose index is not the next one are NaN.
  Weights are formed only where they are sown or returned.

  For self-attention without a `mask`, and without what acts on scores: window,
  scale, softcap, normaliser, broadcast_dropout and backend.
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
    """Tokens that follow the cached ones; sums cannot be written over."""
    end = self.get_variable('cache', 'end', 0)
    query, fits = super()._continued(query, length, cache_len)
    if length:
      fits &= jnp.asarray(query.index)[0, 0] == end
    return query, fits

  def _cached(self, k_BMGK, v_BMGK, query, cache_len):
    """The new keys and values alone, because `_attend` keeps sums."""
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

  Time and memory are linear in length, except for weights that are sown. The
  position method has to embed or rotate. Weights are not dropped. Attributes
  are those of Stack.
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
