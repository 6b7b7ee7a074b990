"""A trained run, or an ensemble of several, as a function of texts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from experiments.data import encoding
from experiments.data.batches import Examples
from experiments.data.token_labels import of_tokens, words_of
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.learning.contrastive import Contrastive
from experiments.learning.text_tasks import TextTask
from experiments.training import ensembles, evaluation

# Batches of a window, inside which texts are sorted by length. More batches
# mean less padding and later first results.
_BATCHES = 16
# Each number of rows that has a program is so many times the one before.
_ROWS = 8
_SHORTEST = 8
# Classes of the tasks that answer texts.
TASKS = TextTask | ClassifyTokens | Contrastive


class Prediction(NamedTuple):
  """The prediction of a run for one text.

  Attributes:
    label: of `classify` the most probable class, of `multilabel` a list of
      labels, of `regression` a number, of `contrastive` its vector, float32, of
      `classify_tokens` a list of the class of each word, or None of one that is
      not read; None if the text has no tokens.
    probabilities: by label, those of `classify` sum to 1; None if the text has
      no tokens, or the task no probabilities.
    is_truncated: whether the text has more tokens than config.data.max_length
      of the run, so that only the first ones were used.
    spans: of `classify_tokens` whose classes are parts of spans, such as B-PER:
      `label`, `text`, and the words from `begin` to before `end`; else None.
  """

  label: Any
  probabilities: dict[str, float] | None
  is_truncated: bool
  spans: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True)
class Predictor:
  """Trained runs, restored on all devices of this process.

  Attributes:
    runs: one, or those of an ensemble: settings, programs and parameters.
    tokenizer: vocabulary of the runs.
    batch_size: texts of a batch, at most.
  """

  runs: list[evaluation.Evaluated]
  tokenizer: object
  batch_size: int

  @property
  def max_length(self) -> int:
    """Tokens of a text that are used, config.data.max_length of the runs."""
    return self.runs[0].settings.data.max_length

  @property
  def steps(self) -> dict[str, int | list[int]]:
    """The `step` of the checkpoint, or the `steps` of several."""
    return ensembles.steps([run.step for run in self.runs])

  @property
  def window(self) -> int:
    """Number of texts that are sorted by length and predicted together."""
    return _BATCHES * self.batch_size

  @property
  def has_pairs(self) -> bool:
    """Whether the runs read pairs of texts."""
    return bool(self.runs[0].settings.data.pair_length)

  @property
  def keys(self) -> tuple[str, ...]:
    """Keys of an answer in JSON."""
    task = self.runs[0].program.task
    has_spans = isinstance(task, ClassifyTokens) and task.has_spans
    spans = ['spans'] * has_spans
    return 'prediction', 'probabilities', 'is_truncated', *spans

  def __call__(
    self, texts: Iterable[str] | Iterable[tuple[str, str]]
  ) -> list[Prediction]:
    """One prediction for each text, or each pair of texts, in their order.

    Texts are sorted by length within windows and padded to few lengths, so the
    number of compiled programs is bounded whatever the texts are. Probabilities
    do not depend on other texts beyond rounding.

    Raises:
      TypeError: `texts` is one text, or one of them is not a str; of runs that
        read pairs, no tuple of two.
    """
    if isinstance(texts, str):
      raise TypeError('texts must be a list of texts, not one text')
    remaining, predictions = iter(texts), []
    while window := list(itertools.islice(remaining, self.window)):
      predictions += self._predict(window)
    return predictions

  def _predict(self, texts: list) -> list[Prediction]:
    """Predictions of the texts of one window."""
    examples, is_truncated = self.encode(texts)
    task = self.runs[0].program.task
    if isinstance(task, ClassifyTokens):
      return self._of_words(task, texts, examples, is_truncated)
    if isinstance(task, Contrastive):
      vectors, *_ = self._evaluated(examples).outputs
      return [
        Prediction(vector if length else None, None, is_cut)
        for vector, length, is_cut in zip(
          vectors.astype(np.float32),
          examples.lengths,
          is_truncated.tolist(),
          strict=True,
        )
      ]
    assert isinstance(task, TextTask), 'predict.load has checked it'
    assert task.labels is not None
    # Placeholder labels, in the shape that the task reads.
    none, _ = task.labels.values([], task.facts.names)
    labels = np.zeros((len(texts), *none.shape[1:]), none.dtype)
    examples = dataclasses.replace(examples, labels=labels)
    answers = self._evaluated(examples)
    (_, logits), fitted = answers.outputs, task.fitted(answers.fits)
    return [
      Prediction(*fitted.answer(row), is_cut)
      if length
      else Prediction(None, None, is_cut)
      for row, length, is_cut in zip(
        logits, examples.lengths, is_truncated.tolist(), strict=True
      )
    ]

  def _evaluated(self, examples: Examples) -> ensembles.Answers:
    rows = 1
    while rows < len(examples) and rows < self.batch_size:
      rows *= _ROWS
    return ensembles.evaluate(
      self.runs, examples, min(rows, self.batch_size), self.padded_lengths
    )

  def _of_words(
    self,
    task: ClassifyTokens,
    texts: list[str],
    examples: Examples,
    is_truncated: np.ndarray,
  ) -> list[Prediction]:
    """The classes of the words of each text."""
    begun = encoding.words_begun(self.tokenizer, texts, self.max_length)
    counts = [len(words_of(text)) for text in texts]
    # Any class is a placeholder for those that are asked for.
    asked = [np.stack([np.arange(n), np.zeros(n, int)], -1) for n in counts]
    labels = of_tokens(
      asked, np.concatenate(begun), examples.starts, examples.lengths
    )
    answers = self._evaluated(dataclasses.replace(examples, labels=labels))
    classes = task.classes_of(answers.outputs[-1], labels[..., 2], max(counts))
    classes = [row[:n] for row, n in zip(classes, counts, strict=True)]
    return [
      Prediction(of_text or None, None, is_cut, task.spans_of(text, of_text))
      for text, of_text, is_cut in zip(
        texts, classes, is_truncated.tolist(), strict=True
      )
    ]

  def encode(self, texts: list) -> tuple[Examples, np.ndarray]:
    """Token ids of texts or pairs, and whether each was truncated.

    Raises:
      TypeError: one of them is not a str, or no pair of str.
    """
    for text in texts:
      parts = text if self.has_pairs else (text,)
      if self.has_pairs and not (isinstance(text, tuple) and len(text) == 2):
        raise TypeError(f'a pair must be a tuple of two texts, not {text!r}')
      for part in parts:
        if not isinstance(part, str):
          raise TypeError(f'a text must be a str, not a {type(part).__name__}')
    return encoding.encode(self.tokenizer, texts, self.max_length)

  @property
  def padded_lengths(self) -> tuple[int, ...]:
    """Powers of two, and those times 1.5, up to config.data.max_length."""
    most, lengths = self.max_length, [_SHORTEST]
    while lengths[-1] < most:
      lengths += [lengths[-1] * 3 // 2, lengths[-1] * 2]
    return *(length for length in lengths if length < most), most
