"""The labels of a text, any number of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.labels import Labels, Sets
from experiments.learning import calibration, reports
from experiments.learning import scores as scores_lib
from experiments.learning.tasks import Targets
from experiments.learning.text_tasks import TextTask


@dataclasses.dataclass(frozen=True)
class Multilabel(TextTask):
  """Any number of labels for each text: a sigmoid for each of them.

  A label is predicted where its probability is above its threshold: 0.5 in
  training, and then what has the greatest F1 on validation.

  Attributes:
    pos_weight: factors of the losses of labels that a text has, in training:
      'none', 'balanced', the number of texts without a label by that of those
      with it, or by name, as 'joy=2,fear=10', and 1 for the others.
    thresholds: of the labels; no option.
  """

  metrics: ClassVar = {
    'micro_f1': max, 'macro_f1': max, 'subset_accuracy': max, 'loss': min,
  }  # fmt: skip
  labels: ClassVar[Labels | None] = Sets()
  pos_weight: str = 'none'
  thresholds: np.ndarray | None = dataclasses.field(
    default=None, repr=False, kw_only=True, compare=False
  )

  def check(self) -> None:
    self.label_weights('pos_weight')

  def balanced(self, counts):
    return (self.facts.rows - counts) / np.maximum(counts, 1)

  def losses(self, logits, targets: Targets, smoothing: Any = 0.0):
    """(mean loss over labels, whether all of them are right) of each text."""
    truth = targets.labels
    correct = ((logits > 0) == (truth > 0.5)).all(axis=-1)
    weights = self.label_weights('pos_weight')
    return _binary_losses(logits, truth, smoothing, weights), correct

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    return _binary_losses(logits, targets.labels), logits

  def mean_metrics(self, loss, accuracy) -> dict:
    return {'loss': loss, 'subset_accuracy': accuracy}

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    losses, logits = outputs
    predicted = self._predicted(_sigmoid(logits))
    of_sets = scores_lib.of_sets(predicted, labels > 0.5)
    return {'loss': float(losses.mean(dtype=np.float64)), **of_sets}

  def _predicted(self, probabilities: np.ndarray) -> np.ndarray:
    limits = 0.5 if self.thresholds is None else self.thresholds
    return probabilities > limits

  def host_losses(self, logits, labels, smoothing=0.0):
    truth = labels * (1 - smoothing) + smoothing / 2
    losses = np.logaddexp(0, logits) - truth * logits
    return losses.mean(axis=-1)

  def answers(self, logits):
    return jax.nn.sigmoid(logits)

  def mean(self, logits):
    mean = np.mean([_sigmoid(of_run) for of_run in logits], axis=0)
    # A probability that rounds to 0 or 1 has a finite logit all the same.
    mean = np.clip(mean, 1e-15, 1 - 1e-15)
    return np.log(mean) - np.log1p(-mean)

  def fit(self, outputs, labels):
    """The temperature, and the thresholds of its probabilities."""
    fit, (_, logits) = super().fit(outputs, labels), outputs
    columns = _sigmoid(logits / fit['temperature']).T, (labels > 0.5).T
    thresholds = map(calibration.threshold, *columns)
    return fit | {'thresholds': list(thresholds)}

  def fitted(self, fits):
    """The thresholds of several runs are averaged."""
    known = [fit['thresholds'] for fit in fits if 'thresholds' in fit]
    thresholds = np.mean(known, axis=0) if known else None
    return dataclasses.replace(self, thresholds=thresholds)

  def answer(self, logits):
    probabilities = _sigmoid(logits)
    predicted = np.flatnonzero(self._predicted(probabilities))
    names = self.facts.names
    return (
      [names[index] for index in predicted],
      dict(zip(names, probabilities.tolist(), strict=True)),
    )

  def truth(self, label):
    return [self.facts.names[index] for index in np.flatnonzero(label > 0.5)]

  def details(self, outputs, examples):
    _, logits = outputs
    predicted = self._predicted(_sigmoid(logits))
    return reports.of_sets(self.facts.names, examples.labels > 0.5, predicted)

  def baseline(self, labels):
    most = int(np.argmax(self.facts.counts))
    predicted = np.zeros(labels.shape, bool)
    predicted[:, most] = True
    prediction = [self.facts.names[most]]
    of_sets = scores_lib.of_sets(predicted, labels > 0.5)
    return {'prediction': prediction, **of_sets}

  def honesty(self, logits, labels):
    """Of all pairs of a text and a label."""
    probabilities = _sigmoid(logits)
    brier = ((probabilities - labels) ** 2).mean()
    return brier, probabilities.ravel(), labels.ravel() > 0.5


def _binary_losses(logits, truth, smoothing: Any = 0.0, weights=None):
  """Mean binary cross entropy over labels, float32, of each text.

  Args:
    truth: 0 or 1 for each label.
    smoothing: of the truth, towards 1/2.
    weights: factors of the losses of labels that a text has; None: 1.
  """
  logits = logits.astype(jnp.float32)
  smooth = truth * (1 - smoothing) + smoothing / 2
  positive = smooth * jax.nn.log_sigmoid(logits)
  negative = (1 - smooth) * jax.nn.log_sigmoid(-logits)
  losses = -(positive + negative)
  if weights is not None:
    losses *= jnp.where(truth > 0, weights[None], 1)
  return losses.mean(axis=-1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
  return np.exp(-np.logaddexp(0, -logits))
