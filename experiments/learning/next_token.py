"""Causal language modelling."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from experiments.data.batches import Batch
from experiments.learning.tasks import Targets, Task
from selfattn.dropout import Bits
from selfattn.heads import TokenHead, VocabularyHead


@dataclasses.dataclass(frozen=True)
class NextToken(Task):
  """Causal language modelling: the token after each one.

  Attributes:
    tied: whether logits are made by the embedding table, after a transform, as
      masked_tokens makes them; False: by a matrix of their own.
  """

  tied: bool = True
  metrics: ClassVar = {'loss': min, 'accuracy': max, 'perplexity': min}
  is_causal: ClassVar = True
  reads_streams: ClassVar = True

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    """The texts without their last token, and the next tokens as labels."""
    del vocab_size, bits
    # At least one column, if only of padding.
    most = max(batch.tokens.shape[1] - 1, 1)
    tokens, lengths = batch.tokens[:, :most], jnp.maximum(batch.lengths - 1, 0)
    labels = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))[:, :most]
    is_read = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    return Targets(tokens, lengths, labels, is_read * batch.weights[:, None])

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    del num_labels
    if self.tied:
      return VocabularyHead(parent=None)
    return TokenHead(vocab_size, parent=None)

  def mean_metrics(self, loss, accuracy) -> dict:
    """With the perplexity, exp(loss), of at most exp(88).

    Above that it is not finite in float32, which would end the run.
    """
    at_most_88 = loss - (loss > 88) * (loss - 88)
    perplexity = math.e**at_most_88
    return super().mean_metrics(loss, accuracy) | {'perplexity': perplexity}
