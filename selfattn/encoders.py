"""Encoders: token vectors in, token vectors out, chosen by name.

To add one: a subclass of selfattn.contract.Encoder, a line in ENCODERS, a row
in test_encoders.py.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.attention import OUTPUT_GATES, Attention, sow_by_part
from selfattn.backends import BACKENDS
from selfattn.baselines import (
  BowEncoder,
  ConvolutionEncoder,
  RecurrentEncoder,
)
from selfattn.blocks import ACTIVATIONS, NORMS, run_blocks
from selfattn.contract import Encoder
from selfattn.dropout import Dropout, drop
from selfattn.kernels import unsupported_reason
from selfattn.masks import Tokens
from selfattn.normalisers import Softmax
from selfattn.positions import Position
from selfattn.positions.contract import require


class AttentionEncoder(Encoder):
  """Positions, then `num_layers` residual blocks of self-attention.

  Sows the encoding of the position method as `P`, float32: what is added to
  tokens (1, L, D) or to scores (1, H, L, L), the cosines and sines of a
  rotation (1, L, K), or vectors by distance (1 or H, N, K). It is sown here,
  or in every layer if every layer has parameters of its own. Parameters are one
  subtree per layer, `block_0`, `block_1`, ..., with and without `scan` and
  `remat`.

  Attributes:
    num_layers: number of blocks.
    num_heads: H.
    mlp_dim: F.
    position: a method of selfattn.positions.
    dtype: of the computation.
    num_kv_heads: see selfattn.attention.Attention; 0: num_heads.
    norm: 'pre' or 'post'.
    activation: 'relu' or 'gelu'.
    causal: whether a token attends only to itself and earlier tokens.
    window: (left, right), at most so many tokens on each side; (): all.
    qk_norm: normalise queries and keys.
    output_gate: 'none', 'headwise' or 'elementwise'; see Attention.
    value_residual: whether values of later layers are l1 v_1 + l2 v, with v_1
      those of the first layer and two learned weights of each layer, 0.5 at
      initialisation (Zhou et al. 2024, learnable ResFormer).
    softcap: of the scores; 0: none.
    broadcast_dropout: drop the same weights in all rows and heads.
    backend: one of selfattn.backends.BACKENDS.
    scan: compile one block and loop over it; for deep stacks.
    remat: recompute a block in the backward pass; for memory.
    normaliser: one of selfattn.normalisers; None: softmax.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  position: Position
  dtype: jnp.dtype
  num_kv_heads: int = 0
  norm: str = 'pre'
  activation: str = 'gelu'
  causal: bool = False
  window: tuple[int, ...] = ()
  qk_norm: bool = False
  output_gate: str = 'none'
  value_residual: bool = False
  softcap: float = 0.0
  broadcast_dropout: bool = False
  backend: str = 'auto'
  scan: bool = False
  remat: bool = False
  normaliser: Softmax | None = None

  def check(self, embed_dim, *, drops_weights, platform):
    for option, allowed in (
      ('norm', NORMS),
      ('activation', ACTIVATIONS),
      ('output_gate', OUTPUT_GATES),
      ('backend', BACKENDS),
    ):
      value = getattr(self, option)
      among = f'one of {", ".join(sorted(allowed))}'
      require(value in allowed, option, value, among)
    heads = self.num_kv_heads or self.num_heads
    require(
      0 < heads <= self.num_heads and self.num_heads % heads == 0,
      'num_kv_heads',
      self.num_kv_heads,
      f'0 or a divisor of num_heads = {self.num_heads}',
    )
    is_pair = len(self.window) in (0, 2)
    require(
      is_pair and all(type(n) is int and n >= -1 for n in self.window),
      'window',
      self.window,
      '() or (left, right), each at least -1',
    )
    require(
      0 <= self.softcap < float('inf'),
      'softcap',
      self.softcap,
      'at least 0 and finite',
    )
    normaliser = self.normaliser or Softmax(self.num_heads)
    require(
      self.causal or not normaliser.causal_only,
      'causal',
      self.causal,
      f'True with {type(normaliser).__name__}, which reads keys before their '
      'query alone',
    )
    require(
      self.num_heads % 2 == 0 or not normaliser.pairs_heads,
      'num_heads',
      self.num_heads,
      f'even with {type(normaliser).__name__}, which pairs heads',
    )
    require(
      self.num_layers > 1 or not self.value_residual,
      'value_residual',
      self.value_residual,
      f'False with num_layers = {self.num_layers}: it is for later layers',
    )
    reason = unsupported_reason(
      self.backend,
      platform=platform,
      dtype=self.dtype,
      head_dim=embed_dim // self.num_heads,
      has_dropout=drops_weights,
      has_softcap=self.softcap > 0,
      hooks=self.position.hooks,
      rotated_dim=self.position.rotated_dim,
      normaliser=self.normaliser,
    )
    if reason:
      raise ValueError(
        f'backend = {self.backend!r} is unsupported: {reason}; auto, reference '
        'and chunked support everything'
      )

  def unsupported_cls(self, num_tokens):
    if self.causal:
      return f'attends to itself alone with causal = {self.causal}'
    # [CLS] stands before all tokens.
    if self.window and -1 < self.window[1] < num_tokens:
      return (
        f'attends to only {self.window[1]} of the tokens with '
        f'window = {self.window}'
      )
    return None

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
    *,
    cache_len: int | None = None,
    sow_layers: tuple[int, ...] | None = None,
  ) -> jax.Array:
    """Token vectors (B, L, D) to the same shape; padding is masked.

    Args:
      tokens: Tokens, or a boolean (B, L) array, False at padding.
      dropout: on embeddings and branches; None: evaluation.
      attention_dropout: on attention weights; None: none.
      cache_len: tokens that fit into the cache, needed when `cache` is
        mutable. The first call fills an empty cache, and every later one
        continues where the last one ended; the encoder has to be causal.
      sow_layers: layers whose weights are sown where `intermediates` is
        mutable; None: all. With `scan`, None only.
    """
    tokens = Tokens.of(tokens)
    if self.is_mutable_collection('cache') and not self.is_initializing():
      tokens, fits = self._continue(tokens, x_BLD.shape[1], cache_len)
      x_BLD = jnp.where(fits, x_BLD, jnp.nan)
    B, L = x_BLD.shape[:2]
    # Only for `embed`: each block fills in defaults itself, since remat would
    # trace them, and they would no longer be known while tracing.
    known = tokens.with_defaults(L, B)

    position_params = {}
    if jax.eval_shape(self.position.init_model, jax.random.key(0)):
      position_params = self.param('position', self.position.init_model)
    x_BLD = self._embed(position_params, x_BLD, known)
    x_BLD = drop(x_BLD, dropout, self.num_layers)

    weights_N2 = first_BLGK = None
    if self.value_residual:
      weights_N2 = self._value_weights()
      heads = self.num_kv_heads or self.num_heads
      head_dim = x_BLD.shape[-1] // self.num_heads
      first_BLGK = jnp.zeros((B, L, heads, head_dim), self.dtype)
    shared = (
      tokens, position_params, weights_N2, dropout, attention_dropout
    )  # fmt: skip
    fields = functools.partial(self._fields, x_BLD.shape[-1], cache_len)
    x_BLD, _ = run_blocks(self, fields, (x_BLD, first_BLGK), shared, sow_layers)
    if self.norm == 'pre':
      x_BLD = nn.LayerNorm(dtype=self.dtype, name='norm_out')(x_BLD)
    return x_BLD

  def _embed(self, position_params, x_BLD, tokens):
    """Vectors with positions; sows encodings that all layers share."""
    P = {}
    for name, part in self.position.parts:
      if part.per_layer:
        continue
      part_params = position_params.get(name, {}) if name else position_params
      before_BLD, x_BLD = x_BLD, part.embed(part_params, x_BLD, tokens)
      if not self.is_mutable_collection('intermediates'):
        continue
      if part.has_encoding:
        P[name] = part.encoding(part_params, tokens)
      elif 'embed' in part.hooks:
        P[name] = (x_BLD - before_BLD).astype(jnp.float32)
    sow_by_part(self, P)
    return x_BLD

  def _value_weights(self):
    """Weights of the first values and of its own for each layer, (N, 2)."""
    later_N2 = self.param(
      'value_residual',
      nn.initializers.constant(0.5),
      (self.num_layers - 1, 2),
    )
    return jnp.concatenate([jnp.array([[0.0, 1.0]]), later_N2])

  def _continue(self, tokens, length, cache_len):
    """Tokens that continue at the end of the cache, and whether they fit."""
    if not self.causal or self.scan:
      raise ValueError('a cache needs causal=True and scan=False')
    if cache_len is None:
      raise ValueError('a mutable cache needs cache_len, the keys it holds')
    if tokens.index is not None:
      raise ValueError('a cache counts the index itself: index must be None')
    end = self.variable('cache', 'end', jnp.zeros, (), jnp.int32)
    begin, end.value = end.value, end.value + length
    if not isinstance(end.value, jax.core.Tracer) and end.value > cache_len:
      raise ValueError(
        f'{int(end.value)} tokens do not fit into cache_len = {cache_len}'
      )
    index = begin + jnp.arange(length)[None]
    positions = index if tokens.positions is None else tokens.positions
    return tokens.replace(
      index=index, positions=positions
    ), end.value <= cache_len

  def _fields(self, embed_dim, cache_len, sow_weights):
    """Fields of a Block."""
    attention = Attention(
      embed_dim,
      self.num_heads,
      num_kv_heads=self.num_kv_heads,
      position=self.position,
      normaliser=self.normaliser,
      causal=self.causal,
      window=self.window or None,
      qk_norm=self.qk_norm,
      output_gate=self.output_gate,
      softcap=self.softcap,
      broadcast_dropout=self.broadcast_dropout,
      backend=self.backend,
      sow_weights=sow_weights,
      in_encoder=True,
      dtype=self.dtype,
      parent=None,
    )
    return {
      'attention': attention,
      'mlp_dim': self.mlp_dim,
      'norm': self.norm,
      'activation': self.activation,
      'dtype': self.dtype,
      'cache_len': cache_len,
    }


ENCODERS: dict[str, type[Encoder]] = {
  'attention': AttentionEncoder,
  'cnn': ConvolutionEncoder,
  'rnn': RecurrentEncoder,
  'bow': BowEncoder,
}
