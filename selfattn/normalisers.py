"""From scores to attention weights, chosen by name.

A normaliser is a frozen dataclass with its options as fields. All of them
return exactly zero, with finite gradients, in a fully masked row.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from selfattn.masks import Tokens
from selfattn.order import cumulative_sum
from selfattn.positions.contract import require


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Softmax over the last axis, float32; a fully masked row is all zero."""
  scores = scores.astype(jnp.float32)
  if mask is None:
    return jax.nn.softmax(scores, axis=-1)
  return _masked_softmax(scores, mask)


@jax.custom_jvp
def _masked_softmax(scores, mask):
  scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
  peak = scores.max(axis=-1, keepdims=True)
  # Without the second where, a fully masked row, whose scores are all equal,
  # would be uniform.
  unnormalised = jnp.where(mask, jnp.exp(scores - peak), 0.0)
  total = unnormalised.sum(axis=-1, keepdims=True)
  return unnormalised / jnp.where(total > 0, total, 1.0)


@_masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
  # From the weights alone: the derivative of the steps above would keep, and
  # read, more arrays.
  weights = _masked_softmax(*primals)
  weighted = weights * tangents[0]
  return weights, weighted - weights * weighted.sum(axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Softmax:
  """exp(s) / sum exp(s) (Vaswani et al. 2017, equation 1).

  Attributes:
    num_heads: H.
    causal_only: whether keys after their query have to be masked.
    Further fields are the normaliser's options; each needs a default, and
    becomes a key of the config.
  """

  num_heads: int

  causal_only: ClassVar[bool] = False

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Parameters of one layer by name; {} if it has none."""
    del key
    return {}

  def __call__(
    self,
    params,
    scores_BHLM: jax.Array,
    mask: jax.Array | None,
    query: Tokens,
    key: Tokens,
  ) -> jax.Array:
    """Weights, float32 (B, H, L, M).

    Args:
      params: from `init`.
      scores_BHLM: float32, of all keys, and of all queries or a chunk.
      mask: boolean, broadcasting to them, False where masked; None: no mask.
      query, key: Tokens of both sides.
    """
    del params, query, key
    return masked_softmax(scores_BHLM, mask)


@dataclasses.dataclass(frozen=True)
class Sinks(Softmax):
  """exp(s) / (exp(sink) + sum exp(s)): weights may sum to less than one.

  With `learned`, one sink per head and layer, 0 at initialisation (as in
  gpt-oss); without, all are 0: softmax-off-by-one (Miller 2023).
  """

  learned: bool = True

  def init(self, key):
    return {'sink': jnp.zeros(self.num_heads)} if self.learned else {}

  def __call__(self, params, scores_BHLM, mask, query, key):
    B, _, L, _ = scores_BHLM.shape
    sink_H = params.get('sink', jnp.zeros(self.num_heads))
    sink_BHL1 = jnp.broadcast_to(
      sink_H[None, :, None, None], (B, self.num_heads, L, 1)
    )
    # One more key, without a value.
    scores = jnp.concatenate([scores_BHLM, sink_BHL1], axis=-1)
    if mask is None:
      return masked_softmax(scores, None)[..., :-1]
    mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores_BHLM.shape[-1]))
    mask = jnp.pad(mask, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
    return masked_softmax(scores, mask)[..., :-1]


@dataclasses.dataclass(frozen=True)
class Sigmoid(Softmax):
  """sigmoid(s - log n), elementwise (Ramapuram et al. 2024, section 2).

  n is the number of visible keys of the query, so that a row sums to about one
  at initialisation; without `by_length`, it is 1.
  """

  by_length: bool = True

  def __call__(self, params, scores_BHLM, mask, query, key):
    scores = scores_BHLM.astype(jnp.float32)
    if mask is None:
      mask = jnp.ones((1, 1, 1, 1), bool)
    mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores.shape[-1]))
    if self.by_length:
      count = jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)
      scores = scores - jnp.log(count.astype(jnp.float32))
    return jnp.where(mask, jax.nn.sigmoid(jnp.where(mask, scores, 0.0)), 0.0)


@dataclasses.dataclass(frozen=True)
class Entmax(Softmax):
  """alpha-entmax: weights that can be exactly zero (Peters et al. 2019).

  relu((alpha - 1) s - tau)^(1 / (alpha - 1)), with tau such that a row sums to
  one: softmax as alpha tends to 1, sparsemax at 2. With `learned`, alpha is
  1 + sigmoid(a), from 1 to 2, of each head and layer (Correia et al. 2019,
  section 4.1), and begins at `alpha`.

  tau is found by bisection; gradients are those of the solution (equations 12
  and 13 of Correia et al.).

  Attributes:
    alpha: above 1 and at most 2; below 2 where learned.
    learned: whether each head learns its own.
  """

  alpha: float = 1.5
  learned: bool = False

  def __post_init__(self):
    is_inside = 1 < self.alpha < 2 or (self.alpha == 2 and not self.learned)
    allowed = 'above 1 and below 2' if self.learned else 'above 1, at most 2'
    require(is_inside, 'alpha', self.alpha, allowed)

  def init(self, key):
    """`alpha_logit`, a: (H,), where it is learned."""
    if not self.learned:
      return {}
    share = self.alpha - 1
    return {
      'alpha_logit': jnp.full(self.num_heads, math.log(share / (1 - share)))
    }

  def __call__(self, params, scores_BHLM, mask, query, key):
    alpha_H = jnp.full(self.num_heads, self.alpha)
    if self.learned:
      alpha_H = 1 + jax.nn.sigmoid(params['alpha_logit'])
    if mask is None:
      mask = jnp.ones((1, 1, 1, 1), bool)
    scores = scores_BHLM.astype(jnp.float32)
    return _entmax(scores, mask, alpha_H[None, :, None, None])


@jax.custom_jvp
def _entmax(scores, mask, alpha):
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
  tau = jnp.full((*scaled.shape[:-1], 1), -1.0)
  tau, _ = jax.lax.scan(halve, tau, 0.5 ** jnp.arange(1.0, 30.0))
  found = weights(tau)
  total = found.sum(axis=-1, keepdims=True)
  return found / jnp.where(total > 0, total, 1.0)


@_entmax.defjvp
def _entmax_jvp(primals, tangents):
  scores, mask, alpha = primals
  weights = _entmax(scores, mask, alpha)
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


@dataclasses.dataclass(frozen=True)
class Sparsemax(Softmax):
  """The nearest point of the simplex (Martins and Astudillo 2016).

  relu(s - tau), with tau such that a row sums to one.
  """

  def __call__(self, params, scores_BHLM, mask, query, key):
    return Entmax(self.num_heads, alpha=2.0)({}, scores_BHLM, mask, query, key)


@dataclasses.dataclass(frozen=True)
class StickBreaking(Softmax):
  """Nearest keys first (Tan et al. 2024, equation 2); causal encoders alone.

  sigmoid(s_ij) prod_l (1 - sigmoid(s_il)) over the keys l from j to the query:
  each key takes its share of what nearer ones have left, so that order needs no
  further position method. A row may sum to less than one.

  Attributes:
    attend_current: whether a token sees itself.
  """

  attend_current: bool = True

  causal_only = True

  def __call__(self, params, scores_BHLM, mask, query, key):
    scores = scores_BHLM.astype(jnp.float32)
    ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    seen = ahead_BLM <= 0 if self.attend_current else ahead_BLM < 0
    mask = jnp.asarray(seen)[:, None] if mask is None else mask & seen[:, None]
    left = jnp.where(mask, jax.nn.log_sigmoid(-scores), 0.0)
    until = cumulative_sum(left, key.index)
    nearer = left.sum(axis=-1, keepdims=True) - until
    weights = jnp.exp(jax.nn.log_sigmoid(scores) + nearer)
    return jnp.where(mask, weights, 0.0)


@dataclasses.dataclass(frozen=True)
class TalkingHeads(Softmax):
  """Softmax between two maps over heads (Shazeer et al. 2020, section 4).

  Both maps begin as the identity.
  """

  def init(self, key):
    """`before` and `after`: (H, H), from heads to heads."""
    del key
    eye = jnp.eye(self.num_heads)
    return {'before': eye, 'after': eye}

  def __call__(self, params, scores_BHLM, mask, query, key):
    mixed = jnp.einsum('BHLM,HN->BNLM', scores_BHLM, params['before'])
    weights = masked_softmax(mixed, mask)
    return jnp.einsum('BHLM,HN->BNLM', weights, params['after'])


NORMALISERS: dict[str, type[Softmax]] = {
  'softmax': Softmax,
  'sinks': Sinks,
  'sigmoid': Sigmoid,
  'sparsemax': Sparsemax,
  'entmax': Entmax,
  'stick_breaking': StickBreaking,
  'talking_heads': TalkingHeads,
}
