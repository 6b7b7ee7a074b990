"""The results of a run on a split, and the texts with the greatest loss."""

from __future__ import annotations

import numpy as np

from experiments.data import loading
from experiments.data.batches import Examples
from experiments.inspection import pages
from experiments.learning.reports import Report
from experiments.learning.text_tasks import TextTask, text_of
from experiments.training.ensembles import Answers
from selfattn import plots

# Texts with the greatest loss that are shown.
_WORST = 20


def sections(
  answers: Answers, loaded: loading.Data, split: str, tokenizer
) -> tuple[list[str], np.ndarray]:
  """(sections on a split, indices of the texts with the greatest loss).

  A task that predicts tokens has no such texts.
  """
  examples, task = loaded.splits[split], answers.task
  title = f'Results on {split}'
  if not isinstance(task, TextTask):
    measured = task.scores(answers.outputs, examples.labels)
    table = pages.table(list(measured), [list(measured.values())])
    return [pages.section(title, table)], np.zeros(0, int)
  losses, logits = answers.outputs
  worst = np.argsort(-losses, kind='stable')[:_WORST]
  texts = decoded(tokenizer, examples.take(worst))
  table = _worst(
    task, examples.labels[worst], losses[worst], logits[worst], texts
  )
  report = task.report(answers.outputs, answers.raw, examples)
  return [
    pages.section(title, _tables(report, task.facts.names)),
    pages.section('Texts with the greatest loss', table),
  ], worst


def _tables(report: Report, names: tuple[str, ...]) -> str:
  summary, *others = [pages.table(*table) for table in report.tables]
  if report.confusion is not None:
    others.insert(0, pages.confusion(list(names), report.confusion))
  if report.reliability:
    others.append(_reliability(report.reliability))
  return summary + pages.beside(others)


def _reliability(parts: dict[str, list[dict[str, float]]]) -> str:
  """Accuracy against confidence, where honest ones are the diagonal; HTML."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(3.6, 3.2), layout='constrained')
  axis = figure.add_subplot()
  axis.plot([0, 1], [0, 1], color='0.7', linestyle=':')
  for index, (name, rows) in enumerate(parts.items()):
    confidences = [row['confidence'] for row in rows]
    accuracies = [row['accuracy'] for row in rows]
    style = plots.style(index)
    axis.plot(confidences, accuracies, marker='o', label=name, **style)
  axis.set(xlabel='probability', ylabel='share that is right')
  axis.grid(alpha=0.3)
  axis.legend(frameon=False)
  return pages.figure(figure, 'reliability before and after calibration')


def decoded(tokenizer, examples: Examples) -> list[str]:
  """The texts of examples, as the tokens that the model reads."""
  return [
    tokenizer.decode(
      examples.tokens[start : start + length].tolist(),
      skip_special_tokens=False,
    )
    for start, length in zip(examples.starts, examples.lengths, strict=True)
  ]


def _worst(task: TextTask, labels, losses, logits, texts: list[str]) -> str:
  true = [task.truth(label) for label in labels]
  predicted = [task.answer(row, 0.0)[0] for row in logits]
  rows = [
    [loss, text_of(label), text_of(answer), text]
    for loss, label, answer, text in zip(
      losses.tolist(), true, predicted, texts, strict=True
    )
  ]
  pairs = zip(true, predicted, strict=True)
  is_wrong = [
    row for row, (label, answer) in enumerate(pairs) if label != answer
  ]
  if not task.has_probabilities:
    is_wrong = []
  note = '<p>Misclassified texts are highlighted.</p>' if is_wrong else ''
  return note + pages.table(
    ['loss', 'true', 'predicted', 'text'], rows, is_wrong
  )
