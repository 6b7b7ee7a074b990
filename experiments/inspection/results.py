"""The results of a run on a split, and the texts with the greatest loss."""

from __future__ import annotations

import jax
import numpy as np

from experiments.data import loading
from experiments.data.batches import Examples
from experiments.inspection import pages
from experiments.learning.scores import (
  by_length,
  confusion_matrix,
  per_class,
  scores,
  shown_classes,
)
from experiments.training.ensembles import Answers

# Texts with the greatest loss that are shown.
_WORST = 20


def sections(
  answers: Answers, loaded: loading.Data, split: str, tokenizer
) -> tuple[list[str], np.ndarray]:
  """(sections on a split, indices of the texts with the greatest loss).

  A task without labels has no such texts.
  """
  examples, task = loaded.splits[split], answers.task
  title = f'Results on {split}'
  if not task.has_labels:
    measured = task.scores(answers.outputs, examples.labels)
    table = pages.table(list(measured), [list(measured.values())])
    return [pages.section(title, table)], np.zeros(0, int)
  losses, logits = answers.outputs
  worst = np.argsort(-losses, kind='stable')[:_WORST]
  texts = decoded(tokenizer, examples.take(worst))
  table = _worst(
    loaded.labels, examples.labels[worst], losses[worst], logits[worst], texts
  )
  return [
    pages.section(title, _tables(loaded.labels, examples, losses, logits)),
    pages.section('Texts with the greatest loss', table),
  ], worst


def _tables(labels, examples: Examples, losses, logits) -> str:
  predictions = logits.argmax(axis=-1)
  confusion = confusion_matrix(examples.labels, predictions, len(labels))
  measured = scores(losses, confusion) | {'examples': len(examples)}
  of_class = np.stack(per_class(confusion), axis=1).tolist()
  shown = shown_classes(confusion)
  is_whole = len(shown) == len(labels)
  ranges = by_length(examples.lengths, predictions == examples.labels)
  summary = pages.table(list(measured), [list(measured.values())])
  return summary + pages.beside(
    [
      *([pages.confusion(labels, confusion)] if is_whole else []),
      pages.table(
        ['class', 'precision', 'recall', 'F1'],
        [[labels[index], *of_class[index]] for index in shown],
      ),
      pages.table(
        ['tokens', 'examples', 'accuracy'],
        [
          [f'{r["shortest"]} to {r["longest"]}', r['count'], r['accuracy']]
          for r in ranges
        ],
      ),
    ]
  )


def decoded(tokenizer, examples: Examples) -> list[str]:
  """The texts of examples, as the tokens that the model reads."""
  return [
    tokenizer.decode(
      examples.tokens[start : start + length].tolist(),
      skip_special_tokens=False,
    )
    for start, length in zip(examples.starts, examples.lengths, strict=True)
  ]


def _worst(labels, truth, losses, logits, texts: list[str]) -> str:
  probabilities = np.asarray(jax.nn.softmax(logits, axis=-1))
  predictions = probabilities.argmax(axis=-1)
  rows = [
    [
      float(losses[row]),
      labels[true],
      labels[predictions[row]],
      float(probabilities[row, true]),
      texts[row],
    ]
    for row, true in enumerate(truth)
  ]
  is_wrong = np.flatnonzero(predictions != truth).tolist()
  header = ['loss', 'true', 'predicted', 'probability of true', 'text']
  note = '<p>Misclassified texts are highlighted.</p>'
  return note + pages.table(header, rows, is_wrong)
