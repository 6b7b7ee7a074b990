"""Multi-head attention as a Flax module: projections around `attend`."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from selfattn.backends import attend
from selfattn.dropout import Dropout
from selfattn.masks import Tokens
from selfattn.normalisers import Softmax
from selfattn.positions.contract import (
  NoPosition,
  Position,
  parts_with,
  with_state,
)


def sow_by_part(module: nn.Module, P: dict) -> None:
  """Sows `P`: a dict by part, or the array of a single method."""
  if P:
    module.sow('intermediates', 'P', P.get('', P))


class Attention(nn.Module):
  """Projections, position hooks, `attend`, and the output projection.

  With `intermediates` mutable, it sows float32 `weights`, and the encoding of
  its position method or what that added to the scores as `P`; otherwise, they
  cost nothing. With `cache` mutable, keys before rotation and values are kept,
  and later calls attend to them too.

  Attributes:
    embed_dim: D, width of the output; num_heads must divide it.
    num_heads: H.
    num_kv_heads: G, KV heads, each shared by H/G query heads (Ainslie et al.
      2023); 0: num_heads.
    use_bias: whether the four projections have a bias.
    position: a method of selfattn.positions with the same `causal`, or None.
    normaliser: one of selfattn.normalisers, or None: softmax.
    causal, window, softcap, broadcast_dropout, backend: see `attend`.
    qk_norm: RMSNorm of queries and of keys, per head, before their rotation
      (Henry et al. 2020; with learned scales).
    sow_weights: whether weights and `P` are sown.
    in_encoder: whether an encoder around it calls `embed` of the methods that
      are not `per_layer`, and sows their `P`. Without one, such a method is
      refused.
    dtype: of the computation; parameters stay float32.
  """

  embed_dim: int
  num_heads: int
  num_kv_heads: int = 0
  use_bias: bool = True
  position: Position | None = None
  normaliser: Softmax | None = None
  causal: bool = False
  window: tuple[int, int] | None = None
  qk_norm: bool = False
  softcap: float = 0.0
  broadcast_dropout: bool = False
  backend: str = 'auto'
  sow_weights: bool = True
  in_encoder: bool = False
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(
    self,
    query_BLD: jax.Array,
    key_BMD: jax.Array | None = None,
    value_BMD: jax.Array | None = None,
    *,
    query: Tokens | jax.Array | None = None,
    key: Tokens | jax.Array | None = None,
    mask: jax.Array | None = None,
    position_params=None,
    dropout: Dropout | None = None,
    cache_len: int | None = None,
    return_weights: bool = False,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Output (B, L, D), and the weights (B, H, L, M) or None.

    Args:
      key_BMD: None: self-attention.
      value_BMD: None: the keys.
      query, key, mask: see `attend`.
      position_params: from `init_model` of the position method.
      dropout: on the weights.
      cache_len: number of keys that the cache holds, needed while `cache` is
        mutable; query.index is then the index of these tokens in it.
      return_weights: whether to return the weights as well.
    """
    method = self.position or NoPosition(
      self.embed_dim, self.num_heads, self.causal
    )
    self._check(method)
    params = self._params(method, position_params or {})
    is_self = key_BMD is None
    B, L = query_BLD.shape[:2]
    query = Tokens.of(query).with_defaults(L, B)
    key = (
      query if is_self else Tokens.of(key).with_defaults(key_BMD.shape[1], B)
    )
    P = {}
    query_BLD, query = self._embed(method, params, query_BLD, query, P)
    if is_self:
      key_BMD, key = query_BLD, query
    else:
      key_BMD, key = self._embed(method, params, key_BMD, key, {})
    value_BMD = key_BMD if value_BMD is None else value_BMD

    q_BLHK, k_BMGK, v_BMGK = self._project(query_BLD, key_BMD, value_BMD)
    if self.is_mutable_collection('cache') and not self.is_initializing():
      self._check_cache(method, is_self, query, cache_len)
      k_BMGK, v_BMGK, key = self._cached(k_BMGK, v_BMGK, query, cache_len)
      is_self = False

    sows = self.sow_weights and self.is_mutable_collection('intermediates')
    output_BLHK, weights_BHLM = self._attend(
      q_BLHK,
      k_BMGK,
      v_BMGK,
      query=query,
      key=None if is_self else key,
      mask=mask,
      position=method,
      position_params=params,
      dropout=dropout,
      return_weights=return_weights or sows,
      terms=P,
    )
    if sows:
      self.sow('intermediates', 'weights', weights_BHLM)
      self._sow_encoding(method, params, query, P)
    output_BLD = output_BLHK.reshape(*output_BLHK.shape[:2], -1)
    return self._dense('out', self.embed_dim)(output_BLD), weights_BHLM

  def _attend(self, *q_k_v, **given):
    """See `attend`, whose arguments that are no fields are given."""
    normaliser = self.normaliser or Softmax(self.num_heads)
    return attend(
      *q_k_v,
      causal=self.causal,
      window=self.window,
      normaliser=normaliser,
      normaliser_params=self._of_layer('normaliser', normaliser.init),
      softcap=self.softcap,
      broadcast_dropout=self.broadcast_dropout,
      backend=self.backend,
      **given,
    )

  def _check(self, method: Position) -> None:
    """Raises ValueError for fields that do not go together."""
    for name, heads, of in (
      ('num_heads', self.num_heads, self.embed_dim),
      ('num_kv_heads', self.num_kv_heads or self.num_heads, self.num_heads),
    ):
      if of % heads:
        raise ValueError(f'{name} = {heads} does not divide {of}')
    for _, part in method.parts:
      kind = type(part).__name__
      if part.causal != self.causal:
        raise ValueError(
          f'{kind} has causal = {part.causal}, and its Attention '
          f'causal = {self.causal}; make them the same'
        )
      is_embedded = part.per_layer or self.in_encoder
      if 'embed' in part.hooks and not is_embedded:
        raise ValueError(
          f'{kind} adds positions to the input of an encoder, not in an '
          'Attention: call its `embed` there, and set in_encoder=True'
        )

  def _project(self, query_BLD, key_BMD, value_BMD):
    """Queries, keys and values by head."""
    head_dim = self.embed_dim // self.num_heads
    num_kv_heads = self.num_kv_heads or self.num_heads
    q_BLHK = self._heads('query', query_BLD, self.num_heads, head_dim)
    k_BMGK = self._heads('key', key_BMD, num_kv_heads, head_dim)
    v_BMGK = self._heads('value', value_BMD, num_kv_heads, head_dim)
    if self.qk_norm:
      q_BLHK = nn.RMSNorm(dtype=self.dtype, name='query_norm')(q_BLHK)
      k_BMGK = nn.RMSNorm(dtype=self.dtype, name='key_norm')(k_BMGK)
    return q_BLHK, k_BMGK, v_BMGK

  def _heads(self, name, x, num_heads, head_dim):
    x = self._dense(name, num_heads * head_dim)(x)
    return x.reshape(*x.shape[:-1], num_heads, head_dim)

  def _dense(self, name, features):
    return nn.Dense(
      features,
      use_bias=self.use_bias,
      dtype=self.dtype,
      kernel_init=nn.initializers.xavier_uniform(),
      name=name,
    )

  def _of_layer(self, name, init):
    """Parameters of this layer; {}, and no subtree, if there are none."""
    if not jax.eval_shape(init, jax.random.key(0)):
      return {}
    return self.param(name, init)

  def _params(self, method, of_model):
    """Position parameters of the model and of this layer, in one tree."""
    of_layer = self._of_layer('position', method.init_layer)
    both = [traverse_util.flatten_dict(tree) for tree in (of_model, of_layer)]
    for path in both[0].keys() & both[1].keys():
      raise ValueError(
        f'{".".join(path)!r} is a parameter of both the model and of a layer'
      )
    return traverse_util.unflatten_dict(both[0] | both[1])

  def _embed(self, method, params, x_BLD, tokens: Tokens, P: dict):
    """Input after `embed` of `per_layer` parts, and tokens with state.

    Args:
      P: gets what each such part without an encoding added.
    """
    for name, part, part_params in parts_with(method, 'embed', params):
      if part.per_layer:
        before_BLD, x_BLD = x_BLD, part.embed(part_params, x_BLD, tokens)
        if not part.has_encoding:
          P[name] = (x_BLD - before_BLD).astype(jnp.float32)
    return x_BLD, with_state(method, params, x_BLD, tokens)

  def _sow_encoding(self, method, params, query: Tokens, P: dict):
    for name, part in method.parts:
      if part.has_encoding and (part.per_layer or not self.in_encoder):
        P[name] = part.encoding(params.get(name, {}) if name else params, query)
    sow_by_part(self, P)

  def _check_cache(self, method, is_self, query: Tokens, cache_len) -> None:
    """Raises ValueError for what a cache does not support."""
    if not is_self:
      raise ValueError('a cache is for self-attention: key must be None')
    if not method.supports_cache:
      without = [part for _, part in method.parts if not part.supports_cache]
      raise ValueError(
        'a cache keeps no input vectors of earlier tokens, which are needed by '
        + ', '.join(type(part).__name__ for part in without)
      )
    if cache_len is None:
      raise ValueError('a mutable cache needs cache_len, the keys it holds')
    if query.segments is not None:
      raise ValueError('a cache holds one segment a row; segments must be None')
    if isinstance(query.index, np.ndarray):
      first = query.index[:, :1]
      is_row = (first == first[0]).all() and (np.diff(query.index) == 1).all()
      if not is_row or query.index.max() >= cache_len:
        raise ValueError(
          f'index {query.index.min()}..{query.index.max()} must be '
          f'consecutive, the same for all rows, and below '
          f'cache_len = {cache_len}'
        )

  def _cached(self, k_BMGK, v_BMGK, query: Tokens, cache_len: int):
    """All keys and values so far, these included, and their Tokens."""
    B, L = k_BMGK.shape[:2]
    padding_mask = query.padding_mask
    if padding_mask is None:
      padding_mask = jnp.ones((1, L), bool)
    new = {
      'keys': k_BMGK,
      'values': v_BMGK,
      'positions': query.positions,
      'padding_mask': padding_mask,
      'ids': query.ids,
      'state': query.state,
    }
    for name, tree in new.items():
      if tree is None:
        continue
      rows = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (B, *jnp.shape(x)[1:])), tree
      )
      kept = self.variable('cache', name, _zeros, rows, cache_len)
      kept.value = new[name] = jax.tree.map(
        lambda old, x: jax.lax.dynamic_update_slice_in_dim(
          old, x, query.index[0, 0], axis=1
        ),
        kept.value,
        rows,
      )
    keys, values = new.pop('keys'), new.pop('values')
    return keys, values, Tokens(**new).with_defaults(cache_len)


def _zeros(rows, cache_len: int):
  return jax.tree.map(
    lambda x: jnp.zeros((x.shape[0], cache_len, *x.shape[2:]), x.dtype), rows
  )
