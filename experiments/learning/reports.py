"""What evaluate prints of a split, and inspect draws, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.learning import scores

# Classes that a table shows, at most.
_MOST = 50


class Table(NamedTuple):
  """A heading for each column, and rows of texts and numbers."""

  header: list[str]
  rows: list[list[Any]]


@dataclasses.dataclass
class Report:
  """The results of a task on a split.

  Attributes:
    values: one JSON object.
    tables: for people.
    confusion: counts (true class, predicted class), if these are few classes.
  """

  values: dict[str, Any]
  tables: list[Table]
  confusion: np.ndarray | None = None

  @property
  def reliability(self) -> dict[str, list[dict[str, float]]]:
    """Bins of confidence before and after a temperature, if there are any."""
    return {
      name: part['reliability']
      for name, part in self.values.get('calibration', {}).items()
      if isinstance(part, dict)
    }


def shown(scores: Iterable[float | None]) -> list[float | str]:
  """Scores as cells of a table."""
  return ['undefined' if score is None else score for score in scores]


def of_classes(
  names: Sequence[str], labels: np.ndarray, logits: np.ndarray, lengths
) -> Report:
  """Scores of each class, the confusion matrix, and accuracy by length.

  Of more than 50 classes, those with the least F1, and no matrix.

  Args:
    names: of the classes.
    lengths: tokens of each text.
  """
  predictions = logits.argmax(axis=-1)
  confusion = scores.confusion_matrix(labels, predictions, len(names))
  report = of_confusion(names, confusion)
  by_length = of_lengths(lengths, predictions == labels)
  report.values |= by_length.values
  report.tables += by_length.tables
  return report


def of_confusion(names: Sequence[str], confusion: np.ndarray) -> Report:
  """Scores of each class, and the matrix of few classes."""
  counts = confusion.sum(axis=1)
  occurs = counts + confusion.sum(axis=0) > 0
  report = _of_each(names, scores.per_class(confusion), counts, occurs)
  if len(names) <= _MOST:
    report.confusion = confusion
    report.values['confusion'] = confusion.tolist()
  return report


def of_counts(names: Sequence[str], counts: np.ndarray) -> Report:
  """Scores of each label.

  Args:
    counts: (labels, 3), how many are right, predicted and true.
  """
  parts, occurs = scores.precision_recall_f1(*counts.T), counts.sum(axis=1) > 0
  return _of_each(names, parts, counts[:, 2], occurs)


def of_lengths(lengths: np.ndarray, hits: np.ndarray) -> Report:
  """Accuracy by length.

  Args:
    lengths: tokens of each text.
    hits: whether it is right, or the share of its tokens that are.
  """
  ranges = scores.by_length(lengths, hits)
  rows = [
    [f'{r["shortest"]}-{r["longest"]}', r['accuracy'], r['count']]
    for r in ranges
  ]
  return Report(
    {
      'mean_over_lengths': scores.mean_over_lengths(lengths, hits),
      'by_length': ranges,
    },
    [Table(['tokens', 'accuracy', 'count'], rows)],
  )


def of_sets(
  names: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> Report:
  """Scores of each label; of more than 50, those with the least F1."""
  counts = truth.sum(axis=0)
  occurs = counts + predicted.sum(axis=0) > 0
  return _of_each(names, scores.per_label(predicted, truth), counts, occurs)


def _of_each(
  names: Sequence[str],
  parts: Sequence[np.ndarray],
  counts: np.ndarray,
  occurs: np.ndarray,
) -> Report:
  """Of more than 50 classes, those with the least F1 that occur."""
  shown = np.arange(len(names))
  if len(names) > _MOST:
    order = np.argsort(parts[-1], kind='stable')
    shown = order[occurs[order]][:_MOST]
  values = {'labels': [str(names[index]) for index in shown.tolist()]}
  for name, part in zip(('precision', 'recall', 'f1'), parts, strict=True):
    values[name] = part[shown].tolist()
  columns = zip(*values.values(), counts[shown].tolist(), strict=True)
  header = ['class', 'precision', 'recall', 'f1', 'count']
  return Report(values, [Table(header, list(map(list, columns)))])


def text(table: Table) -> str:
  """A table as lines, its numbers to the right."""
  cells = [[_cell(value) for value in row] for row in table.rows]
  columns = zip(table.header, *cells, strict=True)
  widths = [max(map(len, column)) for column in columns]
  lines = []
  for first, *rest in [table.header, *cells]:
    padded = [first.ljust(widths[0])]
    padded += map(str.rjust, rest, widths[1:])
    lines.append('  '.join(padded).rstrip())
  return '\n'.join(lines)


def matrix(names: Sequence[str], confusion: np.ndarray) -> str:
  """The confusion matrix as lines."""
  header = ['true', *names]
  rows = [
    [name, *row] for name, row in zip(names, confusion.tolist(), strict=True)
  ]
  return 'confusion (row: true class, column: predicted)\n' + text(
    Table(header, rows)
  )


def _cell(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:.4f}'
  return '' if value is None else str(value)
