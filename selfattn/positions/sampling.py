"""Sampling of position ids, for any position method.

A sampling makes `Tokens` from the padding mask of a batch: in training from a
stream of random bits, in evaluation without one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from selfattn.dropout import Bits
from selfattn.positions.contract import require
from selfattn.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Consecutive:
  """0, 1, 2, ...

  Attributes:
    is_real: whether positions need not be integers.
    Further fields are options, each with a default.
  """

  is_real: ClassVar[bool] = False

  def max_length(self, num_tokens: int) -> int:
    """Number of positions that texts of num_tokens tokens may use."""
    return num_tokens

  def tokens(self, padding_mask_BL, stream: Bits | None) -> Tokens:
    """Tokens with positions, and with this padding_mask_BL.

    Args:
      padding_mask_BL: boolean, True at tokens.
      stream: random bits, a row per text; None in evaluation.
    """
    del stream
    return Tokens(padding_mask=padding_mask_BL)


@dataclasses.dataclass(frozen=True)
class RandomOffset(Consecutive):
  """Positions begin at 0 to max_offset (Kiyono et al. 2021, SHAPE).

  Each text has its own random offset; in evaluation, all are 0.

  Attributes:
    max_offset: largest offset.
  """

  max_offset: int = 100

  def __post_init__(self):
    require(self.max_offset >= 1, 'max_offset', self.max_offset, 'at least 1')

  def max_length(self, num_tokens):
    return num_tokens + self.max_offset

  def tokens(self, padding_mask_BL, stream):
    if stream is None:
      return Tokens(padding_mask=padding_mask_BL)
    num_rows, length = padding_mask_BL.shape
    offset_B1 = stream.bits((num_rows, 1)) % jnp.uint32(self.max_offset + 1)
    positions_BL = offset_B1.astype(jnp.int32) + jnp.arange(length)[None]
    return Tokens(
      padding_mask=padding_mask_BL, positions=positions_BL, is_consecutive=True
    )


@dataclasses.dataclass(frozen=True)
class Randomised(Consecutive):
  """A random subset of positions, in order (Ruoss et al. 2023, section 3).

  A text of n tokens has n of max_position positions, sampled without
  replacement: one sample per training step, of which texts of n tokens use the
  first n. Evaluation uses one fixed sample.

  Attributes:
    max_position: number of positions to sample from.
  """

  max_position: int = 2048

  def __post_init__(self):
    require(
      self.max_position >= 1, 'max_position', self.max_position, 'at least 1'
    )

  def max_length(self, num_tokens):
    require(
      num_tokens <= self.max_position,
      'max_position',
      self.max_position,
      f'at least the longest input, {num_tokens} tokens',
    )
    return self.max_position

  def tokens(self, padding_mask_BL, stream):
    length = padding_mask_BL.shape[1]
    self.max_length(length)
    if stream is None:
      stream = Bits.create(jax.random.key(0))
    # The same for every row, in any microbatch.
    bits = stream.replace(first_row=0).bits((1, self.max_position))
    drawn_1L = jnp.argsort(bits)[:, :length]
    # The first n of the sample, in order, for the tokens wherever they stand.
    last = jnp.asarray(self.max_position - 1, drawn_1L.dtype)
    num_tokens_B1 = padding_mask_BL.sum(axis=1, keepdims=True)
    is_used_BL = jnp.arange(length)[None] < num_tokens_B1
    sorted_BL = jnp.sort(jnp.where(is_used_BL, drawn_1L, last), axis=1)
    rank_BL = jnp.maximum(jnp.cumsum(padding_mask_BL, axis=1) - 1, 0)
    positions_BL = jnp.take_along_axis(sorted_BL, rank_BL, axis=1)
    return Tokens(padding_mask=padding_mask_BL, positions=positions_BL)


@dataclasses.dataclass(frozen=True)
class Augmented(Consecutive):
  """Real positions, moved and stretched (Likhomanenko et al. 2021, CAPE, 3).

  Token n of a text is at s (n + shift + jitter_n): a shift of each text up to
  max_shift to either side, a jitter of each token, and a scale s from
  1 / max_scale to max_scale, uniform in its logarithm. In evaluation, at n.

  Attributes:
    max_shift: largest shift of a text, in tokens.
    max_jitter: largest jitter of a token, in tokens; the order is kept up to
      0.5.
    max_scale: largest scale; 1: none.
  """

  max_shift: float = 5.0
  max_jitter: float = 0.5
  max_scale: float = 1.03

  is_real = True

  def __post_init__(self):
    for option in ('max_shift', 'max_jitter'):
      value = getattr(self, option)
      require(0 <= value < 1e6, option, value, 'from 0 to below 1e6')
    require(
      1 <= self.max_scale < 1e3,
      'max_scale',
      self.max_scale,
      'from 1 to below 1e3',
    )

  def tokens(self, padding_mask_BL, stream):
    if stream is None:
      return Tokens(padding_mask=padding_mask_BL)
    num_rows, length = padding_mask_BL.shape

    def uniform(site, columns):
      """From -1 to 1."""
      bits = stream.at(site).bits((num_rows, columns))
      return bits.astype(jnp.float32) * 2.0**-31 - 1.0

    where_BL = jnp.arange(length, dtype=jnp.float32)[None]
    where_BL = where_BL + self.max_shift * uniform(0, 1)
    where_BL = where_BL + self.max_jitter * uniform(1, length)
    scale_B1 = jnp.exp(math.log(self.max_scale) * uniform(2, 1))
    return Tokens(padding_mask=padding_mask_BL, positions=scale_B1 * where_BL)


SAMPLINGS = {
  'consecutive': Consecutive,
  'random_offset': RandomOffset,
  'randomised': Randomised,
  'augmented': Augmented,
}
"""Samplings of position ids by name.

Examples:
  >>> padding_mask_BL = jnp.ones((2, 5), bool)
  >>> sampling = selfattn.SAMPLINGS['random_offset'](max_offset=9)
  >>> bits = selfattn.Bits.create(jax.random.key(0))
  >>> sampling.tokens(padding_mask_BL, bits).positions.shape
  (2, 5)
"""
