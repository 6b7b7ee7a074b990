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
  over all devices. A third text is a hard negative. What equals the right text,
  another right one or the first text itself is no negative. An example whose
  first or second text is empty is left out.

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
  undefined: ClassVar = dict.fromkeys(
    ('mrr', 'recall_1', 'recall_10'), 'no two texts belong together'
  ) | {'spearman': scores_lib.CONSTANT}
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

    That of a text without tokens is 0. Weights are 1 where a text has to find
    the other one of its example.
    """
    del vocab_size, bits
    count = len(batch.weights)
    # As random bits of evaluation, they depend on the text alone.
    of_texts = Bits.of_texts(
      jax.random.key(0), batch.tokens, padding_mask(batch)
    )
    prints = jnp.maximum(of_texts.bits((len(batch.tokens), 1))[:, 0], 1)
    prints = jnp.where(batch.lengths > 0, prints, 0).reshape(count, -1)
    # Without a label, which is NaN, texts belong together.
    belongs = (prints[:, :2] > 0).all(axis=1) & ~(batch.labels < self.positive)
    finds = jnp.arange(prints.shape[1]) < 1 + self.symmetric
    weights = (batch.weights * belongs)[:, None] * finds[None]
    return Targets(batch.tokens, batch.lengths, prints, weights)

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
    vectors = _scaled(logits, self.similarity).reshape(count, num_texts, -1)
    prints, belongs = jnp.asarray(targets.labels), targets.weights[:, 0] > 0
    everything, first = (vectors, prints, belongs), jnp.int32(0)
    if self.axis:
      everything = jax.lax.all_gather(everything, self.axis, tiled=True)
      first = jax.lax.axis_index(self.axis) * count
    right = first + jnp.arange(count)
    all_vectors, all_prints, all_belong = everything

    def found(asks: int, among: slice):
      # (texts, examples of all devices), so that the right one is first.
      others = jnp.moveaxis(all_vectors[:, among], 0, 1)
      others = others.reshape(-1, others.shape[-1])
      of_others = all_prints[:, among].T.ravel()[None]
      scores = vectors[:, asks] @ others.T / self.temperature
      is_right = jnp.arange(len(others))[None] == right[:, None]
      # Second texts of the same first one, or the other way round.
      is_same = all_prints[None, :, asks] == prints[:, asks, None]
      is_right_too = is_same & all_belong[None]
      is_left_out = (
        (of_others == 0)
        | (of_others == prints[:, asks, None])
        | (of_others == prints[:, among.start, None])
        | jnp.pad(is_right_too, ((0, 0), (0, len(others) - len(all_prints))))
      )
      scores = jnp.where(is_left_out & ~is_right, -jnp.inf, scores)
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
    """(vectors (examples, texts times P), fingerprints, whether to find)."""
    vectors = logits.astype(jnp.float32).reshape(len(targets.labels), -1)
    prints, weights = map(jnp.asarray, (targets.labels, targets.weights))
    return vectors, prints, weights[:, 0]

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    vectors, fingerprints, belongs = outputs
    count, num_texts = fingerprints.shape
    vectors = vectors.reshape(count * num_texts, -1)
    if self.similarity == 'cosine':
      norms = np.linalg.norm(vectors, axis=1, keepdims=True)
      vectors = vectors / np.maximum(norms, _LEAST_NORM)
    vectors = vectors.reshape(count, num_texts, -1)
    scores = retrieval.scores(vectors, fingerprints, belongs > 0, (1, 10))
    alike = (vectors[:, 0] * vectors[:, 1]).sum(axis=1)
    return scores | {'spearman': scores_lib.spearman(alike, labels)}


def _scaled(vectors, similarity: str) -> jax.Array:
  """Vectors whose dot products are their similarities, float32."""
  vectors = vectors.astype(jnp.float32)
  if similarity == 'dot':
    return vectors
  squares = jnp.square(vectors).sum(axis=-1, keepdims=True)
  # A vector of 0 has no direction, and no gradient.
  is_zero = squares < _LEAST_NORM**2
  return vectors * jnp.where(
    is_zero, 0, jax.lax.rsqrt(jnp.where(is_zero, 1, squares))
  )
