"""Angles of positions, for methods with sines and cosines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def angles(positions_BL, rates: np.ndarray):
  """Positions times rates up to whole turns, in radians: (1 or B, L, N).

  Distances, (1 or B, L, M), likewise.

  Float64, of NumPy, where positions are known while tracing. Else float32 from
  -pi to pi, off by at most 1e-6 at any below 2^31 (with rates up to 4, and more
  with faster ones): it is computed in steps
  of 2^-32 turns, as integers, which wrap around as angles do. In floats, it
  would be off by 1e-3 at position 10^5, and in bfloat16 positions 257 and 258
  would be equal.

  Args:
    positions_BL: integers, or real numbers.
    rates: radians per position, float64 (N,).
  """
  if isinstance(positions_BL, np.ndarray):
    return positions_BL[..., None] * _last(rates, positions_BL.ndim)
  if not jnp.issubdtype(positions_BL.dtype, jnp.integer):
    below_BL = jnp.floor(positions_BL)
    rest_BL1 = (positions_BL - below_BL)[..., None]
    last = jnp.asarray(_last(rates, positions_BL.ndim), jnp.float32)
    return angles(below_BL.astype(jnp.int32), rates) + rest_BL1 * last
  steps = _last(rates, positions_BL.ndim) / (2 * np.pi) * 2.0**32
  whole = np.round(steps)
  # Whole turns a position are none: steps wrap around as their products do.
  wrapped = whole.astype(np.int64).astype(np.int32)
  positions_BL1 = positions_BL[..., None].astype(jnp.int32)
  rest = positions_BL1.astype(jnp.float32) * jnp.float32(steps - whole)
  turned = positions_BL1 * jnp.int32(wrapped) + jnp.round(rest).astype(
    jnp.int32
  )
  return turned.astype(jnp.float32) * jnp.float32(np.pi * 2.0**-31)


def exact_terms(positions, rates) -> list[jax.Array]:
  """Angles whose sum is positions times rates, each without rounding, float32.

  For rates that are learned, of which no table of float64 can be made. The
  factors of a term have twelve bits each, so that their product fits into the
  24 of float32. The gradient of the sum by a rate is its position.

  Args:
    positions: integers, or real numbers, whose part below 1 is rounded; terms
      that are 0 are left out where they are known.
    rates: radians per position, of a shape that broadcasts; read as float32.
  """
  like = np if isinstance(positions, np.ndarray) else jnp
  is_whole = jnp.issubdtype(positions.dtype, jnp.integer)
  below = (positions if is_whole else like.floor(positions)).astype(like.int32)
  parts = [below & 0xFFF, below & 0xFFF000, below & ~0xFFFFFF]
  if like is np:
    parts = [part for part in parts if part.any()]
  rates = jnp.asarray(rates, jnp.float32)
  bits = jax.lax.bitcast_convert_type(rates, jnp.int32) & ~0xFFF
  high = jax.lax.stop_gradient(jax.lax.bitcast_convert_type(bits, jnp.float32))
  terms = [
    half * part.astype(like.float32)
    for part in parts
    for half in (high, rates - high)
  ]
  if not is_whole:
    terms.append(rates * (positions - below).astype(like.float32))
  return terms


def without_turns(angles) -> jnp.ndarray:
  """Angles that `angles` returns from -pi to pi, float32.

  Larger ones of float64 would lose digits in it.
  """
  if isinstance(angles, np.ndarray):
    angles = np.remainder(angles + np.pi, 2 * np.pi) - np.pi
  return jnp.asarray(angles, jnp.float32)


def _last(rates: np.ndarray, rank: int) -> np.ndarray:
  return rates.reshape((1,) * rank + (-1,))
