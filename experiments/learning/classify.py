"""The class of a text."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.batches import Batch
from experiments.data.labels import Classes, Labels
from experiments.learning import reports
from experiments.learning import scores as scores_lib
from experiments.learning.tasks import Targets, cross_entropy, is_correct
from experiments.learning.text_tasks import TextTask
from selfattn.dropout import Bits


@dataclasses.dataclass(frozen=True)
class Classify(TextTask):
  """One class for each text.

  Attributes:
    class_weights: factors of the losses of classes in training: 'none',
      'balanced', which makes all classes count the same, or by name, as
      'spam=2,ham=0.5', and 1 for the others. A batch has their weighted mean.
    focal: gamma of the focal loss, -(1 - p)^gamma log p (Lin et al. 2017,
      equation 4); 0: the cross entropy.
    temperature: by which the logits of one run are divided; no option.
  """

  metrics: ClassVar = {
    'accuracy': max, 'macro_f1': max, 'balanced_accuracy': max, 'mcc': max,
    'auroc': max, 'loss': min,
  }  # fmt: skip
  undefined: ClassVar = {'auroc': 'all texts are of one class'}
  labels: ClassVar[Labels | None] = Classes()
  class_weights: str = 'none'
  focal: float = 0.0
  # Of no type that a config reads, so that it is no option.
  temperature: Any = dataclasses.field(
    default=1.0, repr=False, kw_only=True, compare=False
  )

  def check(self) -> None:
    self.label_weights('class_weights')
    if not 0 <= self.focal < float('inf'):
      raise ValueError(f'focal = {self.focal} must be at least 0 and finite')

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    targets = super().targets(batch, vocab_size, bits)
    weights = self.label_weights('class_weights')
    if weights is None:
      return targets
    of_labels = jnp.asarray(weights)[targets.labels]
    return targets._replace(weights=targets.weights * of_labels)

  def balanced(self, counts):
    return self.facts.rows / (max(len(counts), 1) * np.maximum(counts, 1))

  def losses(self, logits, targets: Targets, smoothing: Any = 0.0):
    losses = cross_entropy(logits, targets.labels, smoothing)
    if self.focal:
      log_p = -cross_entropy(logits, targets.labels)
      # 1 - p without its rounding near p = 1, where the power has no slope.
      wrong = jnp.maximum(-jnp.expm1(log_p), jnp.finfo(jnp.float32).tiny)
      losses *= wrong**self.focal
    return losses, is_correct(logits, targets.labels)

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    return cross_entropy(logits, targets.labels), logits

  def scores(self, outputs, labels: np.ndarray) -> dict[str, float | None]:
    losses, logits = outputs
    count = logits.shape[-1]
    predictions = logits.argmax(axis=-1)
    confusion = scores_lib.confusion_matrix(labels, predictions, count)
    truth = labels[:, None] == np.arange(count)
    # Of more than two classes it depends on the temperature, which scores of
    # training do not have.
    likely = logits.astype(np.float64) * self.temperature
    # In float32, all texts that are almost sure would be equal.
    likely = _log_softmax(likely)
    return scores_lib.scores(losses, confusion) | {
      'auroc': scores_lib.auroc(likely, truth)
    }

  def fitted(self, fits):
    """An ensemble has no one temperature: its AUROC is of what is averaged."""
    known = [fit.get('temperature', 1.0) for fit in fits]
    one = known[0] if len(known) == 1 else 1.0
    return dataclasses.replace(self, temperature=one)

  def host_losses(self, logits, labels, smoothing=0.0):
    log_probs = _log_softmax(logits)
    picked = np.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]
    return -(1 - smoothing) * picked - smoothing * log_probs.mean(axis=-1)

  def answers(self, logits):
    return jax.nn.softmax(logits)

  def mean(self, logits):
    """Logs of the mean of softmaxes (Lakshminarayanan et al. 2017, 2.4)."""
    log_probs = np.stack([_log_softmax(of_run) for of_run in logits])
    return np.logaddexp.reduce(log_probs, axis=0) - np.log(len(logits))

  def answer(self, logits):
    probabilities = np.exp(_log_softmax(logits))
    best = int(probabilities.argmax())
    names = self.facts.names
    return names[best], dict(zip(names, probabilities.tolist(), strict=True))

  def truth(self, label):
    return self.facts.names[label]

  def details(self, outputs, examples):
    names, (_, logits) = self.facts.names, outputs
    return reports.of_classes(names, examples.labels, logits, examples.lengths)

  def baseline(self, labels):
    if not self.facts.counts:
      return {}
    most = int(np.argmax(self.facts.counts))
    accuracy = float((labels == most).mean())
    return {'prediction': self.facts.names[most], 'accuracy': accuracy}

  def honesty(self, logits, labels):
    probabilities = np.exp(_log_softmax(logits))
    truth = labels[:, None] == np.arange(logits.shape[-1])
    hits = probabilities.argmax(axis=-1) == labels
    brier = ((probabilities - truth) ** 2).sum(axis=-1).mean()
    return brier, probabilities.max(axis=-1), hits


CLASSIFY = Classify()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
  # A run that diverged has logits that are not finite.
  with np.errstate(invalid='ignore'):
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
