"""Rates of rotary positions, as they are and for longer texts.

Pair j of R rotated channels turns by base^(-2j/R) radians a position; a scaling
slows pairs down, so that texts `factor` times as long as those of training turn
them by angles that training has seen.
"""

from __future__ import annotations

import math

import numpy as np

from selfattn.positions.contract import require


class Unscaled:
  """'none': rates as they are. Methods read the options of a Rotary."""

  @staticmethod
  def check(rotary) -> None:
    """Raises ValueError where an option of the scaling is out of range."""

  @staticmethod
  def rates(rotary) -> np.ndarray:
    """Radians a position of every pair, float64 (R/2,)."""
    return rotary.base ** (-np.arange(0, rotary.width, 2) / rotary.width)

  @staticmethod
  def amplitude(rotary) -> float:
    """By which queries and keys grow."""
    del rotary
    return 1.0


class Proportional(Unscaled):
  """'proportional': the fastest pairs rotate, the rest stand still.

  p-RoPE (Barbero et al. 2025, section 6.1): of K/2 pairs, the share `fraction`
  turns at its rates of full RoPE, where partial RoPE spreads all rates over
  fewer channels. Rates are divided by `factor`.
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
  """'ntk': base grows by factor^(R/(R-2)).

  The slowest pair is slowed down by `factor`, the fastest not at all.
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
    R = rotary.width
    base = rotary.base * rotary.factor ** (R / (R - 2))
    return base ** (-np.arange(0, R, 2) / R)


class Yarn(Unscaled):
  """'yarn' (Peng et al. 2023, sections 3.2 and 3.4).

  A pair is slowed down as far as it turns less than beta_slow times in
  original_length tokens, and not if more than beta_fast times; queries and keys
  grow by 0.1 ln(factor) + 1.
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

    first = max(math.floor(pair(rotary.beta_fast)), 0)
    last = min(math.ceil(pair(rotary.beta_slow)), rotary.width - 1)
    ramp = np.arange(rotary.width // 2) - first
    return _slowed(rotary, np.clip(ramp / max(last - first, 1e-3), 0, 1))

  @staticmethod
  def amplitude(rotary):
    return 0.1 * math.log(rotary.factor) + 1


class Llama3(Unscaled):
  """'llama3' (Llama 3.1, Grattafiori et al. 2024).

  A pair is slowed down by `factor` if it turns less than low_freq_factor times
  in original_length tokens, not if more than high_freq_factor times, and on a
  straight line in between.
  """

  @staticmethod
  def check(rotary):
    require(
      rotary.high_freq_factor > rotary.low_freq_factor > 0,
      'high_freq_factor',
      rotary.high_freq_factor,
      f'greater than low_freq_factor = {rotary.low_freq_factor}, and that '
      'than 0',
    )

  @staticmethod
  def rates(rotary):
    low, high = rotary.low_freq_factor, rotary.high_freq_factor
    turns = rotary.original_length * Unscaled.rates(rotary) / (2 * math.pi)
    return _slowed(rotary, np.clip((high - turns) / (high - low), 0, 1))


class LongRope(Unscaled):
  """'longrope' (Ding et al. 2024, equations 3 and 6).

  Every pair has a factor of its own, found by a search; queries and keys grow
  by sqrt(1 + ln(factor) / ln(original_length)).
  """

  @staticmethod
  def check(rotary):
    factors = rotary.pair_factors
    require(
      len(factors) == rotary.width // 2 and all(f > 0 for f in factors),
      'pair_factors',
      factors,
      f'{rotary.width // 2} positive numbers, one a pair',
    )

  @staticmethod
  def rates(rotary):
    return Unscaled.rates(rotary) / np.array(rotary.pair_factors)

  @staticmethod
  def amplitude(rotary):
    grown = math.log(rotary.factor) / math.log(rotary.original_length)
    return math.sqrt(1 + grown)


def _slowed(rotary, share):
  """Rates of pairs of which a share, from 0 to 1, is divided by factor."""
  rates = Unscaled.rates(rotary)
  return rates * (1 - share) + rates / rotary.factor * share


SCALINGS: dict[str, type[Unscaled]] = {
  'none': Unscaled,
  'proportional': Proportional,
  'linear': Linear,
  'ntk': Ntk,
  'yarn': Yarn,
  'llama3': Llama3,
  'longrope': LongRope,
}
