"""From scores to attention weights, chosen by name.

A normaliser is a frozen dataclass with its options as fields. All of them
return exactly zero, with finite gradients, in a fully masked row.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.masks import Tokens


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
    Further fields are the normaliser's options; each needs a default, and
    becomes a key of the config.
  """

  num_heads: int

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


NORMALISERS: dict[str, type[Softmax]] = {
  'softmax': Softmax,
  'sinks': Sinks,
  'sigmoid': Sigmoid,
}
