"""What a model is trained to do: one class and one line of TASKS a task.

A task says what a model reads and what it should say (`targets`), by which
`head`, what that costs (`losses`), and what is told of it (`answers` of each
example on the devices, `scores` of a split on the host). By default that is the
cross entropy of labels of tokens. Its fields that have a default are options,
config.task.NAME.OPTION.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.values import Choice
from experiments.data.batches import Batch
from experiments.data.vocabularies import SPECIAL_TOKENS
from experiments.learning.scores import confusion_matrix, scores
from selfattn.dropout import Dropout
from selfattn.heads import TiedHead


class Targets(NamedTuple):
  """A batch as a model reads it, and what it should say.

  Attributes:
    tokens: int32 (batch, length), at most V: V is the mask, of a task with one.
    lengths: int32 (batch,), tokens of each row that are real.
    labels: int32 (batch,), or (batch, answers) of a head of tokens.
    weights: float32, of the shape of the labels; 0 where nothing is asked.
    label_index: int32 (batch, labels), index in its row of each token that has
      a label; None: every token has one.
  """

  tokens: jax.Array
  lengths: jax.Array
  labels: jax.Array
  weights: jax.Array
  label_index: jax.Array | None = None


def padding_mask(batch: Batch | Targets) -> jax.Array:
  """Boolean (batch, length), False at padding."""
  return jnp.arange(batch.tokens.shape[1])[None] < batch.lengths[:, None]


def cross_entropy(logits, labels, smoothing=0.0) -> jax.Array:
  """Loss of each label, float32, of the shape of the labels.

  Labels are smoothed towards uniform (Szegedy et al. 2016, section 7).
  """
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  picked = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
  return -(1 - smoothing) * picked - smoothing * log_probs.mean(axis=-1)


@dataclasses.dataclass(frozen=True)
class Task:
  """A label for each token; a subclass writes `targets` and `head`.

  Attributes:
    metrics: what `scores` tells, and whether `max` or `min` is the best.
    has_labels: whether the answers are one of the data's labels a text.
    has_mask_token: whether the model needs a token [MASK].
    is_tied: whether the head reads the embedding table.
    is_causal: whether no token may see the ones after it.
  """

  metrics: ClassVar[Mapping[str, Callable]] = {'accuracy': max, 'loss': min}
  has_labels: ClassVar[bool] = False
  has_mask_token: ClassVar[bool] = False
  is_tied: ClassVar[bool] = False
  is_causal: ClassVar[bool] = False

  def check(self) -> None:
    """ValueError, with its name first, for an option that is out of range."""

  def targets(self, batch: Batch, vocab_size: int, bits: Dropout) -> Targets:
    """What is read and asked; a pure function, traced by jax.

    Args:
      batch: rows of any number and length, some of weight 0.
      vocab_size: V.
      bits: `bits.at(site).bits((rows, length))` are random bits, which follow
        seed, step and row in training, and in evaluation the text alone.
    """
    raise NotImplementedError

  def head(self, vocab_size: int, num_labels: int) -> nn.Module | None:
    """A module from (x_BLD, table) to logits, see TextClassifier.token_head.

    Args:
      vocab_size: V.
      num_labels: of the data.
    """
    raise NotImplementedError

  def losses(self, logits, targets: Targets, smoothing=0.0):
    """(loss, whether it is right) of each label, float32 of their shape."""
    hits = logits.argmax(axis=-1) == targets.labels
    return cross_entropy(logits, targets.labels, smoothing), hits

  def answers(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """Arrays with a row an example: sums of losses, of hits, of weights."""
    found = (*self.losses(logits, targets), jnp.ones_like(targets.weights))
    return tuple((each * targets.weights).sum(axis=1) for each in found)

  def scores(self, answers, labels: np.ndarray) -> dict[str, float]:
    """The metrics of a split, from its answers and the labels of its texts."""
    del labels
    losses, hits, counts = (each.sum() for each in answers)
    return self.told(losses / max(counts, 1), hits / max(counts, 1))

  def told(self, loss, accuracy) -> dict:
    """What follows from two means; of the log in training, and of `scores`."""
    return {'loss': loss, 'accuracy': accuracy}


@dataclasses.dataclass(frozen=True)
class Classify(Task):
  """The label of a text, from its pooled vectors."""

  metrics: ClassVar = {'accuracy': max, 'macro_f1': max, 'loss': min}
  has_labels: ClassVar = True

  def targets(self, batch: Batch, vocab_size: int, bits: Dropout) -> Targets:
    """The texts as they are, and their labels."""
    del vocab_size, bits
    return Targets(*batch)

  def head(self, vocab_size: int, num_labels: int) -> None:
    """None: the classifier's own."""
    del vocab_size, num_labels

  def answers(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """Loss and logits of each text."""
    return cross_entropy(logits, targets.labels), logits

  def scores(self, answers, labels: np.ndarray) -> dict[str, float]:
    """Mean loss, accuracy, and F1 averaged over the classes that occur."""
    losses, logits = answers
    predictions = logits.argmax(axis=-1)
    return scores(
      losses, confusion_matrix(labels, predictions, logits.shape[-1])
    )


@dataclasses.dataclass(frozen=True)
class MaskedTokens(Task):
  """The tokens that are hidden in a text (Devlin et al. 2019, 3.1).

  A share of the tokens of each text is chosen, each with that probability, and
  of them some are masked, some become random ones and some stay. A text of n
  tokens has share * n of them, rounded to either side at random.

  Attributes:
    share: of tokens that are chosen.
    mask: of the chosen ones, those that become the mask.
    random: those that become a token of the vocabulary, all alike likely.
    keep: those that stay what they are.
  """

  share: float = 0.15
  mask: float = 0.8
  random: float = 0.1
  keep: float = 0.1
  has_mask_token: ClassVar = True
  is_tied: ClassVar = True

  def check(self) -> None:
    """ValueError for shares that are none."""
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

  def targets(self, batch: Batch, vocab_size: int, bits: Dropout) -> Targets:
    """The chosen tokens replaced, and where they are."""
    shape = batch.tokens.shape
    order = bits.at(0).bits(shape) >> 1
    order = jnp.where(padding_mask(batch), order, jnp.uint32(2**32 - 1))
    most = min(int(self.share * shape[1]) + 1, shape[1])
    places = jnp.argsort(order, axis=1)[:, :most]
    rounding = _uniform(bits.at(1).bits((shape[0], 1)))
    count = jnp.floor(self.share * batch.lengths[:, None] + rounding)
    count = jnp.minimum(count, batch.lengths[:, None])
    is_chosen = jnp.arange(most)[None] < count
    labels = jnp.take_along_axis(batch.tokens, places, axis=1)

    def of_places(site):
      return jnp.take_along_axis(bits.at(site).bits(shape), places, axis=1)

    # Those that stand for nothing are not drawn.
    first = min(len(SPECIAL_TOKENS), vocab_size - 1)
    drawn = first + of_places(2) % jnp.uint32(vocab_size - first)
    kind = _uniform(of_places(3))
    new = jnp.where(kind < self.mask + self.random, drawn, labels)
    new = jnp.where(kind < self.mask, vocab_size, new).astype(jnp.int32)
    new = jnp.where(is_chosen, new, labels)
    tokens = jnp.put_along_axis(
      batch.tokens, places, new, axis=1, inplace=False
    )
    weights = is_chosen * batch.weights[:, None]
    return Targets(tokens, batch.lengths, labels, weights, places)

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    """Logits of the vocabulary."""
    del vocab_size, num_labels
    return TiedHead(parent=None)


@dataclasses.dataclass(frozen=True)
class NextToken(Task):
  """The token after each one, for encoders that do not see it."""

  metrics: ClassVar = {'accuracy': max, 'loss': min, 'perplexity': min}
  is_tied: ClassVar = True
  is_causal: ClassVar = True

  def targets(self, batch: Batch, vocab_size: int, bits: Dropout) -> Targets:
    """All tokens but the last are asked for their next one."""
    del vocab_size, bits
    labels = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))
    place = jnp.arange(batch.tokens.shape[1])[None]
    has_next = place + 1 < batch.lengths[:, None]
    weights = has_next * batch.weights[:, None]
    return Targets(batch.tokens, batch.lengths, labels, weights)

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    """Logits of the vocabulary."""
    del vocab_size, num_labels
    return TiedHead(parent=None)

  def told(self, loss, accuracy) -> dict:
    """With the perplexity, exp(loss); as of a loss of 88 beyond it.

    Float32 ends there, and what is not finite would end the run.
    """
    loss_or_88 = loss - (loss > 88) * (loss - 88)
    return super().told(loss, accuracy) | {'perplexity': math.e**loss_or_88}


def _uniform(bits: jax.Array) -> jax.Array:
  """Float32 from 0 to below 1; 24 bits are what it has room for."""
  return (bits >> 8).astype(jnp.float32) * 2.0**-24


TASKS: dict[str, type[Task]] = {
  'classify': Classify,
  'masked_tokens': MaskedTokens,
  'next_token': NextToken,
}


def make(choice: Choice) -> Task:
  """The task of a config's choice."""
  return TASKS[choice.name](**choice.options)
