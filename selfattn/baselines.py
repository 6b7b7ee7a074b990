"""Baselines of self-attention: convolutions, recurrence, a bag of words.

Each is an Encoder (selfattn.contract).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.arrays import as_floats, placed
from selfattn.contract import Encoder
from selfattn.dropout import Dropout, drop
from selfattn.positions.contract import require, require_one_of
from selfattn.tokens import Tokens, without_padding

CELLS = {'lstm': nn.OptimizedLSTMCell, 'gru': nn.GRUCell}


class BowEncoder(Encoder):
  """The identity: with a symmetric pool, a bag of words (bow).

  The baseline of Iyyer et al. 2015 (NBOW): invariant to order by construction.

  Examples:
    >>> x_BLD = jnp.ones((2, 5, 12))
    >>> selfattn.BowEncoder().apply({}, x_BLD).shape
    (2, 5, 12)
  """

  causal = True

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array | None = None,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Returns x_BLD, dropped in training."""
    del tokens, attention_dropout
    return drop(as_floats(x_BLD), dropout, 0)


class ConvolutionEncoder(Encoder):
  """A stack of residual convolutions.

  A layer is x + relu(conv(norm(x))); with `dilation` r, layer i has dilation
  r^i, so that the receptive field grows exponentially with depth (van den Oord
  et al. 2016, section 2.1). Zero padding at both ends.

  Attributes:
    num_layers: number of layers, at least 1.
    dtype: of the computation.
    kernel_size: tokens that one output reads, before dilation.
    dilation: factor of the dilation from layer to layer; 1: none.
  """

  num_layers: int
  dtype: jnp.dtype
  kernel_size: int = 3
  dilation: int = 1

  def check(self, embed_dim, *, drops_weights, platform):
    for option in ('kernel_size', 'dilation'):
      value = getattr(self, option)
      require(value >= 1, option, value, 'at least 1')

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array | None = None,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Returns (B, L, D) of the same dtype."""
    del attention_dropout
    tokens = _one_text(tokens, x_BLD)
    x_BLD = drop(without_padding(as_floats(x_BLD), tokens), dropout, 0)
    for layer in range(self.num_layers):
      h_BLD = nn.LayerNorm(dtype=self.dtype, name=f'norm_{layer}')(x_BLD)
      # A window then reads zeros at padding, as it does beyond the sequence.
      h_BLD = without_padding(h_BLD, tokens)
      # The convolution is a matmul over windows: for several models at once,
      # under vmap, a CPU has fast matmuls and no fast convolution.
      h_BLD = windows(h_BLD, self.kernel_size, self.dilation**layer)
      h_BLD = nn.Dense(x_BLD.shape[-1], dtype=self.dtype, name=f'conv_{layer}')(
        h_BLD
      )
      x_BLD = x_BLD + drop(nn.relu(h_BLD), dropout, layer + 1)
    return x_BLD


def windows(x_BLD: jax.Array, size: int, dilation: int) -> jax.Array:
  """The window of a convolution at each token, concatenated: (B, L, kD).

  Args:
    size: k, tokens of a window.
    dilation: distance between them, in tokens. Zero padding at both ends, one
      more at the right where the two cannot be equal.
  """
  length, reach = x_BLD.shape[1], (size - 1) * dilation
  before = reach // 2
  x_BLD = jnp.pad(x_BLD, ((0, 0), (before, reach - before), (0, 0)))
  starts = range(0, reach + 1, dilation)
  return jnp.concatenate([x_BLD[:, s : s + length] for s in starts], axis=-1)


def _one_text(tokens: Tokens | jax.Array | None, x_BLD: jax.Array) -> Tokens:
  """Tokens of one text a row; ValueError for packed ones."""
  tokens = Tokens.of(tokens).with_defaults(*x_BLD.shape[1::-1])
  if tokens.segments is not None:
    raise ValueError('a row of this encoder is one text: segments must be None')
  return tokens


class RecurrentEncoder(Encoder):
  """A recurrent network.

  A layer is an LSTM (Hochreiter and Schmidhuber 1997) or a GRU (Cho et al.
  2014) as in Flax; with `bidirectional`, two of half the width, one of which
  reads the tokens in reverse (Schuster and Paliwal 1997).

  Attributes:
    num_layers: number of layers, at least 1.
    dtype: of the computation.
    cell: cell of the network.
    bidirectional: whether to read in both directions; D must then be even.
  """

  num_layers: int
  dtype: jnp.dtype
  cell: str = 'lstm'
  bidirectional: bool = True

  @property
  def causal(self):
    """Whether it is unidirectional."""
    return not self.bidirectional

  def check(self, embed_dim, *, drops_weights, platform):
    require_one_of(CELLS, 'cell', self.cell)
    require(
      embed_dim % 2 == 0 or not self.bidirectional,
      'bidirectional',
      self.bidirectional,
      f'False, or embed_dim = {embed_dim} even',
    )

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array | None = None,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Returns (B, L, D) of the same dtype."""
    del attention_dropout
    tokens = _one_text(tokens, x_BLD)
    x_BLD = drop(without_padding(as_floats(x_BLD), tokens), dropout, 0)
    (B, L, _), kind = x_BLD.shape, x_BLD.dtype
    lengths_B = order_BL1 = None
    if tokens.padding_mask is not None:
      # A network of Flax reads the first tokens of a row: those at padding go
      # to its end.
      mask_BL = jnp.broadcast_to(tokens.padding_mask, (B, L))
      lengths_B = mask_BL.sum(axis=-1)
      order_BL1 = jnp.argsort(~mask_BL, axis=-1, stable=True)[..., None]
      x_BLD = jnp.take_along_axis(x_BLD, order_BL1, axis=1)
    for layer in range(self.num_layers):
      if L:
        network: Any = self._layer(x_BLD.shape[-1], layer)
        x_BLD = network(
          x_BLD, seq_lengths=lengths_B, initial_carry=self._carry(x_BLD)
        )
      x_BLD = drop(x_BLD, dropout, layer + 1)
    x_BLD = x_BLD.astype(kind)
    if order_BL1 is not None:
      back_BL1 = jnp.argsort(order_BL1, axis=1)
      x_BLD = jnp.take_along_axis(x_BLD, back_BL1, axis=1)
    return x_BLD

  def _carry(self, x_BLD):
    """The states that a layer begins with, of both directions if it has two."""
    B, _, D = x_BLD.shape
    cell = CELLS[self.cell](D // (1 + self.bidirectional), parent=None)
    zeros = cell.initialize_carry(jax.random.key(0), (B, D))
    carry = jax.tree.map(lambda x: placed(x, x_BLD[:, 0, :1]), zeros)
    return (carry, carry) if self.bidirectional else carry

  def _layer(self, width: int, layer: int):
    if not self.bidirectional:
      return self._rnn(width, f'forward_{layer}')
    if width % 2:
      raise ValueError(
        f'a bidirectional layer needs an even width, not {width}'
      )
    return nn.Bidirectional(
      self._rnn(width // 2, f'forward_{layer}'),
      self._rnn(width // 2, f'backward_{layer}'),
    )

  def _rnn(self, width: int, name: str):
    return nn.RNN(CELLS[self.cell](width, dtype=self.dtype, name=name))
