"""Frequencies of rotary positions, and their scaling for longer texts.

Pair j of R rotated channels has the frequency base^(-2j/R), in radians per
position. A scaling divides frequencies, so that the angles in texts `factor`
times as long as those of training are angles that were trained.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import require


class Unscaled:
  """'none'. Functions of the options of a Rotary."""

  @staticmethod
  def check(rotary) -> None:
    """Raises ValueError where an option of the scaling is out of range."""

  @staticmethod
  def rates(rotary) -> np.ndarray:
    """Radians per position of each pair, float64 (R/2,)."""
    return rotary.base ** (-np.arange(0, rotary.width, 2) / rotary.width)

  @staticmethod
  def angles(rotary, positions_BL, length_B1):
    """Radians of each pair, (1 or B, L, R/2).

    Args:
      length_B1: tokens of each text, 1 + the last position.
    """
    del length_B1
    return angles(positions_BL, rotary.rates())

  @staticmethod
  def amplitude(rotary) -> float:
    """Factor of queries and keys."""
    del rotary
    return 1.0


class Proportional(Unscaled):
  """'proportional': only the pairs of the highest frequencies are rotated.

  p-RoPE (Barbero et al. 2025, section 6.1): of K/2 pairs, the first `fraction`
  keep their frequencies and the others have frequency 0. Partial RoPE, in
  contrast, has all frequencies in fewer channels. Frequencies are divided by
  `factor`.
  """

  @staticmethod
  def rates(rotary):
    rates = Unscaled.rates(rotary) / rotary.factor
    turning = int(rotary.head_dim * rotary.fraction / 2)
    return np.where(np.arange(len(rates)) < turning, rates, 0.0)


class Linear(Unscaled):
  """'linear': positions are divided by `factor` (Chen et al. 2023)."""

  @staticmethod
  def rates(rotary):
    return Unscaled.rates(rotary) / rotary.factor


class Ntk(Unscaled):
  """'ntk': base is multiplied by factor^(R/(R-2)).

  That divides the lowest frequency by `factor` and leaves the highest.
  """

  @staticmethod
  def check(rotary):
    require(
      rotary.width > 2,
      'scaling',
      rotary.scaling,
      f'linear or yarn where {rotary.width} channels rotate',
    )

  @staticmethod
  def rates(rotary):
    return _with_base(rotary, rotary.factor)


class Dynamic(Ntk):
  """'dynamic': 'ntk' with a factor that grows with the text, from 1.

  In a text of n tokens beyond original_length, it is
  factor * n / original_length - (factor - 1). Keys of a cache are rotated anew
  as the text grows, as if all were one call. Angles of positions that are
  traced have the digits of float32.
  """

  @staticmethod
  def rates(rotary):
    return Unscaled.rates(rotary)

  @staticmethod
  def angles(rotary, positions_BL, length_B1):
    xp = np if isinstance(length_B1, np.ndarray) else jnp
    beyond_B1 = xp.maximum(length_B1 / rotary.original_length - 1, 0)
    rates_BR = _with_base(rotary, 1 + rotary.factor * beyond_B1)
    if rotary.reverse:
      rates_BR = -rates_BR
    return positions_BL[..., None] * rates_BR[:, None]


class Yarn(Unscaled):
  """'yarn' (Peng et al. 2023, sections 3.2 and 3.4).

  The frequency of a pair is divided by `factor` if it has fewer than beta_slow
  periods in original_length tokens, left if more than beta_fast, and
  interpolated between; queries and keys are multiplied by 0.1 ln(factor) + 1.
  """

  @staticmethod
  def check(rotary):
    require(
      rotary.beta_fast > rotary.beta_slow > 0,
      'beta_fast',
      rotary.beta_fast,
      f'greater than beta_slow = {rotary.beta_slow}, and that than 0',
    )

  @staticmethod
  def rates(rotary):
    def pair(turns):
      wavelength = rotary.original_length / (turns * 2 * math.pi)
      return rotary.width * math.log(wavelength) / (2 * math.log(rotary.base))

    first, last = pair(rotary.beta_fast), pair(rotary.beta_slow)
    if rotary.truncate:
      first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary.width - 1)
    ramp = np.arange(rotary.width // 2) - first
    return _slowed(rotary, np.clip(ramp / max(last - first, 1e-3), 0, 1))

  @staticmethod
  def amplitude(rotary):
    return 0.1 * math.log(rotary.factor) + 1


class Llama3(Unscaled):
  """'llama3' (Llama 3.1, Grattafiori et al. 2024).

  The frequency of a pair is divided by `factor` if it has fewer than
  low_freq_factor periods in original_length tokens, left if more than
  high_freq_factor, and interpolated between.
  """

  @staticmethod
  def check(rotary):
    require(
      math.inf > rotary.high_freq_factor > rotary.low_freq_factor > 0,
      'high_freq_factor',
      rotary.high_freq_factor,
      f'finite and greater than low_freq_factor = {rotary.low_freq_factor}, '
      'and that than 0',
    )

  @staticmethod
  def rates(rotary):
    low, high = rotary.low_freq_factor, rotary.high_freq_factor
    turns = rotary.original_length * Unscaled.rates(rotary) / (2 * math.pi)
    return _slowed(rotary, np.clip((high - turns) / (high - low), 0, 1))


class LongRope(Unscaled):
  """'longrope' (Ding et al. 2024, equations 3 and 6).

  The frequency of each pair is divided by a factor of its own, found by a
  search; queries and keys are multiplied by
  sqrt(1 + ln(factor) / ln(original_length)).
  """

  @staticmethod
  def check(rotary):
    for option in ('pair_factors', 'short_factors'):
      factors = getattr(rotary, option)
      are_numbers = all(
        isinstance(f, int | float) and 0 < f < math.inf for f in factors
      )
      is_left_out = option == 'short_factors' and not factors
      require(
        is_left_out or (len(factors) == rotary.width // 2 and are_numbers),
        option,
        factors,
        f'{rotary.width // 2} positive numbers, one a pair',
      )

  @staticmethod
  def rates(rotary):
    return Unscaled.rates(rotary) / np.array(rotary.pair_factors)

  @staticmethod
  def angles(rotary, positions_BL, length_B1):
    found = angles(positions_BL, rotary.rates())
    if not rotary.short_factors:
      return found
    factors = {'pair_factors': rotary.short_factors, 'short_factors': ()}
    short = dataclasses.replace(rotary, **factors).rates()
    is_long_B11 = (length_B1 > rotary.original_length)[..., None]
    xp = np if isinstance(is_long_B11, np.ndarray) else jnp
    return xp.where(is_long_B11, found, angles(positions_BL, short))

  @staticmethod
  def amplitude(rotary):
    grown = math.log(rotary.factor) / math.log(rotary.original_length)
    return math.sqrt(1 + grown)


def _slowed(rotary, share):
  """Between the frequencies and those divided by factor, a share of each."""
  rates = Unscaled.rates(rotary)
  return rates * (1 - share) + rates / rotary.factor * share


def _with_base(rotary, factor):
  """Rates of a base that is multiplied by factor^(R/(R-2)).

  Args:
    factor: a number, or an array of them with a last axis of one.
  """
  R = rotary.width
  base, power = rotary.base * factor ** (R / (R - 2)), -np.arange(0, R, 2) / R
  return base ** (power if np.ndim(factor) == 0 else power[None])


SCALINGS: dict[str, type[Unscaled]] = {
  'none': Unscaled,
  'proportional': Proportional,
  'linear': Linear,
  'ntk': Ntk,
  'dynamic': Dynamic,
  'yarn': Yarn,
  'llama3': Llama3,
  'longrope': LongRope,
}
