"""Order from neighbours: convolutions and recurrences."""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.arrays import placed
from selfattn.order import ordered
from selfattn.positions.contract import Position, require, require_one_of
from selfattn.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Neighbours(Position):
  """A method that adds to each vector what is read from those around it.

  What is padding, beyond either end, or of another segment is not there. A
  causal encoder reads what came before alone. Neighbours are those in the row,
  whatever `index` and `positions` are.

  Attributes:
    every_layer: whether the input of each attention layer is changed, with
      parameters of its own, rather than the embeddings once.
  """

  every_layer: bool = False

  is_relative = True
  supports_cache = False
  supports_real_positions = True
  uses_positions = False

  @property
  def per_layer(self):
    """Whether each layer has its own parameters."""
    return self.every_layer


@dataclasses.dataclass(frozen=True)
class Convolutional(Neighbours):
  """x + gelu(conv(x) + b), zeros beyond the ends.

  With few groups, the convolutional position embedding of wav2vec 2.0 (Baevski
  et al. 2020, section 2), without its weight normalisation; with one group a
  channel and activation 'none', conditional position encodings (Chu et al.
  2021, section 3.3) in one dimension.

  Attributes:
    kernel_size: tokens that one output reads; of an even number, one more
      before it than after it.
    num_groups: groups of channels, which are read together; 0: each channel by
      itself.
    activation: what follows the convolution.
  """

  kernel_size: int = 7
  num_groups: int = 0
  activation: str = 'gelu'

  def __post_init__(self):
    require(
      self.kernel_size >= 1, 'kernel_size', self.kernel_size, 'at least 1'
    )
    require(
      self.num_groups >= 0 and self.embed_dim % (self.num_groups or 1) == 0,
      'num_groups',
      self.num_groups,
      f'0 or a divisor of the width, {self.embed_dim}',
    )
    require_one_of(('gelu', 'none'), 'activation', self.activation)

  def init(self, key):
    """`kernel` (T, G, D/G, D/G), taps from the farthest before, and `bias`."""
    groups = self.num_groups or self.embed_dim
    width = self.embed_dim // groups
    shape = (self.kernel_size, groups, width, width)
    fan_in = self.kernel_size * width
    return {
      'kernel': jax.random.normal(key, shape) * fan_in**-0.5,
      'bias': jnp.zeros(self.embed_dim),
    }

  def embed(self, params, x_BLD, tokens):
    after = 0 if self.causal else (self.kernel_size - 1) // 2
    seen_BLTD, _ = windows(x_BLD, tokens, self.kernel_size - 1 - after, after)
    kernel = params['kernel'].astype(x_BLD.dtype)
    grouped = seen_BLTD.reshape(*seen_BLTD.shape[:3], *kernel.shape[1:3])
    read = jnp.einsum('BLTGI,TGIO->BLGO', grouped, kernel).reshape(x_BLD.shape)
    read = read + params['bias'].astype(x_BLD.dtype)[None, None]
    return x_BLD + (_gelu(read) if self.activation == 'gelu' else read)


_gelu = functools.partial(nn.gelu, approximate=False)

CELLS = {'lstm': nn.OptimizedLSTMCell, 'gru': nn.GRUCell}


@dataclasses.dataclass(frozen=True)
class Recurrent(Neighbours):
  """x + RNN(x), over a window that ends at each token, or over the whole text.

  With a window and `every_layer`, the R-Transformer (Wang et al. 2019, section
  2.2), for which the states of a window begin at zero. An encoder that sees
  both sides has two networks of half the width; one reads from the right.

  Attributes:
    cell: cell of the network.
    window: tokens that are read for one output; 0: all.
    residual: whether states are added to the vectors; if not, they replace
      them.
  """

  cell: str = 'lstm'
  window: int = 0
  residual: bool = True

  def __post_init__(self):
    require_one_of(CELLS, 'cell', self.cell)
    require(self.window >= 0, 'window', self.window, 'at least 0')
    require(
      self.causal or self.embed_dim % 2 == 0,
      'cell',
      self.cell,
      f'used with an even width, not {self.embed_dim}, unless causal',
    )

  @property
  def _cell(self):
    width = self.embed_dim if self.causal else self.embed_dim // 2
    return CELLS[self.cell](width, parent=None)

  def init(self, key):
    """`forward`, and `backward` unless causal: the cells' own parameters."""
    keys = jax.random.split(key)
    x = jnp.zeros((1, self.embed_dim))
    names = ('forward',) if self.causal else ('forward', 'backward')
    cell = self._cell
    return {
      name: cell.init(key, cell.initialize_carry(key, x.shape), x)['params']
      for name, key in zip(names, keys, strict=False)
    }

  def embed(self, params, x_BLD, tokens):
    read = [self._read(params['forward'], x_BLD, tokens, is_reverse=False)]
    if not self.causal:
      read.append(
        self._read(params['backward'], x_BLD, tokens, is_reverse=True)
      )
    read_BLD = jnp.concatenate(read, axis=-1).astype(x_BLD.dtype)
    return x_BLD + read_BLD if self.residual else read_BLD

  def _read(self, params, x_BLD, tokens, is_reverse):
    """The state after each token, (B, L, width)."""
    B, L, D = x_BLD.shape
    if not self.window:
      return self._read_all(params, x_BLD, tokens, is_reverse)
    before = 0 if is_reverse else self.window - 1
    seen, is_token = windows(x_BLD, tokens, before, self.window - 1 - before)
    seen = seen.reshape(B * L, self.window, D)
    is_token = is_token.reshape(B * L, self.window)
    begins = jnp.zeros(is_token.shape, bool)
    last, _ = self._scan(params, seen, is_token, begins, is_reverse)
    return last.reshape(B, L, last.shape[-1])

  def _read_all(self, params, x_BLD, tokens, is_reverse):
    """The state after each token of the whole text, (B, L, width)."""
    B, L = x_BLD.shape[:2]
    is_token, begins = _padding_mask(tokens, B, L), jnp.zeros((B, L), bool)
    if tokens.segments is None:
      return self._scan(params, x_BLD, is_token, begins, is_reverse)[1]
    # Tokens of a segment become neighbours, whatever stands between them.
    segments_BL = jnp.broadcast_to(tokens.segments, (B, L))
    order_BL = jnp.argsort(segments_BL, axis=1, stable=True)
    segments_BL, is_token, x_BLD = (
      ordered(x, order_BL) for x in (segments_BL, is_token, x_BLD)
    )
    step = -1 if is_reverse else 1
    begins = segments_BL != jnp.roll(segments_BL, step, axis=1)
    read = self._scan(params, x_BLD, is_token, begins, is_reverse)[1]
    return ordered(read, jnp.argsort(order_BL, axis=1))

  def _scan(self, params, x_NTD, is_token_NT, begins_NT, is_reverse):
    """The last state, (N, width), and all, (N, T, width), where tokens are."""
    cell = self._cell
    shape = x_NTD.shape[0], x_NTD.shape[-1]
    zeros = cell.initialize_carry(jax.random.key(0), shape)
    of_row_N1 = x_NTD.sum(axis=(1, 2))[:, None]
    zeros = jax.tree.map(lambda x: placed(x, of_row_N1), zeros)

    def step(carry, now):
      x_ND, is_token_N, begins_N = now
      keep = ~begins_N[:, None]
      carry = jax.tree.map(lambda c: jnp.where(keep, c, 0), carry)
      new, out = cell.apply({'params': params}, carry, x_ND)
      there = is_token_N[:, None]
      new = jax.tree.map(lambda n, c: jnp.where(there, n, c), new, carry)
      return new, jnp.where(there, out, 0)

    by_time = jax.tree.map(
      lambda x: jnp.moveaxis(x, 1, 0),
      (x_NTD.astype(jnp.float32), is_token_NT, begins_NT),
    )
    carry, outs = jax.lax.scan(step, zeros, by_time, reverse=is_reverse)
    last = carry[1] if self.cell == 'lstm' else carry
    return last, jnp.moveaxis(outs, 0, 1)


def windows(
  x_BLD: jax.Array, tokens: Tokens, before: int, after: int
) -> tuple[jax.Array, jax.Array]:
  """Each token's neighbours, T = before + 1 + after of them, itself included.

  Returns:
    Vectors (B, L, T, D), zero where there is no token of the same segment, and
    whether there is one, boolean (B, L, T).
  """
  B, L = x_BLD.shape[:2]
  starts = range(before + 1 + after)

  def around(x, fill=0):
    pads = [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, pads, constant_values=fill)
    return jnp.stack([x[:, s : s + L] for s in starts], axis=2)

  is_token = around(_padding_mask(tokens, B, L))
  if tokens.segments is not None:
    segments = jnp.broadcast_to(tokens.segments, (B, L))
    is_token &= around(segments) == segments[..., None]
  return jnp.where(is_token[..., None], around(x_BLD), 0), is_token


def _padding_mask(tokens: Tokens, B: int, L: int) -> jax.Array:
  if tokens.padding_mask is None:
    return jnp.ones((B, L), bool)
  return jnp.broadcast_to(tokens.padding_mask, (B, L))
