"""Methods that add positions to token vectors."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles, exact_terms
from selfattn.positions.contract import (
  Position,
  check_positions,
  require,
  require_one_of,
)

LAYOUTS = ('interleaved', 'concatenated', 'tensor2tensor')


@dataclasses.dataclass(frozen=True)
class Absolute(Position):
  """A method that adds its encoding to token vectors."""

  def embed(self, params, x_BLD, tokens):
    return x_BLD + self.encoding(params, tokens).astype(x_BLD.dtype)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Absolute):
  """Sines and cosines (Vaswani et al. 2017, section 3.5).

  The angle of pair j at position p is p / base^(2j/D). Three layouts are in
  use, which are different encodings:

    interleaved    sin, cos, sin, cos, ... as in the paper; an odd D drops the
                   last cosine
    concatenated   all sines, then all cosines: the same up to a permutation
                   of columns
    tensor2tensor  concatenated, with exponent j / (D/2 - 1) instead of
                   2j / D, and a zero for the last column of an odd D

  Attributes:
    layout: order of the columns: interleaved, concatenated or tensor2tensor.
    base: base of the angles.
    scaled: whether a learned factor, D^-1/2 at initialisation, multiplies the
      encoding, as x-transformers has it: for embeddings that begin smaller.
  """

  layout: str = 'interleaved'
  base: float = 10_000.0
  scaled: bool = False

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require_one_of(LAYOUTS, 'layout', self.layout)
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def init(self, key):
    """{}, or the factor, `scale` (1,)."""
    del key
    return {'scale': jnp.full(1, self.embed_dim**-0.5)} if self.scaled else {}

  def encoding(self, params, tokens):
    """Float32 (1 or B, L, D)."""
    angle = angles(tokens.positions, self._rates())
    xp = np if isinstance(angle, np.ndarray) else jnp
    sin, cos = xp.sin(angle), xp.cos(angle)
    if self.layout == 'interleaved':
      pairs = xp.stack([sin, cos], axis=-1)
      P_BLD = pairs.reshape(*angle.shape[:-1], 2 * angle.shape[-1])
      P_BLD = P_BLD[..., : self.embed_dim]
    elif self.layout == 'concatenated':
      P_BLD = xp.concatenate([sin, cos], axis=-1)[..., : self.embed_dim]
    else:
      missing = self.embed_dim - 2 * angle.shape[-1]
      P_BLD = xp.concatenate([sin, cos], axis=-1)
      P_BLD = xp.pad(P_BLD, ((0, 0), (0, 0), (0, missing)))
    P_BLD = jnp.asarray(P_BLD, jnp.float32)
    return P_BLD * params['scale'][None, None] if self.scaled else P_BLD

  def _rates(self):
    if self.layout == 'tensor2tensor':
      count = self.embed_dim // 2
      return self.base ** (-np.arange(count) / max(count - 1, 1))
    return self.base ** (-np.arange(0, self.embed_dim, 2) / self.embed_dim)


@dataclasses.dataclass(frozen=True)
class Learned(Absolute):
  """A table with a row for each position (Gehring et al. 2017, section 3.1).

  A position beyond the table is an error where it is known while tracing, and
  NaN where it is not; it is never clamped. With stretch s > 1, the encoding of
  position p is the table at p / s, linearly interpolated between two rows, so
  that a table trained on short texts can be used for texts s times as long.

  Attributes:
    max_len: rows of the table.
    offset: row of position 0; tables of some published models begin with rows
      that no position has.
    init_std: standard deviation at initialisation.
    stretch: factor s that positions are divided by; 1: none.
  """

  max_len: int = 512
  offset: int = 0
  init_std: float = 0.02
  stretch: float = 1.0

  is_relative = True
  length_option = 'max_len'

  def __post_init__(self):
    require(self.max_len >= 1, 'max_len', self.max_len, 'at least 1')
    require(
      0 <= self.offset < self.max_len,
      'offset',
      self.offset,
      f'at least 0 and below max_len = {self.max_len}',
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')
    require(self.stretch >= 1, 'stretch', self.stretch, 'at least 1')

  def init(self, key):
    shape = (self.max_len, self.embed_dim)
    return {'table': jax.random.normal(key, shape) * self.init_std}

  def max_length(self):
    return int((self.max_len - self.offset - 1) * self.stretch) + 1

  def encoding(self, params, tokens):
    """Float32 (1 or B, L, D)."""
    positions_BL = tokens.positions
    check_positions(positions_BL, self.max_length())
    if self.stretch == 1:
      return self._rows(params, positions_BL)
    row = positions_BL / self.stretch
    below = jnp.floor(row).astype(jnp.int32)
    part = (row - below)[..., None]
    above = jnp.minimum(below + 1, self.max_len - self.offset - 1)
    rows_below, rows_above = (
      self._rows(params, below),
      self._rows(params, above),
    )
    is_inside = (positions_BL < self.max_length())[..., None]
    mixed = rows_below * (1 - part) + rows_above * part
    return jnp.where(is_inside, mixed, jnp.nan)

  def _rows(self, params, index):
    if self.offset:
      # Rows before the first position are of none.
      index = jnp.where(index < 0, self.max_len, index + self.offset)
    return (
      params['table']
      .at[index]
      .get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    )


SHARING = ('none', 'words', 'channels')


@dataclasses.dataclass(frozen=True)
class ComplexOrder(Position):
  """Complex word embeddings (Wang et al. 2020, equation 6).

  Channels j and j + D/2 of a word vector are the complex number r e^(i theta);
  at position p it is rotated by w p, where w is a rate of this word and this
  channel. Rates are initialised to those of sinusoids.

  Attributes:
    shared: across what rates are shared: 'none', all 'words' (D/2 rates), or
      all 'channels' of a word (one rate per word).
    base: base of the rates at initialisation.
  """

  shared: str = 'none'
  base: float = 10_000.0

  supports_real_positions = True

  def __post_init__(self):
    require_one_of(SHARING, 'shared', self.shared)
    require(self.base > 1, 'base', self.base, 'greater than 1')
    require(
      self.embed_dim % 2 == 0, 'shared', self.shared, 'used with an even width'
    )

  def init(self, key):
    """`rates`: radians per position, (1 or V + 2, 1 or D/2).

    The last two rows are those of [MASK] and [CLS].

    Raises:
      ValueError: the size of the vocabulary is unknown.
    """
    half = self.embed_dim // 2
    rates = jnp.asarray(self.base ** (-np.arange(half) / half), jnp.float32)
    if self.shared == 'words':
      return {'rates': rates[None]}
    if self.vocab_size is None:
      raise ValueError('complex_order needs vocab_size')
    num_words = self.vocab_size + 2
    if self.shared == 'none':
      return {'rates': jnp.broadcast_to(rates, (num_words, half))}
    # One per word, distributed as those of the channels are.
    exponent = jax.random.uniform(key, (num_words, 1))
    return {'rates': self.base**-exponent}

  def embed(self, params, x_BLD, tokens):
    """Rotated vectors; ValueError if it needs tokens.ids and there are none."""
    rates = params['rates']
    if self.shared != 'words':
      if tokens.ids is None:
        raise ValueError('complex_order needs tokens.ids')
      rates = rates[tokens.ids]
    else:
      rates = rates[None]
    positions_BL1 = tokens.positions[..., None]
    a, b = jnp.split(x_BLD.astype(jnp.float32), 2, axis=-1)
    for angle in exact_terms(positions_BL1, rates):
      cos, sin = jnp.cos(angle), jnp.sin(angle)
      a, b = a * cos - b * sin, b * cos + a * sin
    return jnp.concatenate([a, b], axis=-1).astype(x_BLD.dtype)
