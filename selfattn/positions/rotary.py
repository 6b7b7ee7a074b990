"""Rotary positions: rotations of pairs of channels of queries and keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import Position, require, require_one_of
from selfattn.positions.frequencies import SCALINGS
from selfattn.tokens import Tokens, without_padding

LAYOUTS = ('half', 'interleaved')


def turned(x_BLHK, angle_BLHR):
  """Channels j and j + R of each head turned by an angle; others as they are.

  Args:
    x_BLHK: vectors of the heads, of at least 2R channels.
    angle_BLHR: radians of each pair; one head may stand for all.
  """
  pairs = angle_BLHR.shape[-1]
  cos, sin = jnp.cos(angle_BLHR), jnp.sin(angle_BLHR)
  a, b, rest = jnp.split(
    x_BLHK.astype(jnp.float32), [pairs, 2 * pairs], axis=-1
  )
  parts = [a * cos - b * sin, b * cos + a * sin, rest]
  return jnp.concatenate(parts, axis=-1).astype(x_BLHK.dtype)


@dataclasses.dataclass(frozen=True)
class Rotary(Position):
  """RoPE (Su et al. 2021, section 3.2.2).

  Pair j of the R rotated channels is rotated by p / base^(2j/R) at position p,
  so that a score depends on the difference of two positions only.

  Attributes:
    layout: which channels are a pair. 'half': j and j + R/2; 'interleaved':
      2j and 2j + 1. The same up to a permutation of channels.
    reverse: whether the angles are negative, which turns the other way, as
      nanochat does: the same up to a permutation of channels.
    base: base of the angles.
    fraction: share of the channels that are rotated, rounded down to pairs, as
      partial_rotary_factor in transformers; 1: R = K. With scaling
      'proportional', share of the pairs that rotate, and R = K.
    scaling: how frequencies are scaled for texts longer than those of training;
      the formulas are in selfattn.positions.frequencies.
    factor: longest text over longest text of training; for 'dynamic', how fast
      it grows with the text.
    original_length: longest text of training, in tokens; for 'dynamic', 'yarn',
      'llama3' and 'longrope'.
    beta_fast: pairs with more periods in original_length keep their frequency,
      for 'yarn'.
    beta_slow: pairs with fewer periods have theirs divided by factor, for
      'yarn'.
    low_freq_factor: pairs with fewer periods in original_length have their
      frequency divided by factor, for 'llama3'.
    high_freq_factor: pairs with more periods keep theirs, for 'llama3'.
    pair_factors: a divisor of each frequency, for 'longrope'.
    short_factors: those of texts of at most original_length, for 'longrope';
      empty: pair_factors.
    truncate: whether the first and the last pair that are interpolated are
      rounded to whole pairs, for 'yarn'.
    amplitude: factor of queries and keys; 0: that of the scaling.
  """

  layout: str = 'half'
  reverse: bool = False
  base: float = 10_000.0
  fraction: float = 1.0
  scaling: str = 'none'
  factor: float = 1.0
  original_length: int = 512
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  pair_factors: tuple[float, ...] = ()
  short_factors: tuple[float, ...] = ()
  truncate: bool = True
  amplitude: float = 0.0

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require_one_of(LAYOUTS, 'layout', self.layout)
    require_one_of(SCALINGS, 'scaling', self.scaling)
    require(self.base > 1, 'base', self.base, 'greater than 1')
    require(
      0 < self.fraction <= 1 and int(self.head_dim * self.fraction / 2) >= 1,
      'fraction',
      self.fraction,
      f'at most 1 and leave a pair of the {self.head_dim} channels of a head',
    )
    require(self.factor >= 1, 'factor', self.factor, 'at least 1')
    require(
      self.factor == 1 or self.scaling != 'none',
      'factor',
      self.factor,
      "1 without a scaling, such as scaling='linear'",
    )
    require(
      self.original_length >= 2,
      'original_length',
      self.original_length,
      'at least 2',
    )
    require(
      0 <= self.amplitude < float('inf'),
      'amplitude',
      self.amplitude,
      'at least 0 and finite',
    )
    require(
      not self.short_factors or self.scaling == 'longrope',
      'short_factors',
      self.short_factors,
      "() without scaling='longrope'",
    )
    SCALINGS[self.scaling].check(self)

  @property
  def width(self) -> int:
    """R, number of rotated channels."""
    share = 1.0 if self.scaling == 'proportional' else self.fraction
    return 2 * int(self.head_dim * share / 2)

  def rates(self) -> np.ndarray:
    """Radians a position of every pair, float64 (R/2,)."""
    rates = SCALINGS[self.scaling].rates(self)
    return -rates if self.reverse else rates

  def encoding(self, params, tokens):
    """Cosines, then sines: float32 (1 or B, L, R)."""
    del params
    return self._encoding(tokens, _length(tokens))

  def _encoding(self, tokens, length_B1):
    """Cosines, then sines, of some tokens of texts: float32 (1 or B, L, R).

    Args:
      length_B1: tokens of each text, 1 + its last position.
    """
    scaling = SCALINGS[self.scaling]
    amplitude = self.amplitude or scaling.amplitude(self)
    angle = scaling.angles(self, tokens.positions, length_B1)
    xp = np if isinstance(angle, np.ndarray) else jnp
    P_BLR = xp.concatenate([xp.cos(angle), xp.sin(angle)], axis=-1)
    return jnp.asarray(P_BLR * amplitude, jnp.float32)

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    del params
    length_B1 = _length(key)
    P_BLR = self._encoding(query, length_B1)
    return self._turn(q_BLHK, P_BLR), self._turn(
      k_BMGK, P_BLR if key is query else self._encoding(key, length_B1)
    )

  def _turn(self, x_BLHK, P_BLR):
    cos, sin = jnp.split(P_BLR[:, :, None], 2, axis=-1)
    turned, rest = jnp.split(x_BLHK.astype(jnp.float32), [self.width], axis=-1)
    if self.layout == 'half':
      a, b = jnp.split(turned, 2, axis=-1)
      turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
      a, b = turned[..., ::2], turned[..., 1::2]
      pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
      turned = pairs.reshape(turned.shape)
    return jnp.concatenate([turned, rest], axis=-1).astype(x_BLHK.dtype)


@dataclasses.dataclass(frozen=True)
class XPos(Rotary):
  """Rotary positions that fade (Sun et al. 2023, equations 6 to 8).

  Pair j of a query at position p is multiplied by z_j^(p / scale_base), that of
  a key is divided by it, z_j = (2j/R + 0.4) / 1.4 < 1, so that a score of
  distance d fades by z_j^(d / scale_base); the fast pairs fade first.

  Defined for causal encoders alone: a key after its query would grow. Both
  sides are scaled from the middle of a text, so that float32 overflows only if
  positions span more than `max_length`. Float16 overflows long before: queries
  and keys of that type become float32.

  Attributes:
    scale_base: positions in which a pair fades by z_j.
  """

  scale_base: float = 512.0

  causal_only = True
  length_option = 'scale_base'

  def __post_init__(self):
    super().__post_init__()
    require(self.scale_base >= 1, 'scale_base', self.scale_base, 'at least 1')

  def rotated_dtype(self, dtype):
    """Float32 for float16: the wider of two types of 16 bits has its range."""
    return jnp.promote_types(dtype, jnp.bfloat16)

  def max_length(self):
    # exp(80) leaves float32 room for queries and keys themselves. Scores of
    # later keys grow as much until they are masked.
    return int(80 * self.scale_base / -np.log(0.4 / 1.4))

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    q_BLHK, k_BMGK = super().rotate(params, q_BLHK, k_BMGK, query, key)
    # From the middle of the keys of each text, so that neither side grows too
    # large; the same for both, it changes no score.
    first, last = _ends(key)
    middle = first + (last - first) // 2
    return (
      self._scaled(q_BLHK, query, middle, 1),
      self._scaled(k_BMGK, key, middle, -1),
    )

  def _scaled(self, x_BLHK, tokens, middle, sign):
    pairs = self.width // 2
    fade = np.log((2 * np.arange(pairs) / self.width + 0.4) / 1.4)
    fade = np.tile(fade, 2) if self.layout == 'half' else np.repeat(fade, 2)
    fade = np.pad(fade, (0, self.head_dim - self.width))
    offset_BL = without_padding(tokens.positions - middle, tokens)
    steps = offset_BL.astype(jnp.float32)[..., None, None]
    fade = jnp.asarray(fade, jnp.float32)[None, None, None]
    scale = jnp.exp(sign * steps / self.scale_base * fade)
    scaled_BLHK = x_BLHK.astype(jnp.float32) * scale
    return scaled_BLHK.astype(self.rotated_dtype(x_BLHK.dtype))


def _length(tokens: Tokens) -> Any:
  """Tokens of each text, 1 + its last position, (1 or B, 1)."""
  positions_BL = tokens.positions
  if not positions_BL.size:
    return np.zeros((1, 1), int)
  if tokens.padding_mask is None and isinstance(positions_BL, np.ndarray):
    return positions_BL.max(axis=1, keepdims=True) + 1
  _, last_B1 = _ends(tokens)
  return last_B1 + 1


def _ends(tokens: Tokens) -> tuple[jax.Array, jax.Array]:
  """The first and the last position of a text, (1 or B, 1)."""
  positions, mask = jnp.asarray(tokens.positions), tokens.padding_mask
  if mask is None:
    return (
      positions.min(axis=1, keepdims=True),
      positions.max(axis=1, keepdims=True),
    )
  is_integer = jnp.issubdtype(positions.dtype, jnp.integer)
  limits = (jnp.iinfo if is_integer else jnp.finfo)(positions.dtype)
  first = jnp.where(mask, positions, limits.max).min(axis=1, keepdims=True)
  last = jnp.where(mask, positions, limits.min).max(axis=1, keepdims=True)
  # A text without tokens has none.
  is_text = jnp.asarray(mask).any(axis=1, keepdims=True)
  return jnp.where(is_text, first, 0), jnp.where(is_text, last, 0)


@dataclasses.dataclass(frozen=True)
class Pope(Position):
  """Polar positions (PoPE; Gopalakrishnan et al. 2025, equations 5 to 7).

  Channel c of queries and keys is a complex number of magnitude softplus(value)
  and angle w_c times the position, so that content and position are separate.
  The score is sum_c softplus(q_c) softplus(k_c) cos((j - i) w_c + delta_c),
  with a learned delta per head and layer, from -2 pi to 0. K rates instead of
  the K/2 of RoPE; queries and keys are twice as wide in their matmul.

  Attributes:
    base: base of the rates, base^(-c/K).
  """

  base: float = 10_000.0

  per_layer = True
  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def init(self, key):
    """`delta`: (H, K), in radians."""
    del key
    return {'delta': jnp.zeros((self.num_heads, self.head_dim))}

  @property
  def rotated_dim(self):
    """2K."""
    return 2 * self.head_dim

  def encoding(self, params, tokens):
    """Cosines, then sines, without delta: float32 (1 or B, L, 2K)."""
    del params
    rates = self.base ** (-np.arange(self.head_dim) / self.head_dim)
    angle = angles(tokens.positions, rates)
    xp = np if isinstance(angle, np.ndarray) else jnp
    P_BLR = xp.concatenate([xp.cos(angle), xp.sin(angle)], axis=-1)
    return jnp.asarray(P_BLR, jnp.float32)

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    # Applied to queries, since query heads may share a KV head.
    delta_HK = _clamped(params['delta'], -2 * np.pi, 0.0)
    cos, sin = jnp.split(self.encoding(params, query)[:, :, None], 2, axis=-1)
    turn_cos, turn_sin = jnp.cos(delta_HK), jnp.sin(delta_HK)
    turn_cos, turn_sin = turn_cos[None, None], turn_sin[None, None]
    of_query = (
      cos * turn_cos + sin * turn_sin,
      sin * turn_cos - cos * turn_sin,
    )
    of_key = jnp.split(self.encoding(params, key)[:, :, None], 2, axis=-1)
    return _polar(q_BLHK, *of_query), _polar(k_BMGK, *of_key)


def _clamped(x, low, high):
  """Clipped x; at a bound, where delta begins, jnp.clip halves the gradient."""
  return jnp.where(x < low, low, jnp.where(x > high, high, x))


def _polar(x_BLHK, cos, sin):
  length = jax.nn.softplus(x_BLHK.astype(jnp.float32))
  x = jnp.concatenate([length * cos, length * sin], axis=-1)
  return x.astype(x_BLHK.dtype)
