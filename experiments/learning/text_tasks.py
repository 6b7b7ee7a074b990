"""Tasks with one prediction for each text: what they have in common.

Beside what every task defines, they are fitted on validation after training,
average several runs, and say what predict answers and evaluate prints.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import jax
import numpy as np

from experiments.command.values import split, unquoted
from experiments.data.batches import Batch, Examples
from experiments.learning import calibration, reports
from experiments.learning.reports import Report, Table
from experiments.learning.tasks import Targets, Task
from selfattn.dropout import Bits

Outputs = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class TextTask(Task):
  """One prediction for each text, from its pooled vectors.

  `outputs` are (losses, logits): what evaluation calls the loss of each text,
  without weights of the labels, and a row of logits for each, of which a
  subclass may make something else.

  Attributes:
    has_probabilities: whether logits are of probabilities, which a temperature
      may make honest.
  """

  has_probabilities: ClassVar[bool] = True

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    del vocab_size, bits
    return Targets(*batch)

  def head(self, vocab_size: int, num_labels: int) -> None:
    """None: the logits are those of config.model.head."""
    del vocab_size, num_labels

  def host_losses(
    self, logits: np.ndarray, labels: np.ndarray, smoothing: float = 0.0
  ) -> np.ndarray:
    """The loss of each text in float64, on the host, as `outputs` has it.

    Args:
      smoothing: of the labels.
    """
    raise NotImplementedError

  def answers(self, logits: jax.Array) -> jax.Array:
    """Probabilities, or numbers as the data has them, of calibrated logits."""
    raise NotImplementedError

  def converted(self, logits: np.ndarray, task: Self) -> np.ndarray:
    """Logits of a run with another task, as this one would have them."""
    del task
    return logits

  def mean(self, logits: list[np.ndarray]) -> np.ndarray:
    """The logits of an ensemble, from those of its runs."""
    raise NotImplementedError

  def fit(self, outputs: Outputs, labels: np.ndarray) -> dict[str, Any]:
    """What is chosen on validation after training, a JSON object.

    Its `temperature` divides logits. A workdir keeps it.
    """
    if not self.has_probabilities:
      return {}
    _, logits = outputs
    # As Platt (1999) smooths them: a few texts that are all right are no reason
    # to be sure.
    smoothing = 1 / (len(labels) + 2)

    def mean_loss(temperature: float) -> float:
      scaled = logits / temperature
      return float(self.host_losses(scaled, labels, smoothing).mean())

    return {'temperature': calibration.temperature(mean_loss)}

  def fitted(self, fits: list[dict[str, Any]]) -> Self:
    """The task with what is chosen on validation, for one or several runs.

    Args:
      fits: results of `fit`; empty ones of runs that have none.
    """
    del fits
    return self

  def average(
    self,
    of_runs: list[Outputs],
    fits: list[dict[str, Any]],
    labels: np.ndarray,
  ) -> Outputs:
    """The outputs of an ensemble; of one run, its own.

    The losses are those without temperatures, which training has, too.

    Args:
      of_runs: outputs of each run.
      fits: what was fitted for each run; empty: nothing.
      labels: of the texts.
    """
    scaled = [
      logits / fit.get('temperature', 1.0)
      for (_, logits), fit in zip(of_runs, fits, strict=True)
    ]
    if len(of_runs) == 1:
      return of_runs[0][0], scaled[0]
    raw = self.mean([logits for _, logits in of_runs])
    return self.host_losses(raw, labels), self.mean(scaled)

  def answer(self, logits: np.ndarray) -> tuple[Any, dict | None]:
    """(prediction, probabilities by label or None) for one text.

    Args:
      logits: a row of the outputs.
    """
    raise NotImplementedError

  def truth(self, label: np.ndarray) -> Any:
    """A label of Examples, as `answer` has predictions."""
    raise NotImplementedError

  def report(
    self, outputs: Outputs, raw: Outputs, examples: Examples
  ) -> Report:
    """The results on a split.

    Args:
      outputs: as `average` returns them.
      raw: the same without temperatures.
      examples: of the split.
    """
    labels = examples.labels
    measured, baseline = self.scores(outputs, labels), self.baseline(labels)
    report = self.details(outputs, examples)
    names = list(measured)
    rows = [['model', *reports.shown(measured.values())]]
    if baseline:
      known = [baseline.get(name) for name in names]
      rows.append([f'always {text_of(baseline["prediction"])}', *known])
      report.values['baseline'] = baseline
    report.tables.insert(0, Table(['', *names], rows))
    if self.has_probabilities:
      before, after = (self.measured(o[1], labels) for o in (raw, outputs))
      report.values['calibration'] = {'before': before, 'after': after}
      named = [['as trained', before], ['calibrated', after]]
      shown = ['nll', 'brier', 'ece']
      rows = [[name, *(part[k] for k in shown)] for name, part in named]
      report.tables.append(Table(['probabilities', *shown], rows))
    return report

  def details(self, outputs: Outputs, examples: Examples) -> Report:
    """The part of a report that is of this task alone."""
    raise NotImplementedError

  def baseline(self, labels: np.ndarray) -> dict[str, Any]:
    """The metrics of what is right most often in train; empty: unknown."""
    raise NotImplementedError

  def measured(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """How honest the probabilities of these logits are."""
    brier, confidences, hits = self.honesty(logits, labels)
    reliability = calibration.bins(confidences, hits)
    return {
      'nll': float(self.host_losses(logits, labels).mean()),
      'brier': float(brier),
      'ece': calibration.expected_error(reliability),
      'reliability': reliability,
    }

  def honesty(
    self, logits: np.ndarray, labels: np.ndarray
  ) -> tuple[float, np.ndarray, np.ndarray]:
    """(Brier score, confidence of each prediction, whether it was right)."""
    raise NotImplementedError

  def balanced(self, counts: np.ndarray) -> np.ndarray:
    """Weights that make labels with these counts in train count alike."""
    raise NotImplementedError

  def label_weights(self, option: str) -> np.ndarray | None:
    """Float32 weights of the labels, as an option has them; None for 'none'.

    Before names are known, any will do. A ValueError says what is not allowed.
    """
    text, names = getattr(self, option), self.facts.names
    if text == 'none':
      return None
    if text == 'balanced':
      counts = np.array(self.facts.counts)
      return self.balanced(counts).astype(np.float32)
    weights: dict[str, float] = {}
    for part in split(text):
      before, _, number = part.rpartition('=')
      name = unquoted(before.strip())
      try:
        weight = float(number)
      except ValueError:
        weight = -1.0
      if not name or name in weights or not 0 <= weight < float('inf'):
        raise ValueError(
          f"{option} = {text!r} must be 'none', 'balanced', or NAME=NUMBER, "
          '... with numbers of at least 0, each name once'
        )
      if names and name not in names:
        raise ValueError(
          f'{option} = {text!r}: {name!r} is not one of {", ".join(names)}'
        )
      weights[name] = weight
    return np.array([weights.get(name, 1.0) for name in names], np.float32)


def text_of(prediction: Any) -> str:
  """A prediction, for people."""
  if isinstance(prediction, list):
    return ', '.join(prediction)
  if isinstance(prediction, float):
    return f'{prediction:.4f}'
  return str(prediction)
