"""What a model is trained to do: one class, and a line in task_table, per task.

A task defines the inputs and the labels of a model (`targets`), its `head`, the
`losses`, and how it is evaluated (`outputs` of each example on the devices,
`scores` of a split on the host). The default is the cross entropy of a label
for each token; text_tasks has those of a text. Fields with a default are
options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts, Labels
from selfattn.dropout import Bits

Array = jax.Array | np.ndarray


class Targets(NamedTuple):
  """Inputs and labels of a batch.

  Attributes:
    tokens: int32 (batch, length), at most V; V is [MASK], if the task has it.
    lengths: int32 (batch,), tokens of each row without padding.
    labels: int32 (batch,), or (batch, predictions) for a head on tokens.
    weights: float32, of the shape of the labels; 0 where nothing is predicted.
    label_index: int32 (batch, predictions), the indices in their rows of the
      tokens that are predicted; None: all of them.
  """

  tokens: Array
  lengths: Array
  labels: Array
  weights: Array
  label_index: Array | None = None


def padding_mask(batch: Batch | Targets) -> jax.Array:
  """Boolean (batch, length), False at padding."""
  return jnp.arange(batch.tokens.shape[1])[None] < batch.lengths[:, None]


def is_correct(logits, labels) -> jax.Array:
  """Whether all other logits are smaller than that of the label."""
  # Not argmax: of a vocabulary, on a CPU, it takes as long as all else here.
  labels = labels[..., None]
  of_label = jnp.take_along_axis(logits, labels, axis=-1)[..., 0]
  last = logits.ndim - 1
  is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, last) == labels
  return of_label > jnp.where(is_label, -jnp.inf, logits).max(axis=-1)


def cross_entropy(logits, labels, smoothing=0.0) -> jax.Array:
  """Loss of each label, float32, of the shape of the labels.

  Labels are smoothed towards uniform (Szegedy et al. 2016, section 7).
  """
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  picked = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
  return -(1 - smoothing) * picked - smoothing * log_probs.mean(axis=-1)


@dataclasses.dataclass(frozen=True)
class Task:
  """A label for each token; a subclass defines `targets` and `head`.

  Attributes:
    metrics: names that `scores` returns, with `max` or `min` as the best value;
      the first one selects the best checkpoint unless the config names one.
      `all_metrics` has those that depend on an option, too.
    undefined: why a metric is None, by the name of one that may be.
    training_option: an option of training alone: without it, the scores are of
      the same thing, and a trained run is read. Empty: there is none.
    labels: how the labels of the texts are read; None: `targets` reads none.
    compares_texts: whether the loss of an example depends on the others of its
      batch, which is then computed as one and not in microbatches; its texts
      are those that config.data.text.join = 'apart' makes.
    has_mask_token: whether inputs have [MASK], of id V where the vocabulary has
      no such token.
    is_causal: whether the encoder must be causal.
    reads_streams: whether its texts may be windows of a stream, which have a
      token more than config.data.max_length.
    tied: whether the head uses the embedding table.
    facts: of the labels of the data; no option.
    label_ids: for each name of the labels, the id of the token that it is, or
      None; no option.
    vocabulary: of the data, or None; no option.
    axis: of the mesh, over which the examples of a batch of training are
      spread; None: one device has all; no option.
  """

  metrics: ClassVar[Mapping[str, Callable]] = {'accuracy': max, 'loss': min}
  undefined: ClassVar[Mapping[str, str]] = {}
  training_option: ClassVar[str] = ''
  labels: ClassVar[Labels | None] = None
  compares_texts: ClassVar[bool] = False
  has_mask_token: ClassVar[bool] = False
  is_causal: ClassVar[bool] = False
  reads_streams: ClassVar[bool] = False
  # Of some tasks an option, which no ClassVar may be.
  tied = False
  facts: LabelFacts = dataclasses.field(
    default=LabelFacts(), repr=False, kw_only=True
  )
  # Of no type that a config reads, so that it is no option.
  label_ids: Any = dataclasses.field(default=(), repr=False, kw_only=True)
  vocabulary: Any = dataclasses.field(default=None, repr=False, kw_only=True)
  axis: Any = dataclasses.field(default=None, repr=False, kw_only=True)

  @property
  def needs_mask_token(self) -> bool:
    """Whether the model has an embedding of [MASK] beside the vocabulary."""
    return self.has_mask_token and self.mask_id is None

  @property
  def mask_id(self) -> int | None:
    """The id of [MASK] in the vocabulary; None: it has none."""
    return None if self.vocabulary is None else self.vocabulary.mask

  def check(self) -> None:
    """ValueError `OPTION = VALUE must be ...` for one that is out of range."""

  def all_metrics(self) -> dict[str, Callable]:
    """All names that `scores` returns, with `max` or `min`."""
    return dict(self.metrics)

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    """Inputs and labels of a batch; a pure function, traced by jax.

    Args:
      batch: any number of rows of any length, some with weight 0; its labels
        are None for a task that reads none.
      vocab_size: V.
      bits: `bits.at(site).bits((rows, length))` are random bits: of seed, step
        and row in training, of the text alone in evaluation.
    """
    raise NotImplementedError

  def head(self, vocab_size: int, num_labels: int) -> nn.Module | None:
    """A module from (x_BLD, table) to logits, see TextClassifier.token_head.

    Or one of selfattn.heads that takes the place of config.model.head; None:
    that one.

    Args:
      vocab_size: V.
      num_labels: number of outputs that the labels of the data have.
    """
    raise NotImplementedError

  def further(self) -> nn.Module | None:
    """What makes the vectors that the head reads: TextClassifier.further."""
    return None

  def losses(self, logits, targets: Targets, smoothing: Any = 0.0):
    """(loss, whether the prediction is correct) of each label, of its shape.

    Args:
      logits: a row of classes or tokens per label, on the last axis.
      smoothing: label smoothing, in training.
    """
    losses = cross_entropy(logits, targets.labels, smoothing)
    return losses, is_correct(logits, targets.labels)

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """What `scores` needs of each example: sums of loss, correct and weight.

    Each array has a row per example. `losses` says what `logits` are.
    """
    losses, correct = self.losses(logits, targets)
    ones = jnp.ones_like(targets.weights)
    return tuple(
      (values * targets.weights).sum(axis=1)
      for values in (losses, correct, ones)
    )

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    """The metrics of a split, from its outputs and the labels of its texts."""
    del labels
    losses, correct, counts = (
      values.sum(dtype=np.float64) for values in outputs
    )
    return self.mean_metrics(losses / max(counts, 1), correct / max(counts, 1))

  def reasons(self, scores: Mapping[str, float | None]) -> list[str]:
    """A line for each score that is undefined, and why it is."""
    names = [name for name, value in scores.items() if value is None]
    why = {name: f': {text}' for name, text in self.undefined.items()}
    return [f'{name} is undefined{why.get(name, "")}' for name in names]

  def mean_metrics(self, loss, accuracy) -> dict:
    """Metrics that are functions of the mean loss and the accuracy."""
    return {'loss': loss, 'accuracy': accuracy}


def targets_of(
  task: Task, batch: Batch, vocab_size: int, bits: Bits
) -> Targets:
  """`task.targets`, without the labels that the task does not declare."""
  read = batch if task.labels else batch._replace(labels=None)
  return task.targets(read, vocab_size, bits)
