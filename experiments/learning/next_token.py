"""Causal language modelling, of one token ahead or of several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.data.batches import Batch
from experiments.learning.tasks import Targets, Task
from selfattn.dropout import Bits
from selfattn.heads import Further, TokenHead, VocabularyHead

# Each offset has a metric.
_MOST = 64


@dataclasses.dataclass(frozen=True)
class NextToken(Task):
  """Causal language modelling: the token after each one.

  With offsets = n > 1, multi-token prediction (Gloeckle et al. 2024): the next
  n tokens are predicted from each vector, and what is minimised is the mean
  over all predictions. The metrics are those of the next token, and `loss_k`
  that of the k-th one. A trained run is read as a model of the next token.

  Attributes:
    tied: whether logits are made by the embedding table, after a transform, as
      masked_tokens makes them; False: by a matrix of their own.
    offsets: tokens that are predicted from the vector of each token; each after
      the first one has a layer of its own before the same head.
  """

  tied: bool = True
  offsets: int = 1
  metrics: ClassVar = {'loss': min, 'accuracy': max, 'perplexity': min}
  training_option: ClassVar = 'offsets'
  is_causal: ClassVar = True
  reads_streams: ClassVar = True

  def __post_init__(self):
    if not 1 <= self.offsets <= _MOST:
      raise ValueError(f'offsets = {self.offsets} must be from 1 to {_MOST}')

  def all_metrics(self) -> dict[str, Callable]:
    """Also the loss of each further offset."""
    further = range(2, self.offsets + 1)
    return super().all_metrics() | {f'loss_{offset}': min for offset in further}

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    """The texts without their last token, and the next tokens as labels.

    Of several offsets, labels and weights are (batch, length, offsets).
    """
    del vocab_size, bits
    # At least one column, if only of padding.
    most = max(batch.tokens.shape[1] - 1, 1)
    tokens, lengths = batch.tokens[:, :most], jnp.maximum(batch.lengths - 1, 0)
    labels = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))[:, :most]
    is_read = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    weights = is_read * batch.weights[:, None]
    if self.offsets > 1:
      labels, weights = (self._ahead(values) for values in (labels, weights))
    return Targets(tokens, lengths, labels, weights)

  def _ahead(self, values) -> jax.Array:
    """What the next token has (batch, length), for each offset, last axis."""
    length = values.shape[1]
    padded = jnp.pad(values, ((0, 0), (0, self.offsets)))
    columns = [padded[:, k : k + length] for k in range(self.offsets)]
    return jnp.stack(columns, axis=-1)

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    del num_labels
    if self.tied:
      return VocabularyHead(parent=None)
    return TokenHead(vocab_size, parent=None)

  def further(self) -> nn.Module | None:
    return Further(self.offsets, parent=None) if self.offsets > 1 else None

  def scores(self, outputs, labels):
    """Also the loss of each further offset; None where none is predicted."""
    # Without further offsets, outputs have no axis of them.
    columns = (values.reshape(len(values), -1).T for values in outputs)
    first, *further = zip(*columns, strict=True)
    scores = super().scores(first, labels)
    for offset, (losses, _, counts) in enumerate(further, 2):
      count = counts.sum()
      scores[f'loss_{offset}'] = losses.sum() / count if count else None
    return scores

  def mean_metrics(self, loss, accuracy) -> dict:
    """With the perplexity, exp(loss), of at most exp(88).

    Above that it is not finite in float32, which would end the run.
    """
    at_most_88 = loss - (loss > 88) * (loss - 88)
    perplexity = math.e**at_most_88
    return super().mean_metrics(loss, accuracy) | {'perplexity': perplexity}
