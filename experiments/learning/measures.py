"""Measures of what layers sow, such as the entropy of attention weights.

One class and one line of MEASURES per measure. config.train.measures names
them, and each is then a metric of the run beside those of the task: its mean
over the texts of a split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from selfattn import analysis
from selfattn.contract import Encoder, has_heads


@dataclasses.dataclass(frozen=True)
class Measure:
  """A number for each text, from what the layers of an encoder sowed.

  Fields with a default are options.

  Attributes:
    best: `max` or `min`, the best of several values, for a sweep or a
      checkpoint that is chosen by the measure.
  """

  best: ClassVar[Callable] = min

  def check(self, encoder: Encoder) -> None:
    """ValueError if an option is out of range, or the encoder does not fit."""

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    """The measure of each text, float32 (B,); finite. Traced by jax.

    Args:
      sown: the tree `intermediates` of the encoder, which
        selfattn.analysis.sown reads.
      padding_mask_BL: boolean, True at the tokens that the encoder has read,
        of which [CLS] is the first if the model has it.
    """
    raise NotImplementedError


class OfWeights(Measure):
  """The mean over layers, heads and queries of a number for each query.

  It is 0 for a text without tokens. A subclass defines `of_queries`.
  """

  def check(self, encoder: Encoder) -> None:
    if not has_heads(encoder):
      name = type(encoder).__name__
      raise ValueError(f'it reads attention weights, and {name} has none')

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    """A number for each query, (B, H, L).

    Args:
      shares_BHLM: float32, of each key in the weight of a query.
    """
    raise NotImplementedError

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    count_B = jnp.maximum(padding_mask_BL.sum(axis=-1), 1)
    means_NB = []
    for *_, weights_BHLM in analysis.sown(sown, 'weights'):
      x_BHL = self.of_queries(analysis.shares(weights_BHLM))
      x_BHL = jnp.where(padding_mask_BL[:, None], x_BHL, 0.0)
      means_NB.append(x_BHL.mean(axis=1).sum(axis=-1) / count_B)
    return jnp.stack(means_NB).mean(axis=0)


class AttentionEntropy(OfWeights):
  """Entropy of the weights of a query over its keys, in nats."""

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    return analysis.entropy(shares_BHLM)


class AttentionDistance(OfWeights):
  """Distance |key - query| in tokens, weighted by attention."""

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    index = jnp.arange(shares_BHLM.shape[-1], dtype=jnp.float32)
    distance_LM = abs(index[None] - index[:, None])
    return (shares_BHLM * distance_LM[None, None]).sum(axis=-1)


MEASURES: dict[str, type[Measure]] = {
  'attention_entropy': AttentionEntropy,
  'attention_distance': AttentionDistance,
}
