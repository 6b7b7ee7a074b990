"""Scaled dot-product attention: one pure function, one Flax module around it.

Order of operations (Vaswani et al. 2017, equation 1, with positions added):
content term, scale by K^-1/2, bias, mask, softmax in float32, dropout on the
weights, values, value term. A query that sees no key returns exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout
from selfattn.positions import NoPosition, Position

BACKENDS = ('auto', 'reference', 'xla')


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Softmax over the last axis, float32; a row without keys is all zero."""
  scores = scores.astype(jnp.float32)
  if mask is None:
    return jax.nn.softmax(scores, axis=-1)
  scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
  peak = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  # The second where also keeps a row without keys, whose scores are all equal,
  # from becoming uniform.
  unnormalised = jnp.where(mask, jnp.exp(scores - peak), 0.0)
  total = unnormalised.sum(axis=-1, keepdims=True)
  return unnormalised / jnp.where(total > 0, total, 1.0)


def attend(
  q_BLHK: jax.Array,
  k_BMHK: jax.Array,
  v_BMHK: jax.Array,
  *,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  content: jax.Array | None = None,
  value: Callable[[jax.Array], jax.Array | None] | None = None,
  dropout: Dropout | None = None,
  backend: str = 'auto',
  return_weights: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
  """Attention over H heads.

  Args:
    q_BLHK: queries. Keys share their width K, values may have another.
    k_BMHK: keys.
    v_BMHK: values.
    mask: boolean, broadcasting to (B, H, L, M); True: may look.
    bias: added to the scaled scores, broadcasting to (B, H, L, M).
    content: added to the scores before they are scaled, likewise.
    value: from the weights after dropout to a term of the output, (B, L, H, K).
    dropout: on the weights.
    backend: one of BACKENDS. 'reference' spells out every step; 'xla' is
      `jax.nn.dot_product_attention`; 'auto' is the reference, which the
      compiler fuses at least as well on the devices measured so far.
    return_weights: whether to return the weights as well.

  Returns:
    Output (B, L, H, K) in the dtype of the queries, and the float32 weights
    before dropout (B, H, L, M), or None.

  Raises:
    ValueError: the backend is unknown, or cannot do what is asked.
  """
  if backend not in BACKENDS:
    raise ValueError(f'backend {backend!r} is not one of {BACKENDS}')
  if backend == 'xla':
    reason = why_not_xla(value=value, dropout=dropout)
    if reason:
      raise ValueError(f"backend 'xla' cannot serve: {reason}")
    output = _xla(q_BLHK, k_BMHK, v_BMHK, mask, bias, content)
    if not return_weights:
      return output, None
    # The fused path never forms the weights; they are computed beside it, so
    # that asking for them changes no output.
    return output, _weights(q_BLHK, k_BMHK, mask, bias, content)

  weights_BHLM = _weights(q_BLHK, k_BMHK, mask, bias, content)
  dropped = weights_BHLM if dropout is None else dropout(weights_BHLM)
  output = jnp.einsum(
    'BHLM,BHMK->BHLK', dropped.astype(v_BMHK.dtype), v_BMHK.swapaxes(1, 2)
  ).swapaxes(1, 2)
  term = None if value is None else value(dropped)
  if term is not None:
    output = output + term
  output = output.astype(q_BLHK.dtype)
  return output, weights_BHLM if return_weights else None


def why_not_xla(*, value, dropout) -> str | None:
  """Why `jax.nn.dot_product_attention` cannot serve, or None if it can."""
  if value is not None:
    return 'the position method has a value term, which needs the weights'
  if dropout is not None:
    return 'it has no dropout on the weights'
  return None


def _weights(q_BLHK, k_BMHK, mask, bias, content):
  # Heads before positions: the products are then plain batched matrix
  # products, several times faster on a CPU than with heads inside.
  scores = jnp.einsum(
    'BHLK,BHMK->BHLM',
    q_BLHK.swapaxes(1, 2),
    k_BMHK.swapaxes(1, 2),
    preferred_element_type=jnp.float32,
  )
  if content is not None:
    scores = scores + content
  scores = scores * q_BLHK.shape[-1] ** -0.5
  if bias is not None:
    scores = scores + bias
  return masked_softmax(scores, mask)


def _xla(q_BLHK, k_BMHK, v_BMHK, mask, bias, content):
  if content is not None:
    content = content * q_BLHK.shape[-1] ** -0.5
    bias = content if bias is None else bias + content
  output = jax.nn.dot_product_attention(
    q_BLHK, k_BMHK, v_BMHK, bias=bias, mask=mask, implementation='xla'
  )
  if mask is None:
    return output
  # It averages all values where a query sees nothing; ours is zero there.
  sees_BHL1 = mask.any(axis=-1, keepdims=True)
  return jnp.where(sees_BHL1.swapaxes(1, 2), output, 0)


class Attention(nn.Module):
  """Projections, position hooks, `attend`, and the output projection.

  Sows its float32 weights as `weights` when `intermediates` is mutable, and
  computes nothing for that when it is not.

  Attributes:
    embed_dim: D, width of the output; num_heads must divide it.
    num_heads: H.
    use_bias: whether the four projections have a bias.
    position: a method of selfattn.positions, or None.
    backend: one of BACKENDS.
    dtype: of the computation; parameters stay float32.
  """

  embed_dim: int
  num_heads: int
  use_bias: bool = True
  position: Position | None = None
  backend: str = 'auto'
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(
    self,
    query_BLD: jax.Array,
    key_BMD: jax.Array,
    value_BMD: jax.Array,
    *,
    mask: jax.Array | None = None,
    query_positions=None,
    key_positions=None,
    position_params=None,
    dropout: Dropout | None = None,
    return_weights: bool = False,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Output (B, L, D), and the weights (B, H, L, M) if asked for."""
    if self.embed_dim % self.num_heads:
      raise ValueError(
        f'num_heads = {self.num_heads} does not divide '
        f'the width {self.embed_dim}'
      )

    def heads(name, x):
      x = self._dense(name)(x)
      return x.reshape(*x.shape[:-1], self.num_heads, -1)

    q_BLHK = heads('query', query_BLD)
    k_BMHK = heads('key', key_BMD)
    v_BMHK = heads('value', value_BMD)

    where = (query_positions, key_positions)
    method = self.position or NoPosition(self.embed_dim, self.num_heads)
    q_BLHK = method.rotate(position_params, q_BLHK, query_positions)
    k_BMHK = method.rotate(position_params, k_BMHK, key_positions)
    value = None
    if type(method).value is not Position.value:

      def value(weights_BHLM):
        return method.value(position_params, weights_BHLM, *where)

    is_asked = return_weights or self.is_mutable_collection('intermediates')
    output_BLHK, weights_BHLM = attend(
      q_BLHK,
      k_BMHK,
      v_BMHK,
      mask=mask,
      bias=method.bias(position_params, *where),
      content=method.content(position_params, q_BLHK, k_BMHK, *where),
      value=value,
      dropout=dropout,
      backend=self.backend,
      return_weights=is_asked,
    )
    if is_asked:
      self.sow('intermediates', 'weights', weights_BHLM)
    output_BLD = output_BLHK.reshape(*output_BLHK.shape[:2], -1)
    return self._dense('out')(output_BLD), weights_BHLM

  def _dense(self, name):
    return nn.Dense(
      self.embed_dim,
      use_bias=self.use_bias,
      dtype=self.dtype,
      kernel_init=nn.initializers.xavier_uniform(),
      name=name,
    )
