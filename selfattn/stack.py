"""A stack of blocks of self-attention, whatever the attention is."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.attention import Attention, sow_by_part
from selfattn.blocks import ACTIVATIONS, NORMS, run_blocks
from selfattn.caches import continued
from selfattn.contract import Encoder
from selfattn.dropout import Dropout, check_dropout, drop
from selfattn.masks import Tokens, without_padding
from selfattn.positions import Position
from selfattn.positions.calls import (
  check_position,
  check_returned,
  check_tokens,
  float32,
)
from selfattn.positions.contract import require_one_of


class Stack(Encoder):
  """Positions, then `num_layers` residual blocks of `_attention`.

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
    norm: whether layer norms are before ('pre') or after ('post') each
      residual branch.
    activation: activation of the feed-forward layer.
    causal: whether a token attends only to itself and earlier tokens.
    scan: whether to compile one block and loop over it, for deep stacks.
    remat: whether to recompute each block in the backward pass, which saves
      memory.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  position: Position
  dtype: jnp.dtype
  norm: str = 'pre'
  activation: str = 'gelu'
  causal: bool = False
  scan: bool = False
  remat: bool = False

  def check(self, embed_dim, *, drops_weights, platform):
    for option, allowed in (('norm', NORMS), ('activation', ACTIVATIONS)):
      require_one_of(allowed, option, getattr(self, option))

  def unsupported_cls(self, num_tokens):
    if self.causal:
      return f'attends to itself alone with causal = {self.causal}'
    return None

  def _attention(self, **fields) -> Attention:
    """The attention of a block.

    Args:
      fields: of Attention, those that all stacks share.
    """
    raise NotImplementedError

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array | None = None,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
    *,
    cache_len: int | None = None,
    sow_layers: tuple[int, ...] | None = None,
  ) -> jax.Array:
    """Token vectors (B, L, D) to the same shape; padding is masked.

    Args:
      tokens: Tokens, or a boolean (B, L) array, False at padding; None: no
        padding.
      dropout: on embeddings and branches; None: evaluation.
      attention_dropout: on attention weights; None: none.
      cache_len: tokens that fit into the cache, needed when `cache` is
        mutable. The first call fills an empty cache, and every later one
        continues where the last one ended; the encoder has to be causal.
      sow_layers: layers whose weights are sown where `intermediates` is
        mutable; None: all. With `scan`, None only.
    """
    if x_BLD.ndim != 3:
      raise ValueError(f'vectors of shape {x_BLD.shape} must be (B, L, D)')
    check_position(self.position, x_BLD.shape[-1], self.num_heads, self.causal)
    check_dropout(dropout)
    check_dropout(attention_dropout)
    tokens = Tokens.of(tokens)
    if self.is_mutable_collection('cache') and not self.is_initializing():
      tokens = self._continue(tokens, x_BLD.shape[1], cache_len)
    B, L = x_BLD.shape[:2]
    # Only for `embed`: each block fills in defaults itself, since remat would
    # trace them, and they would no longer be known while tracing.
    known = tokens.with_defaults(L, B)
    check_tokens(self.position, known)

    position_params = {}
    if jax.eval_shape(self.position.init_model, jax.random.key(0)):
      init = float32(self.position.init_model)
      position_params = self.param('position', init)
    x_BLD = without_padding(x_BLD, known)
    x_BLD = self._embed(position_params, x_BLD, known)
    x_BLD = drop(x_BLD, dropout, self.num_layers)

    weights_N2, first_BLGK = self._value_residual(x_BLD.shape)
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
      check_returned(part, 'embed', x_BLD, *before_BLD.shape)
      if not self.is_mutable_collection('intermediates'):
        continue
      if part.has_encoding:
        P[name] = part.encoding(part_params, tokens)
      elif 'embed' in part.hooks:
        P[name] = x_BLD - before_BLD
    sow_by_part(self, P)
    return x_BLD

  def _continue(self, tokens, length, cache_len):
    """Tokens that follow those of earlier calls.

    Layers get their index, and return NaN where they do not fit.
    """
    if not self.causal or self.scan:
      raise ValueError('a cache needs causal=True and scan=False')
    if cache_len is None:
      raise ValueError('a mutable cache needs cache_len, the keys it holds')
    if tokens.index is not None:
      raise ValueError('a cache counts the index itself: index must be None')
    tokens, _ = continued(self, tokens, length, cache_len)
    return tokens

  def _value_residual(self, shape_BLD):
    """Weights and zeros for the first layer's values; see blocks.Block."""
    del shape_BLD
    return None, None

  def _fields(self, embed_dim, cache_len, sow_weights):
    """Fields of a Block."""
    attention = self._attention(
      embed_dim=embed_dim,
      num_heads=self.num_heads,
      position=self.position,
      causal=self.causal,
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
