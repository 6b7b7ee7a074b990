"""Scores of texts, from predictions and labels; on the host."""

from __future__ import annotations

import itertools

import numpy as np

# Why `pearson` and `spearman` may be None.
CONSTANT = 'labels or predictions are all equal, or are not all finite'


def confusion_matrix(
  labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> np.ndarray:
  """Counts (true class, predicted class)."""
  matrix = np.zeros((num_classes, num_classes), np.int64)
  np.add.at(matrix, (labels, predictions), 1)
  return matrix


def scores(losses: np.ndarray, confusion: np.ndarray) -> dict[str, float]:
  """Mean loss, accuracy, and what counts rare classes as frequent ones.

  Macro F1 is the mean over the classes of labels and of predictions, balanced
  accuracy the mean recall of those of labels; MCC, the correlation coefficient
  of Matthews for several classes (Gorodkin 2004), is 0 where it is undefined.
  All are as in scikit-learn.
  """
  _, recall, f1 = per_class(confusion)
  # Floats, since products of four counts of 100,000 are no int64.
  actual, predicted = (confusion.sum(axis=n, dtype=float) for n in (1, 0))
  hits, count = np.trace(confusion), actual.sum()
  scale = (count**2 - predicted @ predicted) * (count**2 - actual @ actual)
  covariance = hits * count - predicted @ actual
  return {
    'loss': float(losses.mean(dtype=np.float64)),
    'accuracy': float(hits / count),
    'macro_f1': float(f1[(actual > 0) | (predicted > 0)].mean()),
    'balanced_accuracy': float(recall[actual > 0].mean()),
    'mcc': float(covariance / np.sqrt(scale)) if scale else 0.0,
  }


def auroc(scores_of: np.ndarray, truth: np.ndarray) -> float | None:
  """Mean over columns of the area under the ROC curve; None without any.

  The area is the probability that a text of a label has a greater score than
  one without it; columns of texts all with it, or all without it, are left out.

  Args:
    scores_of: (texts, labels).
    truth: boolean, (texts, labels), whether a text has a label.
  """
  positives = truth.sum(axis=0)
  negatives = len(truth) - positives
  has_both = (positives > 0) & (negatives > 0)
  if not has_both.any():
    return None
  ranks = np.stack([ranked(column) for column in scores_of.T], axis=1)
  ranks = (ranks * truth).sum(axis=0)
  above = ranks - positives * (positives + 1) / 2
  return float((above[has_both] / (positives * negatives)[has_both]).mean())


def ranked(values: np.ndarray) -> np.ndarray:
  """Ranks from 1, (values,); equal values have the mean of theirs."""
  _, inverse, counts = np.unique(
    values, return_inverse=True, return_counts=True
  )
  return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
  """The correlation of two arrays; None if one is constant, or not finite."""
  if not (np.ptp(x) > 0 and np.ptp(y) > 0):
    return None
  return float(np.corrcoef(x, y)[0, 1])


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
  """The correlation of ranks; None as for `pearson`."""
  is_finite = np.isfinite(x).all() and np.isfinite(y).all()
  return pearson(ranked(x), ranked(y)) if is_finite else None


def of_sets(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
  """Micro and macro F1 and subset accuracy of sets of labels.

  F1 is 0 of a label that is neither in a set nor predicted, and subset accuracy
  is the share of texts whose labels are all right, as in scikit-learn.

  Args:
    predicted, truth: boolean, (texts, labels).
  """
  _, _, f1 = per_label(predicted, truth)
  total = predicted.sum() + truth.sum()
  return {
    'micro_f1': float(2 * (predicted & truth).sum() / max(total, 1)),
    'macro_f1': float(f1.mean()),
    'subset_accuracy': float((predicted == truth).all(axis=1).mean()),
  }


def per_label(
  predicted: np.ndarray, truth: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Precision, recall and F1 of each label; 0 where one is undefined."""
  hits = (predicted & truth).sum(axis=0)
  called, actual = predicted.sum(axis=0), truth.sum(axis=0)
  return precision_recall_f1(hits, called, actual)


def per_class(
  confusion: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Precision, recall and F1 of each class; 0 where one is undefined."""
  predicted, actual = confusion.sum(axis=0), confusion.sum(axis=1)
  return precision_recall_f1(np.diag(confusion), predicted, actual)


def precision_recall_f1(hits, predicted, actual):
  """Precision, recall and F1 of each from counts; 0 where one is undefined."""
  precision = hits / np.maximum(predicted, 1)
  recall = hits / np.maximum(actual, 1)
  f1 = 2 * hits / np.maximum(predicted + actual, 1)
  return precision, recall, f1


def by_length(lengths: np.ndarray, hits: np.ndarray) -> list[dict[str, float]]:
  """Accuracy on texts of similar length, in at most 8 ranges of equal width.

  Ranges are in order of length; those without a text are left out.

  Args:
    lengths: tokens of each text after truncation.
    hits: whether each was classified correctly, or a share of it.
  """
  first, last = int(lengths.min()), int(lengths.max())
  edges = np.unique(np.linspace(first, last + 1, 9).astype(int))
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
