"""A number for a text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data.labels import Labels, Numbers
from experiments.learning import scores as scores_lib
from experiments.learning.reports import Report
from experiments.learning.tasks import Targets
from experiments.learning.text_tasks import TextTask

_EPSILON = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Regression(TextTask):
  """A number for each text.

  The model learns numbers of mean 0 and standard deviation 1, as train has
  them: so are labels, logits and the loss. All that is said is in the units of
  the data.

  Attributes:
    loss: 'mse', the squared error, or 'huber', half of it below 1 and linear
      above (Huber 1964), for numbers with outliers.
  """

  metrics: ClassVar = {
    'rmse': min, 'mae': min, 'pearson': max, 'spearman': max, 'loss': min,
  }  # fmt: skip
  undefined: ClassVar = dict.fromkeys(
    ('pearson', 'spearman'), scores_lib.CONSTANT
  )
  labels: ClassVar[Labels | None] = Numbers()
  has_probabilities: ClassVar = False
  loss: Literal['mse', 'huber'] = 'mse'

  def losses(self, logits, targets: Targets, smoothing: Any = 0.0):
    """(loss, squared error in the units of the data) of each text."""
    del smoothing
    predicted = logits[..., 0].astype(jnp.float32)
    errors = jnp.square(predicted - targets.labels)
    losses = errors
    if self.loss == 'huber':
      losses = optax.huber_loss(predicted, targets.labels)
    return losses, errors * self.facts.std**2

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """(losses, logits, (texts, 1))."""
    losses, _ = self.losses(logits, targets)
    return losses, logits.astype(jnp.float32)

  def answers(self, logits):
    """In the units of the data; where they are large, `answer` rounds less."""
    return logits.astype(jnp.float32) * self.facts.std + self.facts.mean

  def mean_metrics(self, loss, accuracy) -> dict:
    return {'loss': loss, 'rmse': accuracy**0.5}

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    losses, logits = outputs
    predicted, truth = (
      logits[:, 0].astype(np.float64),
      labels.astype(np.float64),
    )
    errors = (predicted - truth) * self.facts.std
    return {
      'loss': float(losses.mean(dtype=np.float64)),
      'rmse': float(np.sqrt((errors**2).mean())),
      'mae': float(abs(errors).mean()),
      'pearson': scores_lib.pearson(predicted, truth),
      'spearman': scores_lib.spearman(predicted, truth),
    }

  def host_losses(self, logits, labels, smoothing=0.0):
    del smoothing
    errors = abs(logits[:, 0] - labels)
    if self.loss == 'mse':
      return errors**2
    return np.where(errors <= 1, errors**2 / 2, errors - 0.5)

  def converted(self, logits, task):
    """From standard deviations of its numbers to those of ours."""
    here, there = self.facts, task.facts
    if here == there:
      return logits
    return (logits * there.std + there.mean - here.mean) / here.std

  def mean(self, logits):
    return np.mean(logits, axis=0)

  def answer(self, logits):
    return self._in_units(logits[0]), None

  def truth(self, label):
    return self._in_units(label)

  def _in_units(self, number) -> float:
    """In the units of the data, to the decimals that float32 leaves."""
    unit = self.facts.std * max(abs(float(number)), 1) * _EPSILON
    exact = float(number) * self.facts.std + self.facts.mean
    if not math.isfinite(exact):
      return exact
    return round(exact, math.floor(-math.log10(unit)))

  def details(self, outputs, examples):
    del outputs, examples
    return Report({}, [])

  def baseline(self, labels):
    errors = labels.astype(np.float64) * self.facts.std
    rmse, mae = np.sqrt((errors**2).mean()), abs(errors).mean()
    prediction = self.facts.mean
    return {'prediction': prediction, 'rmse': float(rmse), 'mae': float(mae)}
