"""What evaluate prints of a split, and inspect draws, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.learning import scores


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
  shown = scores.shown_classes(confusion)
  report = _of_each(
    [str(names[index]) for index in shown.tolist()],
    [part[shown] for part in scores.per_class(confusion)],
    confusion.sum(axis=1)[shown],
  )
  by_length = of_lengths(lengths, predictions == labels)
  report.values |= by_length.values
  if len(shown) == len(names):
    report.confusion = confusion
    report.values['confusion'] = confusion.tolist()
  report.tables += by_length.tables
  return report


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
  parts = scores.per_label(predicted, truth)
  shown = np.arange(len(names))
  if len(names) > scores.MOST_CLASSES:
    shown = np.argsort(parts[-1], kind='stable')[: scores.MOST_CLASSES]
  return _of_each(
    [str(names[index]) for index in shown.tolist()],
    [part[shown] for part in parts],
    truth.sum(axis=0)[shown],
  )


def _of_each(
  names: list[str], parts: list[np.ndarray], counts: np.ndarray
) -> Report:
  precision, recall, f1 = (part.tolist() for part in parts)
  rows = [
    list(row)
    for row in zip(names, precision, recall, f1, counts.tolist(), strict=True)
  ]
  values = {'labels': names, 'precision': precision, 'recall': recall, 'f1': f1}
  header = ['class', 'precision', 'recall', 'f1', 'count']
  return Report(values, [Table(header, rows)])


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
