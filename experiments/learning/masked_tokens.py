"""Masked language modelling."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.data.batches import Batch
from experiments.data.vocabularies import SPECIAL_TOKENS
from experiments.learning.tasks import Targets, Task, padding_mask
from selfattn.dropout import Bits
from selfattn.heads import VocabularyHead


@dataclasses.dataclass(frozen=True)
class MaskedTokens(Task):
  """Masked language modelling (Devlin et al. 2019, 3.1).

  A share of the tokens of each text is chosen at random and predicted: of n
  tokens share * n, rounded up or down at random.

  Attributes:
    share: share of the tokens that are chosen (mlm_probability).
    mask: fraction of the chosen tokens that are replaced by [MASK]; mask,
      random and keep sum to 1.
    random: fraction that is replaced by tokens drawn uniformly.
    keep: fraction that is not replaced.
  """

  share: float = 0.15
  mask: float = 0.8
  random: float = 0.1
  keep: float = 0.1
  metrics: ClassVar = {'loss': min, 'accuracy': max}
  has_mask_token: ClassVar = True
  tied = True

  def check(self) -> None:
    if not 0 < self.share <= 1:
      raise ValueError(
        f'share = {self.share} must be greater than 0 and at most 1'
      )
    parts = (self.mask, self.random, self.keep)
    if not (min(parts) >= 0 and abs(sum(parts) - 1) <= 1e-6):
      raise ValueError(
        f'mask = {self.mask} must be at least 0, as random = {self.random} and '
        f'keep = {self.keep}, and their sum 1'
      )

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    shape, can_be_chosen = batch.tokens.shape, padding_mask(batch)
    if special := self._special():
      ids = jnp.array(special, batch.tokens.dtype)
      can_be_chosen &= ~jnp.isin(batch.tokens, ids)
    lengths = can_be_chosen.sum(axis=1, keepdims=True)
    order = bits.at(0).bits(shape) >> 1
    order = jnp.where(can_be_chosen, order, jnp.uint32(2**32 - 1))
    # As many as the length of the batch allows, of which some have weight 0.
    most = min(int(self.share * shape[1]) + 1, shape[1])
    index = jnp.argsort(order, axis=1)[:, :most]
    rank = jnp.arange(most)[None]
    rounding = _uniform(bits.at(1).bits((shape[0], 1)))
    is_chosen = rank < jnp.floor(self.share * lengths + rounding)
    is_chosen &= rank < lengths
    labels = jnp.take_along_axis(batch.tokens, index, axis=1)
    drawn, kind = (
      jnp.take_along_axis(bits.at(site).bits(shape), index, axis=1)
      for site in (2, 3)
    )
    new = self._replaced(labels, drawn, _uniform(kind), vocab_size)
    new = jnp.where(is_chosen, new, labels)
    tokens = jnp.put_along_axis(batch.tokens, index, new, axis=1, inplace=False)
    weights = is_chosen * batch.weights[:, None]
    return Targets(tokens, batch.lengths, labels, weights, index)

  def _replaced(self, labels, drawn, kind, vocab_size: int) -> jax.Array:
    """What stands in place of tokens: [MASK], another one, or the same.

    Args:
      labels: the tokens, (rows, most).
      drawn: random bits, of their shape.
      kind: uniform in [0, 1), of their shape.
      vocab_size: V, which is the id of [MASK] if the vocabulary has none.
    """
    # [PAD] and [UNK] of this project's vocabularies are not drawn.
    first = min(len(SPECIAL_TOKENS), vocab_size - 1)
    drawn = first + drawn % jnp.uint32(vocab_size - first)
    new = jnp.where(kind < self.mask + self.random, drawn, labels)
    mask = vocab_size if self.mask_id is None else self.mask_id
    return jnp.where(kind < self.mask, mask, new).astype(jnp.int32)

  def _special(self) -> tuple[int, ...]:
    """Ids of the tokens that are never chosen."""
    return () if self.vocabulary is None else self.vocabulary.special

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    del vocab_size, num_labels
    return VocabularyHead(parent=None)


def _uniform(bits: jax.Array) -> jax.Array:
  """Float32 in [0, 1), from the 24 bits that it can represent."""
  return (bits >> 8).astype(jnp.float32) * 2.0**-24
