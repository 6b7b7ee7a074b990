"""From scores to weights that sum to one: softmax and entmax with a mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from selfattn.arrays import placed
from selfattn.products import unfused_on_cpu

# Keys up to which XLA's sum of products in the gradient is faster inside of a
# larger operation of a CPU. Measured: 128 is faster, and 1,024 slower by half.
_SHORT_ROW = 512


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Softmax over the last axis, float32; a fully masked row is all zero.

  Examples:
    >>> mask = jnp.array([[True, True, False, False], [False] * 4])
    >>> selfattn.normalisers.masked_softmax(jnp.zeros((2, 4)), mask).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
  """
  scores = scores.astype(jnp.float32)
  return _softmax(scores, mask) if scores.size else scores


@jax.custom_jvp
def _softmax(scores, mask):
  if mask is not None:
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
  peak = scores.max(axis=-1, keepdims=True)
  unnormalised = jnp.exp(scores - peak)
  if mask is not None:
    # A fully masked row, whose scores are all equal, would be uniform.
    unnormalised = jnp.where(mask, unnormalised, 0.0)
  total = unnormalised.sum(axis=-1, keepdims=True)
  return unnormalised / jnp.where(total > 0, total, 1.0)


@_softmax.defjvp
def _softmax_jvp(primals, tangents):
  # The gradient needs the weights alone; the derivative of the steps above
  # would keep and read more arrays.
  weights = _softmax(*primals)
  weighted = weights * tangents[0]
  total = weighted.sum(axis=-1, keepdims=True)
  length = weights.shape[-1]
  # A length that is not known yet, in jax.export, is long.
  if not isinstance(length, int) or length > _SHORT_ROW:
    total = unfused_on_cpu(jnp.broadcast_to(total, weights.shape))
  return weights, weighted - weights * total


@jax.custom_jvp
def entmax(scores: jax.Array, mask: jax.Array, alpha: jax.Array) -> jax.Array:
  """alpha-entmax over the last axis, with alpha above 1, float32."""
  mask = jnp.broadcast_to(mask, scores.shape)
  scaled = (alpha - 1) * jnp.where(mask, scores, -jnp.inf)
  peak = scaled.max(axis=-1, keepdims=True)
  scaled = scaled - jnp.where(jnp.isfinite(peak), peak, 0.0)

  def weights(tau):
    above = jnp.maximum(scaled - tau, 0.0)
    return jnp.where(above > 0, above ** (1 / (alpha - 1)), 0.0)

  def halve(tau, width):
    middle = tau + width
    is_below = weights(middle).sum(axis=-1, keepdims=True) >= 1
    return jnp.where(is_below, middle, tau), None

  # The largest weight alone would sum to one at tau = -1.
  tau = placed(jnp.full(peak.shape, -1.0, scaled.dtype), peak)
  widths = 0.5 ** jnp.arange(1.0, 30.0, dtype=scaled.dtype)
  tau, _ = jax.lax.scan(halve, tau, widths)
  nearly = weights(tau)
  total = nearly.sum(axis=-1, keepdims=True)
  return nearly / jnp.where(total > 0, total, 1.0)


@entmax.defjvp
def _entmax_jvp(primals, tangents):
  scores, mask, alpha = primals
  weights = entmax(scores, mask, alpha)
  is_used = weights > 0
  safe = jnp.where(is_used, weights, 1.0)
  slope = jnp.where(is_used, safe ** (2 - alpha), 0.0)
  total = slope.sum(axis=-1, keepdims=True)
  share = slope / jnp.where(total > 0, total, 1.0)
  of_scores = slope * tangents[0]
  of_scores -= share * of_scores.sum(axis=-1, keepdims=True)
  surprise = -weights * jnp.log(safe)
  of_alpha = (weights - share) / (alpha - 1) ** 2 + (
    surprise - share * surprise.sum(axis=-1, keepdims=True)
  ) / (alpha - 1)
  return weights, of_scores + of_alpha * tangents[2]
