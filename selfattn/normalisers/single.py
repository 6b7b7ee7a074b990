"""Normalisers of each head by itself."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from selfattn.arrays import placed
from selfattn.normalisers.contract import Softmax
from selfattn.order import later_sum
from selfattn.positions.contract import require
from selfattn.simplex import entmax, masked_softmax


@dataclasses.dataclass(frozen=True)
class Sinks(Softmax):
  """exp(s) / (exp(sink) + sum exp(s)): weights may sum to less than one.

  A learned sink per head and layer is 0 at initialisation, as in gpt-oss. With
  learned=False, all sinks are 0: softmax-off-by-one (Miller 2023).

  Attributes:
    learned: whether sinks are parameters.
  """

  learned: bool = True

  def init(self, key):
    return {'sink': self._zeros()} if self.learned else {}

  def _zeros(self):
    return jnp.zeros(self.num_heads, jnp.float32)

  def __call__(self, params, scores_BHLM, mask, query, key):
    B, _, L, _ = scores_BHLM.shape
    sink_H = params['sink'] if self.learned else self._zeros()
    sink_BHL1 = jnp.broadcast_to(
      sink_H[None, :, None, None], (B, self.num_heads, L, 1)
    )
    # The sink is one more key, which has no value.
    sink_BHL1 = placed(sink_BHL1, scores_BHLM[..., :1])
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

  Attributes:
    by_length: whether log n, of n visible keys, is subtracted.
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


# Below this, the exponent 1 / (alpha - 1) loses the digits of float32.
_LOWEST_ALPHA = 1.01


@dataclasses.dataclass(frozen=True)
class Entmax(Softmax):
  """alpha-entmax: weights that can be exactly zero (Peters et al. 2019).

  relu((alpha - 1) s - tau)^(1 / (alpha - 1)), with tau such that a row sums to
  one: softmax as alpha tends to 1, sparsemax at 2. With `learned`, alpha is
  1 + sigmoid(a), from 1.01 to 2, of each head and layer (Correia et al. 2019,
  section 4.1), and begins at `alpha`.

  tau is found by bisection; gradients are those of the solution (equations 12
  and 13 of Correia et al.).

  Attributes:
    alpha: the exponent's alpha; below 2 where learned.
    learned: whether each head learns its own, from alpha on.
  """

  alpha: float = 1.5
  learned: bool = False

  def __post_init__(self):
    highest = 1.99 if self.learned else 2.0
    require(
      _LOWEST_ALPHA <= self.alpha <= highest,
      'alpha',
      self.alpha,
      f'from {_LOWEST_ALPHA} to {highest}',
    )

  def init(self, key):
    """`alpha_logit`, a: (H,), where it is learned."""
    if not self.learned:
      return {}
    share = self.alpha - 1
    logit = math.log(share / (1 - share))
    return {'alpha_logit': jnp.full(self.num_heads, logit, jnp.float32)}

  def __call__(self, params, scores_BHLM, mask, query, key):
    alpha_H = jnp.full(self.num_heads, self.alpha, jnp.float32)
    if self.learned:
      alpha_H = 1 + jax.nn.sigmoid(params['alpha_logit'])
      alpha_H = jnp.maximum(alpha_H, _LOWEST_ALPHA)
    if mask is None:
      mask = jnp.ones((1, 1, 1, 1), bool)
    scores = scores_BHLM.astype(jnp.float32)
    return entmax(scores, mask, alpha_H[None, :, None, None])


@dataclasses.dataclass(frozen=True)
class Sparsemax(Softmax):
  """The nearest point of the simplex (Martins and Astudillo 2016).

  relu(s - tau), with tau such that a row sums to one.
  """

  def __call__(self, params, scores_BHLM, mask, query, key):
    return Entmax(self.num_heads, alpha=2.0)({}, scores_BHLM, mask, query, key)


@dataclasses.dataclass(frozen=True)
class Ssmax(Softmax):
  """Scalable softmax: softmax(a s log n) of scores s (Nakanishi 2025, eq. 2).

  n is the number of visible keys of the query, so that weights do not flatten
  in longer texts; a is learned by each head and layer.

  Attributes:
    length: visible keys at which it is softmax at initialisation.
  """

  length: int = 128

  def __post_init__(self):
    require(self.length >= 2, 'length', self.length, 'at least 2')

  def init(self, key):
    """`scale`, a: (H,), 1 / log length."""
    del key
    return {'scale': jnp.full(self.num_heads, 1 / math.log(self.length))}

  def __call__(self, params, scores_BHLM, mask, query, key):
    factor = params['scale'][None, :, None, None] * _log_count(
      scores_BHLM, mask
    )
    return masked_softmax(scores_BHLM.astype(jnp.float32) * factor, mask)


@dataclasses.dataclass(frozen=True)
class ScaledEntmax(Entmax):
  """alpha-entmax((d + b (log n)^c) s) of scores s, n the visible keys.

  Adaptive-scalable entmax (Vasylenko et al. 2025), whose b and c are functions
  of the query; here, each head and layer learns d, b = softplus(b') and c =
  tanh(c'), from 1, log 2 and 0 on.
  """

  def init(self, key):
    """`delta`, d, `beta`, b', and `gamma`, c': (H,); and those of Entmax."""
    zeros = jnp.zeros(self.num_heads, jnp.float32)
    scales = {'delta': zeros + 1, 'beta': zeros, 'gamma': zeros}
    return super().init(key) | scales

  def __call__(self, params, scores_BHLM, mask, query, key):
    delta, beta, gamma = (
      params[name][None, :, None, None] for name in ('delta', 'beta', 'gamma')
    )
    growth = _log_count(scores_BHLM, mask) ** jnp.tanh(gamma)
    scores = scores_BHLM * (delta + jax.nn.softplus(beta) * growth)
    return super().__call__(params, scores, mask, query, key)


def _log_count(scores_BHLM, mask) -> jax.Array:
  """log n, n visible keys of each query: float32 (1 or B, 1 or H, 1 or L, 1).

  At least log 2: a single key has the whole weight, whatever the factor.
  """
  if mask is None:
    mask = jnp.ones((1, 1, 1, 1), bool)
  mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores_BHLM.shape[-1]))
  count = jnp.maximum(mask.sum(axis=-1, keepdims=True), 2)
  return jnp.log(count.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class StickBreaking(Softmax):
  """Nearest keys first (Tan et al. 2024, equation 2); causal encoders alone.

  sigmoid(s_ij) prod_l (1 - sigmoid(s_il)) over the keys l from j to the query:
  each key takes its share of what nearer ones have left, so that order needs no
  further position method. A row may sum to less than one.

  Attributes:
    attend_current: whether a token attends to itself.
  """

  attend_current: bool = True

  causal_only = True

  def __call__(self, params, scores_BHLM, mask, query, key):
    scores = scores_BHLM.astype(jnp.float32)
    ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    seen = ahead_BLM <= 0 if self.attend_current else ahead_BLM < 0
    mask = jnp.asarray(seen)[:, None] if mask is None else mask & seen[:, None]
    left = jnp.where(mask, jax.nn.log_sigmoid(-scores), 0.0)
    nearer = later_sum(left, key.index)
    weights = jax.nn.sigmoid(scores) * jnp.exp(nearer)
    return jnp.where(mask, weights, 0.0)
