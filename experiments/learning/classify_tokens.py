"""The class of some words of each text, and spans of words."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError
from experiments.data.batches import Batch, Examples
from experiments.data.labels import Labels
from experiments.data.token_labels import TokenLabels, words_of
from experiments.learning import reports, spans
from experiments.learning import scores as scores_lib
from experiments.learning.reports import Report, Table
from experiments.learning.tasks import Targets, Task
from selfattn.dropout import Bits
from selfattn.heads import EmbeddingHead, TokenHead


@dataclasses.dataclass(frozen=True)
class ClassifyTokens(Task):
  """One class for each word that has a label; loss and accuracy are of these.

  Sequence labelling, and answers of a text with more than one word. The first
  token of a word has its class. Classes such as B-PER, I-PER and O are parts of
  spans, which have an F1 of their own.

  Attributes:
    tied: whether classes are tokens of the vocabulary, whose logits are matmuls
      with their embeddings; False: the logits are an affine function.
  """

  tied: bool = False
  metrics: ClassVar = {'accuracy': max, 'loss': min, 'span_f1': max}
  undefined: ClassVar = {
    'span_f1': 'neither labels nor predictions have a span'
  }
  labels: ClassVar[Labels | None] = TokenLabels()

  def __post_init__(self):
    if self.tied and None in self.label_ids:
      missing = self.facts.names[self.label_ids.index(None)]
      raise UserError(
        'classify_tokens.tied = True needs classes that are tokens of '
        f'config.data.vocabulary, and {missing!r} is none'
      )

  @property
  def has_spans(self) -> bool:
    """Whether classes are parts of spans."""
    return spans.are_parts(self.facts.names)

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    del vocab_size, bits
    # A text has no more labels than tokens.
    labels = batch.labels[:, : batch.tokens.shape[1]]
    index, classes = labels[..., 0], labels[..., 1]
    # Labels of tokens that were truncated are left out.
    is_read = (classes >= 0) & (index < batch.lengths[:, None])
    return Targets(
      batch.tokens,
      batch.lengths,
      jnp.where(is_read, classes, 0),
      is_read * batch.weights[:, None],
      jnp.where(is_read, index, 0),
    )

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    del vocab_size
    if self.tied:
      return EmbeddingHead(self.label_ids, parent=None)
    return TokenHead(num_labels, parent=None)

  def outputs(self, logits, targets: Targets) -> tuple[jax.Array, ...]:
    """Also (texts, labelled words): 1 + the class of each, 0 where none is."""
    classes = jnp.argmax(logits, axis=-1) + 1
    predicted = jnp.where(targets.weights > 0, classes, 0)
    return *super().outputs(logits, targets), predicted

  def scores(self, outputs, labels):
    *sums, predicted = outputs
    counts = self._of_spans(predicted, labels)
    hits, called, actual = counts.sum(axis=0) if len(counts) else (0, 0, 0)
    span_f1 = float(2 * hits / (called + actual)) if called + actual else None
    return super().scores(sums, labels) | {'span_f1': span_f1}

  def classes_of(
    self, classes: np.ndarray, words: np.ndarray, num_words: int
  ) -> list[list[str | None]]:
    """The class of each word of each text; None: it is not read, or has none.

    Args:
      classes: 1 + the index of that of each labelled word, 0 where none is,
        (texts, labelled words).
      words: the index of each labelled word in its text.
      num_words: of the longest text.
    """
    text, place = np.nonzero(classes)
    of_words = np.zeros((len(classes), num_words), int)
    of_words[text, words[text, place]] = classes[text, place]
    return np.array([None, *self.facts.names], object)[of_words].tolist()

  def spans_of(self, text: str, classes: list[str | None]) -> list[dict] | None:
    """Spans of the words of a text as JSON; None: classes are of no spans."""
    if not self.has_spans:
      return None
    words = words_of(text)
    return [
      span._asdict() | {'text': ' '.join(words[span.begin : span.end])}
      for span in spans.of_words(classes)
    ]

  def _of_spans(self, predicted, labels) -> np.ndarray:
    """Spans that are right, predicted and true, (labels of spans, 3)."""
    if not self.has_spans:
      return np.zeros((0, 3), int)
    kinds = self._kinds()
    counts = np.zeros((len(kinds), 3), int)
    words = labels[..., 2]
    both = (
      self.classes_of(classes, words, words.max(initial=-1) + 1)
      for classes in (predicted, labels[..., 1] + 1)
    )
    for of_text in zip(*both, strict=True):
      called, actual = (set(spans.of_words(classes)) for classes in of_text)
      for column, found in enumerate((called & actual, called, actual)):
        for span in found:
          counts[kinds.index(span.label), column] += 1
    return counts

  def _kinds(self) -> list[str]:
    """The labels of spans."""
    return sorted({spans.label_of(n) for n in self.facts.names if n != 'O'})

  def report(self, outputs, raw, examples: Examples) -> Report:
    """The metrics of a split, those of classes and spans, and by length."""
    del raw
    *_, correct, counts, predicted = outputs
    measured = self.scores(outputs, examples.labels)
    table = Table(list(measured), [reports.shown(measured.values())])
    has_labels = counts > 0
    if not has_labels.any():
      return Report({}, [table])
    hits = correct[has_labels] / counts[has_labels]
    # As wide as the longest text of this split.
    truth = examples.labels[:, : predicted.shape[1], 1]
    is_read = predicted > 0
    confusion = scores_lib.confusion_matrix(
      truth[is_read], predicted[is_read].astype(int) - 1, len(self.facts.names)
    )
    report = reports.of_confusion(self.facts.names, confusion)
    of_spans = self._of_spans(predicted, examples.labels)
    if len(of_spans):
      parts = reports.of_counts(self._kinds(), of_spans)
      report.values['spans'] = parts.values
      report.tables += parts.tables
    by_length = reports.of_lengths(examples.lengths[has_labels], hits)
    report.values |= by_length.values
    report.tables = [table, *report.tables, *by_length.tables]
    return report
