"""Rotary positions: rotations of pairs of channels of queries and keys."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import Position, require

LAYOUTS = ('half', 'interleaved')
SCALINGS = ('none', 'linear', 'ntk', 'yarn')


@dataclasses.dataclass(frozen=True)
class Rotary(Position):
  """RoPE (Su et al. 2021, section 3.2.2).

  Pair j of the R rotated channels is rotated by p / base^(2j/R) at position p,
  so that a score depends on the difference of two positions only.

  Attributes:
    layout: which channels are a pair. 'half': j and j + R/2; 'interleaved':
      2j and 2j + 1. The same up to a permutation of channels.
    base: of the angles.
    fraction: of the channels that are rotated, rounded down to pairs; 1: R = K.
    scaling: for texts longer than those of training.
      'linear': positions are divided by `factor` (Chen et al. 2023).
      'ntk': base is multiplied by factor^(R/(R-2)), which divides the lowest
        frequency by `factor` and leaves the highest.
      'yarn': the frequency of a pair is divided by `factor` if it has fewer
        than beta_slow periods in original_length tokens, left if more than
        beta_fast, and interpolated between; queries and keys are multiplied
        by 0.1 ln(factor) + 1 (Peng et al. 2023, sections 3.2 and 3.4).
    factor: longest text over longest text of training.
    original_length: longest text of training, in tokens, for 'yarn'.
    beta_fast, beta_slow: periods, for 'yarn'.
  """

  layout: str = 'half'
  base: float = 10_000.0
  fraction: float = 1.0
  scaling: str = 'none'
  factor: float = 1.0
  original_length: int = 512
  beta_fast: float = 32.0
  beta_slow: float = 1.0

  is_relative = True

  def __post_init__(self):
    require(self.layout in LAYOUTS, 'layout', self.layout, f'one of {LAYOUTS}')
    require(
      self.scaling in SCALINGS, 'scaling', self.scaling, f'one of {SCALINGS}'
    )
    require(self.base > 1, 'base', self.base, 'greater than 1')
    require(
      0 < self.fraction <= 1 and self.width >= 2,
      'fraction',
      self.fraction,
      f'at most 1 and leave a pair of the {self.head_dim} channels of a head',
    )
    require(self.factor >= 1, 'factor', self.factor, 'at least 1')
    if self.scaling == 'ntk':
      require(
        self.width > 2,
        'scaling',
        self.scaling,
        f'linear or yarn where {self.width} channels rotate',
      )
    if self.scaling == 'yarn':
      require(
        self.beta_fast > self.beta_slow > 0,
        'beta_fast',
        self.beta_fast,
        f'greater than beta_slow = {self.beta_slow}, and that than 0',
      )
      require(
        self.original_length >= 1,
        'original_length',
        self.original_length,
        'at least 1',
      )

  @property
  def width(self) -> int:
    """R, number of rotated channels."""
    return 2 * int(self.head_dim * self.fraction / 2)

  def rates(self) -> np.ndarray:
    """Radians a position of every pair, float64 (R/2,)."""
    pairs = np.arange(0, self.width, 2)
    base = self.base
    if self.scaling == 'ntk':
      base *= self.factor ** (self.width / (self.width - 2))
    rates = base ** (-pairs / self.width)
    if self.scaling == 'linear':
      return rates / self.factor
    if self.scaling == 'yarn':
      slow = self._slowed()
      return rates * (1 - slow) + rates / self.factor * slow
    return rates

  def _slowed(self):
    """Weight of the divided frequency of each pair, from 0 to 1."""

    def pair(turns):
      wavelength = self.original_length / (turns * 2 * math.pi)
      return self.width * math.log(wavelength) / (2 * math.log(self.base))

    first = max(math.floor(pair(self.beta_fast)), 0)
    last = min(math.ceil(pair(self.beta_slow)), self.width - 1)
    ramp = np.arange(self.width // 2) - first
    return np.clip(ramp / max(last - first, 1e-3), 0, 1)

  def encoding(self, params, tokens):
    """Cosines, then sines: float32 (1 or B, L, R)."""
    del params
    angle = angles(tokens.positions, self.rates())
    xp = np if isinstance(angle, np.ndarray) else jnp
    P_BLR = xp.concatenate([xp.cos(angle), xp.sin(angle)], axis=-1)
    if self.scaling == 'yarn':
      P_BLR = P_BLR * (0.1 * math.log(self.factor) + 1)
    return jnp.asarray(P_BLR, jnp.float32)

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    P_BLR = self.encoding(params, query)
    return self._turn(q_BLHK, P_BLR), self._turn(
      k_BMGK, P_BLR if key is query else self.encoding(params, key)
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
class Pope(Position):
  """Polar positions (PoPE; Gopalakrishnan et al. 2025, equations 5 to 7).

  Channel c of queries and keys is a complex number of magnitude softplus(value)
  and angle w_c times the position, so that content and position are separate.
  The score is sum_c softplus(q_c) softplus(k_c) cos((j - i) w_c + delta_c),
  with a learned delta per head and layer, from -2 pi to 0. K rates instead of
  the K/2 of RoPE; queries and keys are twice as wide in their matmul.

  Attributes:
    base: of the rates, base^(-c/K).
  """

  base: float = 10_000.0

  per_layer = True
  is_relative = True

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
    delta_HK = jnp.clip(params['delta'], -2 * np.pi, 0.0)
    cos, sin = jnp.split(self.encoding(params, query)[:, :, None], 2, axis=-1)
    turn_cos, turn_sin = jnp.cos(delta_HK), jnp.sin(delta_HK)
    turn_cos, turn_sin = turn_cos[None, None], turn_sin[None, None]
    of_query = (
      cos * turn_cos + sin * turn_sin,
      sin * turn_cos - cos * turn_sin,
    )
    of_key = jnp.split(self.encoding(params, key)[:, :, None], 2, axis=-1)
    return _polar(q_BLHK, *of_query), _polar(k_BMGK, *of_key)


def _polar(x_BLHK, cos, sin):
  length = jax.nn.softplus(x_BLHK.astype(jnp.float32))
  x = jnp.concatenate([length * cos, length * sin], axis=-1)
  return x.astype(x_BLHK.dtype)
