"""Encoders: token vectors in, token vectors out, chosen by name.

To add one: a subclass of selfattn.contract.Encoder, a line in ENCODERS, a row
in test_encoders.py.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from selfattn.arrays import placed
from selfattn.attention import OUTPUT_GATES, Attention
from selfattn.backends import BACKENDS
from selfattn.baselines import (
  BowEncoder,
  ConvolutionEncoder,
  RecurrentEncoder,
)
from selfattn.choice import choose
from selfattn.contract import Encoder
from selfattn.kernels import unsupported_reason
from selfattn.layers import period
from selfattn.linear import LinearAttentionEncoder
from selfattn.normalisers import Softmax
from selfattn.norms import NORMS
from selfattn.positions.contract import require, require_one_of
from selfattn.projections import GATES, NORMED
from selfattn.stack import Stack


class AttentionEncoder(Stack):
  """A stack of blocks of softmax attention, or of another normaliser's.

  Attributes:
    head_dim: width of a head; 0: embed_dim over num_heads.
    num_kv_heads: heads of keys and values, each shared by several of queries
      (grouped-query attention); 0: num_heads.
    window: tokens to the left and to the right that a token attends to; empty:
      all; -1: all of that side. Several such are a pattern over layers.
    use_bias: whether the projections of attention have a bias, and its gate.
    use_out_bias: whether the output projection has one; None: as the others.
    use_key_bias: whether that of keys has one; None: as the others. It changes
      no weights, unless a position method reads keys.
    scale: factor of the scores; 0: the inverse square root of the width of a
      head.
    qk_norm: whether queries and keys are normalised.
    qk_norm_kind: the norm of queries and keys, one of selfattn.norms.
    qk_norm_over: what that norm is over: head, the channels of a head by scales
      that all heads share; each_head, by scales of its own; all_heads, all
      channels.
    clip_qkv: bound c of queries, keys and values, which are clipped to between
      -c and c (MosaicML 2023, MPT); 0: none.
    output_gate: whether the output of attention is gated by its input, a gate
      for each head or for each channel.
    gate_activation: function of the gates, sigmoid or softplus.
    value_residual: whether values of later layers are mixed with those of the
      first, by two learned weights of each layer, 0.5 at initialisation (Zhou
      et al. 2024, learnable ResFormer).
    softcap: bound c of scores, as c tanh(score / c); 0: none.
    broadcast_dropout: whether the same weights are dropped in all rows and
      heads.
    backend: the implementation of attention.
    normaliser: one of selfattn.normalisers, or several, a pattern over layers;
      None: softmax.
    platform: see `attend`.
    Further fields are those of Stack.

  Examples:
    >>> x_BLD = jnp.ones((2, 5, 12))
    >>> sizes = {'num_layers': 1, 'num_heads': 3, 'mlp_dim': 20}
    >>> rotary = selfattn.POSITIONS['rotary'](12, num_heads=3, causal=False)
    >>> encoder = selfattn.AttentionEncoder(
    ...   **sizes, position=rotary, dtype=jnp.float32
    ... )
    >>> variables = encoder.init(jax.random.key(0), x_BLD)
    >>> encoder.apply(variables, x_BLD).shape
    (2, 5, 12)
  """

  head_dim: int = 0
  num_kv_heads: int = 0
  window: tuple = ()
  use_bias: bool = True
  use_out_bias: bool | None = None
  use_key_bias: bool | None = None
  scale: float = 0.0
  qk_norm: bool = False
  qk_norm_kind: str = 'rms'
  qk_norm_over: str = 'head'
  clip_qkv: float = 0.0
  output_gate: str = 'none'
  gate_activation: str = 'sigmoid'
  value_residual: bool = False
  softcap: float = 0.0
  broadcast_dropout: bool = False
  backend: str = 'auto'
  normaliser: Softmax | tuple[Softmax, ...] | None = None
  platform: str | None = None

  keeps_order = True

  @property
  def windows(self) -> tuple[tuple[int, ...], ...]:
    """Windows of the first layers, which repeat; (): all tokens."""
    are_several = all(isinstance(entry, tuple | list) for entry in self.window)
    entries = self.window if self.window and are_several else (self.window,)
    return tuple(tuple(window) for window in entries)

  @property
  def normalisers(self) -> tuple[Softmax, ...]:
    """Normalisers of the first layers, which repeat."""
    several = self.normaliser
    if isinstance(several, tuple | list):
      return tuple(several)
    return (several or Softmax(self.num_heads),)

  def _patterns(self):
    others = map(period, (self.windows, self.normalisers))
    return [*super()._patterns(), *others]

  def check(self, embed_dim, *, drops_weights, platform):
    super().check(embed_dim, drops_weights=drops_weights, platform=platform)
    for option, allowed in (
      ('output_gate', OUTPUT_GATES),
      ('gate_activation', GATES),
      ('qk_norm_kind', NORMS),
      ('qk_norm_over', NORMED),
      ('backend', BACKENDS),
    ):
      require_one_of(allowed, option, getattr(self, option))
    heads = self.num_kv_heads or self.num_heads
    require(
      0 < heads <= self.num_heads and self.num_heads % heads == 0,
      'num_kv_heads',
      self.num_kv_heads,
      f'0 or a divisor of num_heads = {self.num_heads}',
    )
    require(
      all(
        len(window) in (0, 2)
        and all(type(n) is int and n >= -1 for n in window)
        for window in self.windows
      ),
      'window',
      self.window,
      '() or (left, right), each at least -1, or several such, one a layer',
    )
    for option in ('softcap', 'clip_qkv'):
      value = getattr(self, option)
      is_bound = 0 <= value < float('inf')
      require(is_bound, option, value, 'at least 0 and finite')
    for normaliser in self.normalisers:
      kind = type(normaliser).__name__
      require(
        self.causal or not normaliser.causal_only,
        'causal',
        self.causal,
        f'True with {kind}, which reads keys before their query alone',
      )
      require(
        self.num_heads % 2 == 0 or not normaliser.pairs_heads,
        'num_heads',
        self.num_heads,
        f'even with {kind}, which pairs heads',
      )
    require(
      self.num_layers > 1 or not self.value_residual,
      'value_residual',
      self.value_residual,
      f'False with num_layers = {self.num_layers}: it is for later layers',
    )
    for index in range(self._period()):
      facts = self._facts(index, embed_dim, drops_weights)
      reason = unsupported_reason(self.backend, platform=platform, **facts)
      if reason:
        raise ValueError(
          f'backend = {self.backend!r} is unsupported: {reason}; auto, '
          'reference and chunked support everything'
        )

  def _facts(self, index: int, embed_dim: int, drops_weights: bool) -> dict:
    """The arguments of unsupported_reason that a layer determines."""
    head_dim = self._head_dim(embed_dim)
    position = self.position.of_layer(index)
    return {
      'dtype': position.rotated_dtype(self.dtype),
      'head_dim': head_dim,
      'has_dropout': drops_weights,
      'has_softcap': self.softcap > 0,
      'hooks': position.hooks,
      'rotated_dim': position.rotated_dim,
      'normaliser': _of_layer(self.normalisers, index),
      'value_dim': head_dim,
    }

  def attention_choices(self, shape, *, drops_weights):
    B, L, D = shape
    return [
      choose(
        self.backend,
        self.platform,
        (B, self.num_heads, L, L),
        has_pairs=self.window_of(index) is not None,
        has_token_masks=False,
        **self._facts(index, D, drops_weights),
      )
      for index in range(self.num_layers)
    ]

  def unsupported_cls(self, num_tokens):
    # [CLS] stands before all tokens. Some layer has to show it all of them.
    most = max(
      window[1] if window and -1 < window[1] < num_tokens else num_tokens
      for window in self.windows[: self.num_layers]
    )
    if not self.causal and most < num_tokens:
      return f'attends to only {most} of the tokens with window = {self.window}'
    return super().unsupported_cls(num_tokens)

  def window_of(self, index):
    window = _of_layer(self.windows, index)
    return (window[0], window[1]) if window else None

  def _head_dim(self, width):
    return self.head_dim or super()._head_dim(width)

  def _attention(self, index, **fields):
    same = {name: getattr(self, name) for name in _OF_ATTENTION}
    return Attention(
      normaliser=_of_layer(self.normalisers, index),
      window=self.window_of(index),
      **same,
      **fields,
    )

  def _value_residual(self, x_BLD):
    if not self.value_residual:
      return super()._value_residual(x_BLD)
    later_N2 = self.param(
      'value_residual',
      nn.initializers.constant(0.5, jnp.float32),
      (self.num_layers - 1, 2),
    )
    B, L, D = x_BLD.shape
    heads = self.num_kv_heads or self.num_heads
    zeros = jnp.zeros((B, L, heads, self._head_dim(D)), self.dtype)
    zeros = placed(zeros, x_BLD.sum(axis=-1)[..., None, None])
    first_12 = jnp.array([[0.0, 1.0]], jnp.float32)
    return jnp.concatenate([first_12, later_N2]), zeros


# Fields of Attention that all layers share.
_OF_ATTENTION = (
  'head_dim',
  'num_kv_heads',
  'use_bias',
  'use_out_bias',
  'use_key_bias',
  'scale',
  'qk_norm',
  'qk_norm_kind',
  'qk_norm_over',
  'clip_qkv',
  'output_gate',
  'gate_activation',
  'softcap',
  'broadcast_dropout',
  'backend',
  'platform',
)


def _of_layer(pattern: tuple, index: int):
  return pattern[index % len(pattern)]


ENCODERS: dict[str, type[Encoder]] = {
  'attention': AttentionEncoder,
  'linear_attention': LinearAttentionEncoder,
  'cnn': ConvolutionEncoder,
  'rnn': RecurrentEncoder,
  'bow': BowEncoder,
}
"""Encoders by name.

Examples:
  >>> x_BLD = jnp.ones((2, 5, 12))
  >>> encoder = selfattn.ENCODERS['rnn'](num_layers=1, dtype=jnp.float32)
  >>> variables = encoder.init(jax.random.key(0), x_BLD)
  >>> encoder.apply(variables, x_BLD).shape
  (2, 5, 12)
"""
