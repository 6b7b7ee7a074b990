"""Multi-head attention as a Flax module: projections around `attend`."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.backends import attend
from selfattn.caches import cached, check_cache, continued
from selfattn.dropout import Dropout
from selfattn.layers import ALONE, Layer, narrowed
from selfattn.normalisers import Softmax
from selfattn.norms import NORMS
from selfattn.positions.calls import (
  check_params,
  check_position,
  check_tokens,
  embedded,
  merged,
  sow_by_part,
  with_state,
)
from selfattn.positions.contract import NoPosition, Position
from selfattn.projections import (
  GATES,
  KERNEL_INITS,
  NORMED,
  dense,
  gate,
  project,
)
from selfattn.tokens import Tokens, sides, without_padding

OUTPUT_GATES = ('none', 'headwise', 'elementwise')


class Attention(nn.Module):
  """Projections, position hooks, `attend`, and the output projection.

  With `intermediates` mutable, it sows float32 `weights`, and the encoding of
  its position method or what that added to the scores as `P`; otherwise, they
  cost nothing. With `cache` mutable, keys before rotation and values are kept,
  and later calls attend to them too.

  Attributes:
    embed_dim: D, width of the output; without head_dim, num_heads must divide
      it.
    num_heads: H.
    head_dim: K; 0: D/H.
    num_kv_heads: G, KV heads, each shared by H/G query heads (Ainslie et al.
      2023); 0: num_heads.
    use_bias: whether the four projections have a bias, and a gate.
    use_out_bias: whether the output projection has one; None: as the others.
    use_key_bias: whether that of keys has one; None: as the others. It changes
      no weights, unless a position method reads keys.
    kernel_init: initial values of their kernels, one of KERNEL_INITS.
    position: a method of selfattn.positions with the same `causal`, or None.
    normaliser: one of selfattn.normalisers, or None: softmax.
    causal, window, softcap, broadcast_dropout, backend, platform: see `attend`.
    scale: factor of the scores; 0: K^-1/2.
    qk_norm: whether queries and keys are normalised before their rotation
      (Henry et al. 2020; with learned scales).
    qk_norm_kind: the norm, one of selfattn.norms.NORMS.
    qk_norm_over: one of NORMED: what it is over.
    clip_qkv: bound of queries, keys and values, which are clipped to it before
      that norm (MosaicML 2023, MPT); 0: none.
    output_gate: one of OUTPUT_GATES. The outputs of the heads are multiplied by
      a function of a linear map of the queries' input (Qiu et al. 2025): one
      gate a head, or one a channel.
    gate_activation: that function, one of GATES.
    eps: epsilon of the norms.
    sow_weights: whether weights and `P` are sown.
    in_encoder: whether an encoder around it calls `embed` of the methods that
      are not `per_layer`, and sows their `P`. Without one, such a method is
      refused.
    dtype: of the computation; parameters stay float32.

  Examples:
    >>> x_BLD = jnp.ones((2, 5, 12))
    >>> layer = selfattn.Attention(embed_dim=12, num_heads=3)
    >>> variables = layer.init(jax.random.key(0), x_BLD)
    >>> output_BLD, weights_BHLM = layer.apply(
    ...   variables, x_BLD, return_weights=True
    ... )
    >>> output_BLD.shape, weights_BHLM.shape
    ((2, 5, 12), (2, 3, 5, 5))
  """

  embed_dim: int
  num_heads: int
  head_dim: int = 0
  num_kv_heads: int = 0
  use_bias: bool = True
  use_out_bias: bool | None = None
  use_key_bias: bool | None = None
  kernel_init: str = 'xavier'
  position: Position | None = None
  normaliser: Softmax | None = None
  causal: bool = False
  window: tuple[int, int] | None = None
  scale: float = 0.0
  qk_norm: bool = False
  qk_norm_kind: str = 'rms'
  qk_norm_over: str = 'head'
  clip_qkv: float = 0.0
  output_gate: str = 'none'
  gate_activation: str = 'sigmoid'
  eps: float = 1e-6
  softcap: float = 0.0
  broadcast_dropout: bool = False
  backend: str = 'auto'
  platform: str | None = None
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
    query_tokens: Tokens | jax.Array | None = None,
    key_tokens: Tokens | jax.Array | None = None,
    mask: jax.Array | None = None,
    position_params=None,
    mix_values: Callable[[jax.Array], jax.Array] | None = None,
    dropout: Dropout | None = None,
    cache_len: int | None = None,
    layer: Layer = ALONE,
    return_weights: bool = False,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Output (B, L, D), and the weights (B, H, L, M) or None.

    Args:
      query_BLD: vectors of the queries; any width, as those of keys and values,
        unless the position method reads them.
      key_BMD: None, or the array `query_BLD` itself: self-attention.
      value_BMD: None: the keys.
      query_tokens, key_tokens: Tokens, or a padding mask. In self-attention,
        those of one side are those of both; None on both sides: no padding. In
        cross-attention, key_tokens are needed beside query_tokens.
      mask: see `attend`.
      position_params: from `init_model` of the position method.
      mix_values: from values (B, M, G, K) to those that are cached and attended
        to, such as a mean with values of another layer; None: no change.
      dropout: on the weights.
      cache_len: number of keys that the cache holds, needed while `cache` is
        mutable. These tokens follow those of earlier calls, unless their index
        says where they belong. Tokens beyond cache_len are a ValueError, or NaN
        where the index is traced.
      layer: which one of a stack it is, for methods that differ by layer.
      return_weights: whether to return the weights as well.

    Raises:
      ValueError: a field or an argument is out of range, or does not suit the
        others; see also `attend`.
    """
    method = self.position
    if method is None:
      sizes = self.embed_dim, self.num_heads, self.causal
      method = NoPosition(*sizes, head_width=self.head_dim or None)
    self._check(method)
    method = method.at(layer)
    self._check_vectors(query_BLD, key_BMD, value_BMD)
    params = self._params(method, position_params or {})
    is_self = key_BMD is None or key_BMD is query_BLD
    vectors = query_BLD, query_BLD if is_self else key_BMD, value_BMD
    query, key = sides(query_tokens, key_tokens, is_self)
    query, key, fits = self._placed(method, vectors, query, key, cache_len)

    P = {}
    vectors, query, key = self._embedded(method, params, vectors, query, key, P)
    q_BLHK, k_BMGK, v_BMGK, params = project(self, *vectors, method, params)
    if mix_values is not None:
      v_BMGK = mix_values(v_BMGK)
    if cache_len is not None and fits is not None:
      # Of tokens that do not fit, so that no later call takes them for keys.
      k_BMGK, v_BMGK = (jnp.where(fits, x, jnp.nan) for x in (k_BMGK, v_BMGK))
      k_BMGK, v_BMGK, key = self._cached(k_BMGK, v_BMGK, query, cache_len)

    sows = self.sow_weights and self.is_mutable_collection('intermediates')
    output_BLHK, weights_BHLM = self._attend(
      q_BLHK,
      k_BMGK,
      v_BMGK,
      query_tokens=query,
      key_tokens=key,
      mask=mask,
      position=method,
      position_params=params,
      dropout=dropout,
      layer=layer,
      return_weights=return_weights or sows,
      terms=P,
    )
    if sows:
      self.sow('intermediates', 'weights', weights_BHLM)
      self._sow_encoding(method, params, query, P)
    output_BLD = self._output(output_BLHK, vectors[0])
    if fits is not None:
      output_BLD = jnp.where(fits, output_BLD, jnp.nan)
    return output_BLD, weights_BHLM if return_weights else None

  def _placed(self, method, vectors, query: Tokens, key: Tokens, cache_len):
    """Tokens of both sides with defaults, and whether they fit into the cache.

    Without a cache, None in place of the last.
    """
    (B, L, _), M = vectors[0].shape, vectors[1].shape[1]
    is_self, fits = key is query, None
    if self._has_cache():
      cache_len = check_cache(method, is_self, query, cache_len)
      query, fits = self._continued(query, L, cache_len)
    query = query.with_defaults(L, B)
    key = query if is_self else key.with_defaults(M, B)
    check_tokens(method, query, key)
    return query, key, fits

  def _embedded(self, method, params, vectors, query: Tokens, key: Tokens, P):
    """Vectors of queries, keys and values with positions; tokens with state.

    Args:
      P: gets what parts without an encoding added to the queries.
    """
    query_BLD, key_BMD, value_BMD = vectors
    is_self = key is query
    query_BLD, query = self._embed(method, params, query_BLD, query, P)
    if is_self:
      key_BMD, key = query_BLD, query
    else:
      key_BMD, key = self._embed(method, params, key_BMD, key, {})
    if value_BMD is None:
      value_BMD = key_BMD
    else:
      value_BMD = without_padding(value_BMD, key)
    return (query_BLD, key_BMD, value_BMD), query, key

  def _output(self, output_BLHK, query_BLD):
    """Outputs of the heads, gated, through the last projection: (B, L, D)."""
    if self.output_gate != 'none':
      output_BLHK *= gate(self, query_BLD)
    to_output = dense(self, 'out', self.embed_dim, self.use_out_bias)
    B, L, H, K = output_BLHK.shape
    return to_output(output_BLHK.reshape(B, L, H * K))

  def _attend(self, *q_k_v, layer: Layer, **arguments):
    """`attend` with the fields of this layer."""
    normaliser, params = self.normaliser, {}
    if isinstance(normaliser, Softmax):
      params = self._of_layer('normaliser', normaliser.init)
      normaliser = normaliser.at(layer)
    return attend(
      *q_k_v,
      causal=self.causal,
      window=self.window,
      normaliser=normaliser,
      normaliser_params=params,
      scale=self.scale or None,
      softcap=self.softcap,
      broadcast_dropout=self.broadcast_dropout,
      backend=self.backend,
      platform=self.platform,
      has_finite_padding=True,
      **arguments,
    )

  def _continued(self, query: Tokens, length: int, cache_len: int):
    """Tokens with an index, and whether they fit; see caches.continued."""
    return continued(self, query, length, cache_len)

  def _has_cache(self) -> bool:
    return self.is_mutable_collection('cache') and not self.is_initializing()

  def _cached(self, k_BMGK, v_BMGK, query: Tokens, cache_len: int):
    """All keys and values so far, these included, and their Tokens."""
    return cached(self, k_BMGK, v_BMGK, query, cache_len)

  def _check(self, method: Position) -> None:
    """Raises ValueError for fields that do not go together."""
    inner = self.num_heads * self.head_dim or self.embed_dim
    for name, heads, of in (
      ('num_heads', self.num_heads, inner),
      ('num_kv_heads', self.num_kv_heads or self.num_heads, self.num_heads),
    ):
      if heads < 1 or of % heads:
        raise ValueError(f'{name} = {heads} does not divide {of}')
    for name, allowed in (
      ('output_gate', OUTPUT_GATES),
      ('gate_activation', tuple(GATES)),
      ('qk_norm_kind', tuple(NORMS)),
      ('qk_norm_over', NORMED),
      ('kernel_init', tuple(KERNEL_INITS)),
    ):
      if getattr(self, name) not in allowed:
        raise ValueError(
          f'{name} = {getattr(self, name)!r} is not one of {allowed}'
        )
    check_position(
      method, self.embed_dim, self.num_heads, self.causal, self.head_dim
    )
    for _, part in method.parts:
      is_embedded = part.per_layer or self.in_encoder
      if 'embed' in part.hooks and not is_embedded:
        raise ValueError(
          f'{type(part).__name__} adds positions to the input of an encoder, '
          'not in an Attention: call its `embed` there, and set in_encoder=True'
        )

  def _check_vectors(self, query_BLD, key_BMD, value_BMD) -> None:
    """Raises ValueError for arrays that are no vectors of the same batch."""
    B = query_BLD.shape[0]
    arrays = {'query': query_BLD, 'key': key_BMD, 'value': value_BMD}
    for name, x in arrays.items():
      if x is not None and (x.ndim != 3 or x.shape[0] != B):
        raise ValueError(
          f'{name} vectors of shape {x.shape} must be '
          f'(batch, length, width), of the batch of the queries'
        )

  def _of_layer(self, name, init):
    """Parameters of this layer; {}, and no subtree, if there are none."""
    if not jax.eval_shape(init, jax.random.key(0)):
      return {}
    return self.param(name, init)

  def _params(self, method, of_model):
    """Position parameters of the model and of this layer, in one tree."""
    of_layer = self._of_layer('position', method.init_layer)
    params = narrowed(merged(of_model, of_layer))
    check_params(method, params)
    return params

  def _embed(self, method, params, x_BLD, tokens: Tokens, P: dict):
    """Input after `embed` of `per_layer` parts, and tokens with state."""
    x_BLD = without_padding(x_BLD, tokens)
    parts = [name for name, part in method.parts if part.per_layer]
    x_BLD = embedded(method, params, x_BLD, tokens, parts, P)
    return x_BLD, with_state(method, params, x_BLD, tokens)

  def _sow_encoding(self, method, params, query: Tokens, P: dict):
    for name, part in method.parts:
      if part.has_encoding and (part.per_layer or not self.in_encoder):
        P[name] = part.encoding(params.get(name, {}) if name else params, query)
    sow_by_part(self, P)
