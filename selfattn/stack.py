"""Stacks of blocks of self-attention, whatever the attention is."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.arrays import as_floats
from selfattn.attention import Attention
from selfattn.blocks import Block, OfAllLayers, PreNorm
from selfattn.caches import continued
from selfattn.contract import Encoder
from selfattn.dropout import Dropout, check_dropout, drop
from selfattn.norms import NORMS
from selfattn.positions import Position
from selfattn.positions.calls import (
  check_position,
  check_tokens,
  embedded,
  sow_by_part,
)
from selfattn.positions.contract import require
from selfattn.tokens import Tokens, without_padding

# Collections of what layers sow: attention weights and encodings of positions,
# and what measures read without them.
_SOWN = ('intermediates', 'measured')


class Stack(Encoder):
  """Positions, then `num_layers` blocks of `_attention`.

  Sows the encoding of the position method as `P`, float32: what is added to
  tokens (1, L, D) or to scores (1, H, L, L), the cosines and sines of a
  rotation (1, L, K), or vectors by distance (1 or H, N, K). It is sown here,
  or in every layer if every layer has parameters of its own. Parameters are one
  subtree per layer, `block_0`, `block_1`, ..., with and without `scan` and
  `remat`, and so is what layers sow.

  Attributes:
    num_layers: number of blocks.
    num_heads: H.
    mlp_dim: F.
    position: a method of selfattn.positions, or a pattern of them over layers.
    dtype: of the computation.
    block: an object of selfattn.blocks, with its options; None: PreNorm().
    experts: in place of the feed-forward network of blocks; None: it is dense.
    embed_dim: D; None: that of the input.
    causal: whether a token attends only to itself and earlier tokens.
    scan: whether to compile one block, or one period of a pattern over layers,
      and loop over it, for deep stacks; with a cache, every block is compiled.
    remat: whether to recompute each block in the backward pass, which saves
      memory.
    share_layers: whether all layers have the same parameters (Lan et al. 2020,
      section 3.1), those of block_0.
    token_dim: width of the embeddings of tokens and positions, which a linear
      map takes to D (Lan et al. 2020, section 3.1); 0: D, without a map.
    input_scale: factor of the embeddings of tokens.
    token_dropout_id: the id of a token whose embeddings are 0, and those of the
      others are divided by their share of the text (ESM-2, Lin et al. 2023,
      their code: [MASK] is a token that was dropped); -1: none.
    input_norm: whether embeddings are normalised, with those of positions.
    use_final_norm: whether vectors are normalised after the last block, where
      that does not do it.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  position: Position
  dtype: jnp.dtype
  block: Block | None = None
  experts: Any = None
  embed_dim: Any = None
  causal: bool = False
  scan: bool = False
  remat: bool = False
  share_layers: bool = False
  token_dim: int = 0
  input_scale: float = 1.0
  token_dropout_id: int = -1
  input_norm: bool = False
  use_final_norm: bool = True

  def check(self, embed_dim, *, drops_weights, platform):
    longest = max(self._patterns())
    require(
      longest <= self.num_layers,
      'num_layers',
      self.num_layers,
      f'at least {longest}, the layers of a pattern',
    )
    require(
      not self.share_layers or longest == 1,
      'share_layers',
      self.share_layers,
      'False with a pattern over layers',
    )
    require(
      self.token_dropout_id < 0 or not self.causal,
      'token_dropout_id',
      self.token_dropout_id,
      '-1 in a causal encoder: it counts later tokens',
    )

  def unsupported_cls(self, num_tokens):
    if self.causal:
      return f'attends to itself alone with causal = {self.causal}'
    return None

  def _attention(self, index: int, **fields) -> Attention:
    """The attention of a layer.

    Args:
      index: number of the layer.
      fields: of Attention, those that all stacks share.
    """
    raise NotImplementedError

  def _patterns(self) -> list[int]:
    """Lengths of the patterns over layers."""
    lengths = [self.position.period]
    if self.experts is not None and self.experts.dense_layers:
      lengths.append(self.num_layers)
    if not getattr(self._template(), 'norms_first', True):
      lengths.append(self.num_layers)
    return lengths

  def _period(self) -> int:
    """The number of layers after which the fields of attention repeat."""
    return math.lcm(*self._patterns())

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
    for index in range(self.position.period):
      check_position(
        self.position.of_layer(index),
        x_BLD.shape[-1],
        self.num_heads,
        self.causal,
        self._head_dim(x_BLD.shape[-1]),
      )
    check_dropout(dropout)
    check_dropout(attention_dropout)
    tokens, x_BLD = Tokens.of(tokens), as_floats(x_BLD)
    if self.is_mutable_collection('cache') and not self.is_initializing():
      tokens = self._continue(tokens, x_BLD.shape[1], cache_len)
    B, L = x_BLD.shape[:2]
    # `embed` alone reads `known`. Each block fills in defaults itself, because
    # remat would trace those that it is given.
    known = tokens.with_defaults(L, B)
    check_tokens(self.position, known)

    position_params = {}
    if jax.eval_shape(self.position.init_model, jax.random.key(0)):
      position_params = self.param('position', self.position.init_model)
    x_BLD = without_padding(x_BLD, known)
    if self.input_scale != 1:
      x_BLD *= self.input_scale
    if self.token_dropout_id >= 0:
      x_BLD = _without_token(x_BLD, known, self.token_dropout_id)
    x_BLD = self._embed(position_params, x_BLD, known)
    if self.input_norm:
      x_BLD = self._norm('norm_in')(x_BLD)
    x_BLD = drop(x_BLD, dropout, self.num_layers)
    if self.token_dim:
      to_vectors = nn.Dense(self.embed_dim, dtype=self.dtype, name='in')
      x_BLD = to_vectors(x_BLD)

    weights_N2, first_BLGK = self._value_residual(x_BLD)
    of_all = OfAllLayers(
      tokens, position_params, weights_N2, dropout, attention_dropout
    )
    x_BLD = self._run(x_BLD, first_BLGK, of_all, cache_len, sow_layers)
    if self.use_final_norm and not self._template().normalises_output:
      x_BLD = self._norm('norm_out')(x_BLD)
    return x_BLD

  def _head_dim(self, width: int) -> int:
    """K of all layers; a width of vectors is that of the input."""
    return (self.embed_dim or width) // self.num_heads

  def _norm(self, name: str) -> nn.Module:
    block = self._template()
    return NORMS[block.norm](epsilon=block.eps, dtype=self.dtype, name=name)

  def _template(self) -> Block:
    """The block with its options alone, which is no submodule."""
    return self.block or PreNorm(parent=None)

  def _run(self, x_BLD, first_BLGK, of_all, cache_len, sow_layers):
    """Vectors after all blocks."""
    size = self._period()
    # Initialisation always unrolls, so that the tree is the same; so does a
    # cache, which each block has under its name.
    unrolls = self.is_initializing() or self.is_mutable_collection('cache')
    scans = self.scan and not unrolls
    if scans and sow_layers is not None:
      raise ValueError('sow_layers needs scan=False')
    scanned = self.num_layers - self.num_layers % size if scans else 0
    if scanned:
      # A loop takes vectors of the type that its blocks return.
      sums = jnp.promote_types(x_BLD.dtype, self.dtype)
      is_normed = self._template().normalises_output
      x_BLD = x_BLD.astype(self.dtype if is_normed else sums)
    width, carry = x_BLD.shape[-1], (x_BLD, first_BLGK)
    if scanned:
      carry = self._scan(carry, of_all, scanned)
    for index in range(scanned, self.num_layers):
      sows = sow_layers is None or index in sow_layers

      def run(module, carry, index=index, sows=sows):
        name = f'block_{index}'
        block = self._block(index, width, name, module, cache_len, sows)
        return block(carry, index, of_all)[0]

      if self.share_layers and index:
        run = nn.map_variables(run, 'params', trans_in_fn=_as(f'block_{index}'))
      carry = run(self, carry)
    return carry[0]

  def _scan(self, carry, of_all: OfAllLayers, num_layers: int):
    """The carry after the first blocks, whole periods, as a loop over these."""
    size, width = self._period(), carry[0].shape[-1]
    names = [f'block_{index}' for index in range(num_layers)]

    def one_period(module, carry, first, of_all):
      for n, name in enumerate(names[:size]):
        block = self._block(n, width, name, module)
        carry, _ = block(carry, first + n, of_all)
      return carry, None

    in_axes: Any = (0, nn.broadcast)
    axes: Any = {'params': 0} | dict.fromkeys(_SOWN, 0)
    if self.share_layers:
      del axes['params']

    def all_periods(module, carry):
      scan = nn.scan(
        one_period,
        variable_axes=axes,
        variable_broadcast='params' if self.share_layers else False,
        split_rngs={'params': False},
        in_axes=in_axes,
        length=num_layers // size,
      )
      return scan(module, carry, jnp.arange(0, num_layers, size), of_all)[0]

    def stacked(variables):
      params = variables.get('params', {})
      return {
        'params': {
          name: jax.tree.map(
            lambda *leaves: jnp.stack(leaves),
            *(params[other] for other in names[n::size]),
          )
          for n, name in enumerate(names[:size])
        }
      }

    def by_layer(variables):
      return {
        collection: {
          name: jax.tree.map(lambda x, n=n: x[n // size], sown[names[n % size]])
          for n, name in enumerate(names)
          if names[n % size] in sown
        }
        for collection, sown in variables.items()
      }

    trans_in_fn = _as('block_0') if self.share_layers else stacked
    run = nn.map_variables(all_periods, 'params', trans_in_fn=trans_in_fn)
    sown = [name for name in _SOWN if self.is_mutable_collection(name)]
    if sown:
      run = nn.map_variables(
        run,
        sown,
        trans_in_fn=lambda _: {},
        trans_out_fn=by_layer,
        mutable=True,
      )
    return run(self, carry)

  def _block(self, index, width, name, parent, cache_len=None, sows=True):
    """The block of a layer, with the fields of its attention."""
    block = self._template()
    options = {
      field.name: getattr(block, field.name)
      for field in dataclasses.fields(block)
      if field.name not in ('parent', 'name')
    }
    options |= {
      'experts': self.experts,
      'index': index,
      'mlp_dim': self.mlp_dim,
      'dtype': self.dtype,
      'num_layers': self.num_layers,
      'cache_len': cache_len,
      'attention': self._attention(
        index,
        embed_dim=width,
        num_heads=self.num_heads,
        kernel_init=block.kernel_init,
        eps=block.eps,
        position=self.position.of_layer(index),
        causal=self.causal,
        sow_weights=sows,
        in_encoder=True,
        dtype=self.dtype,
        parent=None,
      ),
    }
    kind = nn.remat(type(block)) if self.remat else type(block)
    return kind(**options, name=name, parent=parent)

  def _embed(self, position_params, x_BLD, tokens):
    """Vectors with positions; sows encodings that all layers share."""
    P = {}
    of_all = {n: part for n, part in self.position.parts if not part.per_layer}
    x_BLD = embedded(
      self.position, position_params, x_BLD, tokens, list(of_all), P
    )
    if self.is_mutable_collection('intermediates'):
      for name, part in of_all.items():
        if part.has_encoding:
          params = position_params.get(name, {}) if name else position_params
          P[name] = part.encoding(params, tokens)
      sow_by_part(self, P)
    return x_BLD

  def _continue(self, tokens, length, cache_len):
    """Tokens that follow those of earlier calls.

    Layers get their index, and return NaN where they do not fit.
    """
    if not self.causal:
      raise ValueError('a cache needs causal=True')
    if cache_len is None:
      raise ValueError('a mutable cache needs cache_len, the keys it holds')
    if tokens.index is not None:
      raise ValueError('a cache counts the index itself: index must be None')
    tokens, _ = continued(self, tokens, length, cache_len)
    return tokens

  def _value_residual(self, x_BLD):
    """Weights and zeros for the first layer's values; see blocks.Block."""
    del x_BLD
    return None, None


def _as(name: str):
  """From the parameters of a stack to those of one block, those of block_0."""
  return lambda tree: {'params': {name: tree.get('params', {})['block_0']}}


def _without_token(x_BLD, tokens: Tokens, dropped: int) -> jax.Array:
  """Vectors without those of one id, divided by the share of the others."""
  if tokens.ids is None:
    raise ValueError('token_dropout_id needs tokens.ids')
  is_left_BL = jnp.asarray(tokens.ids != dropped)
  is_token_BL = jnp.ones_like(is_left_BL)
  if tokens.padding_mask is not None:
    is_token_BL &= jnp.asarray(tokens.padding_mask)
  count_B1 = is_token_BL.sum(axis=1, keepdims=True)
  left_B1 = (is_left_BL & is_token_BL).sum(axis=1, keepdims=True)
  scale_B1 = (count_B1 / jnp.maximum(left_B1, 1)).astype(x_BLD.dtype)
  return jnp.where(is_left_BL[..., None], x_BLD * scale_B1[..., None], 0)
