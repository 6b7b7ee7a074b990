"""Scores of a classifier, from its predictions and the labels of texts."""

from __future__ import annotations

import itertools

import numpy as np

_MOST_CLASSES = 50


def confusion_matrix(
  labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> np.ndarray:
  """Counts (true class, predicted class)."""
  matrix = np.zeros((num_classes, num_classes), np.int64)
  np.add.at(matrix, (labels, predictions), 1)
  return matrix


def scores(losses: np.ndarray, confusion: np.ndarray) -> dict[str, float]:
  """Mean loss, accuracy, and F1 averaged over classes (macro F1).

  Classes are those of labels and of predictions, as in scikit-learn.
  """
  _, _, f1 = per_class(confusion)
  occurs = (confusion.sum(axis=1) > 0) | (confusion.sum(axis=0) > 0)
  return {
    'loss': float(losses.mean()),
    'accuracy': float(np.trace(confusion) / confusion.sum()),
    'macro_f1': float(f1[occurs].mean()),
  }


def per_class(
  confusion: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Precision, recall and F1 of each class; 0 where one is undefined."""
  hits = np.diag(confusion).astype(float)
  predicted, actual = confusion.sum(axis=0), confusion.sum(axis=1)
  precision = hits / np.maximum(predicted, 1)
  recall = hits / np.maximum(actual, 1)
  f1 = 2 * hits / np.maximum(predicted + actual, 1)
  return precision, recall, f1


def shown_classes(confusion: np.ndarray) -> np.ndarray:
  """Indices of the classes that a table shows.

  All, in order; or, if there are more than 50, the 50 with the least F1 among
  those of labels or predictions, from the least.
  """
  if len(confusion) <= _MOST_CLASSES:
    return np.arange(len(confusion))
  _, _, f1 = per_class(confusion)
  occurs = (confusion.sum(axis=1) > 0) | (confusion.sum(axis=0) > 0)
  order = np.argsort(f1, kind='stable')
  return order[occurs[order]][:_MOST_CLASSES]


def by_length(
  lengths: np.ndarray, hits: np.ndarray, num_ranges: int = 8
) -> list[dict[str, float]]:
  """Accuracy on texts of similar length, in order of length.

  Args:
    lengths: tokens of each text after truncation.
    hits: whether each was classified correctly.
    num_ranges: largest number of ranges of equal width; those without a text
      are left out.
  """
  first, last = int(lengths.min()), int(lengths.max())
  edges = np.unique(np.linspace(first, last + 1, num_ranges + 1).astype(int))
  ranges = []
  for low, high in itertools.pairwise(edges):
    inside = (lengths >= low) & (lengths < high)
    if inside.any():
      ranges.append(
        {
          'shortest': int(low),
          'longest': int(high - 1),
          'count': int(inside.sum()),
          'accuracy': float(hits[inside].mean()),
        }
      )
  return ranges


def mean_over_lengths(lengths: np.ndarray, hits: np.ndarray) -> float:
  """Accuracy averaged over the lengths that occur, each with equal weight."""
  _, index, counts = np.unique(lengths, return_inverse=True, return_counts=True)
  return float((np.bincount(index, hits) / counts).mean())
