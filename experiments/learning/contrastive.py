"""Vectors of texts, in which texts that belong together are near each other.

The texts of an example are encoded apart, by one model.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.batches import Batch
from experiments.data.labels import Labels, Similarities
from experiments.learning import retrieval
from experiments.learning import scores as scores_lib
from experiments.learning.tasks import (
  Targets,
  Task,
  is_correct,
  padding_mask,
)
from selfattn.dropout import Bits
from selfattn.heads import Identity

# A norm below it is that of a text without tokens.
_LEAST_NORM = 1e-12


@dataclasses.dataclass(frozen=True)
class Contrastive(Task):
  """Two texts that belong together, against all others of the batch.

  InfoNCE with negatives from the batch (van den Oord et al. 2018, equation 4;
  Henderson et al. 2017, section 4.4): for the first text of an example, the
  cross entropy of its second one among all second and third texts of the batch,
  over all devices. A third text is a hard negative. A text that equals the
  right one is no negative, and neither is an empty one.

  Attributes:
    similarity: of two vectors, which are those of config.model.pool.
    temperature: divides similarities.
    symmetric: whether also the first text is chosen among all first ones, for
      each second one; the loss is the mean of both.
    positive: least label of an example whose texts belong together, where
      labels are numbers; others only give negatives.
  """

  metrics: ClassVar = {
    'mrr': max, 'recall_1': max, 'recall_10': max, 'spearman': max,
  }  # fmt: skip
  labels: ClassVar[Labels | None] = Similarities()
  compares_texts: ClassVar = True
  similarity: Literal['cosine', 'dot'] = 'cosine'
  temperature: float = 0.05
  symmetric: bool = True
  positive: float = 0.5

  def check(self) -> None:
    if not 0 < self.temperature < float('inf'):
      raise ValueError(
        f'temperature = {self.temperature} must be greater than 0 and finite'
      )

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    """Labels are fingerprints (examples, texts), equal for equal texts.

    Weights are 1 where a text has to find the other one of its example.
    """
    del vocab_size, bits
    count = len(batch.weights)
    # As random bits of evaluation, they depend on the text alone.
    of_texts = Bits.of_texts(
      jax.random.key(0), batch.tokens, padding_mask(batch)
    )
    fingerprints = of_texts.bits((len(batch.tokens), 1)).reshape(count, -1)
    finds = jnp.arange(fingerprints.shape[1]) < 1 + self.symmetric
    # Without a label, which is NaN, texts belong together.
    is_pair = batch.weights * ~(batch.labels < self.positive)
    return Targets(
      batch.tokens, batch.lengths, fingerprints, is_pair[:, None] * finds[None]
    )

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    """The pooled vector is that of the text."""
    del vocab_size, num_labels
    return Identity(parent=None)

  def losses(self, logits, targets: Targets, smoothing: Any = 0.0):
    """(loss, whether the right text is nearest), (examples, texts).

    Args:
      logits: vectors of the texts, (examples times texts, P).
    """
    del smoothing
    count, num_texts = targets.labels.shape
    lengths = targets.lengths.reshape(count, num_texts)
    vectors = _scaled(logits, self.similarity).reshape(count, num_texts, -1)
    own = (vectors, targets.labels, lengths)
    everything, first = own, jnp.int32(0)
    if self.axis:
      everything = jax.lax.all_gather(own, self.axis, tiled=True)
      first = jax.lax.axis_index(self.axis) * count
    right = first + jnp.arange(count)

    def found(asks: int, among: slice):
      # (texts, examples of all devices, ...), so that the right one is first.
      others, prints, sizes = (
        jnp.moveaxis(x[:, among], 0, 1).reshape(-1, *x.shape[2:])
        for x in everything
      )
      scores = vectors[:, asks] @ others.T / self.temperature
      is_right = jnp.arange(len(others))[None] == right[:, None]
      is_same = prints[None] == targets.labels[:, among.start, None]
      is_left_out = (is_same | (sizes == 0)[None]) & ~is_right
      scores = jnp.where(is_left_out, -jnp.inf, scores)
      of_right = jnp.take_along_axis(scores, right[:, None], axis=1)[:, 0]
      losses = jax.nn.logsumexp(scores, axis=1) - of_right
      return losses, is_correct(scores, right)

    directions = [(0, slice(1, None))] + [(1, slice(0, 1))] * self.symmetric
    losses, correct = zip(*(found(*d) for d in directions), strict=True)
    unused = ((0, 0), (0, num_texts - len(directions)))
    return (
      jnp.pad(jnp.stack(losses, axis=1), unused),
      jnp.pad(jnp.stack(correct, axis=1), unused),
    )

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """(vectors of all texts (examples, texts times P), fingerprints)."""
    vectors = logits.astype(jnp.float32).reshape(len(targets.labels), -1)
    return vectors, jnp.asarray(targets.labels)

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    vectors, fingerprints = outputs
    count, num_texts = fingerprints.shape
    vectors = vectors.reshape(count * num_texts, -1)
    if self.similarity == 'cosine':
      norms = np.linalg.norm(vectors, axis=1, keepdims=True)
      vectors = vectors / np.maximum(norms, _LEAST_NORM)
    vectors = vectors.reshape(count, num_texts, -1)
    is_pair = ~(labels < self.positive)
    scores = retrieval.scores(vectors, fingerprints, is_pair, (1, 10))
    alike = (vectors[:, 0] * vectors[:, 1]).sum(axis=1)
    return scores | {'spearman': scores_lib.spearman(alike, labels)}


def _scaled(vectors, similarity: str) -> jax.Array:
  """Vectors whose dot products are their similarities, float32."""
  vectors = vectors.astype(jnp.float32)
  if similarity == 'dot':
    return vectors
  squares = jnp.square(vectors).sum(axis=-1, keepdims=True)
  return vectors * jax.lax.rsqrt(jnp.maximum(squares, _LEAST_NORM**2))
