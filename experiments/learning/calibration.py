"""Honest probabilities: a temperature, how well it does, and thresholds.

After Guo et al. 2017: logits are divided by one number, the temperature, which
minimises the loss on validation. It changes no order of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Bins of equal width of confidence, as in the paper.
NUM_BINS = 15
# Least and greatest temperature.
_RANGE = (0.05, 20.0)
# Cuts of that range, after which it is a millionth of a temperature wide.
_SECTIONS = 32


def temperature(mean_loss: Callable[[float], float]) -> float:
  """The temperature of the least loss, between 0.05 and 20.

  Args:
    mean_loss: from a temperature to the mean loss on validation.
  """
  # Golden section search, of the logarithm. Every run does this, and to import
  # scipy takes longer.
  ratio = (5**0.5 - 1) / 2
  low, high = np.log(_RANGE)
  for _ in range(_SECTIONS):
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    if mean_loss(float(np.exp(left))) < mean_loss(float(np.exp(right))):
      high = right
    else:
      low = left
  # The search never sees 1 itself.
  fitted = float(np.exp((low + high) / 2))
  return fitted if mean_loss(fitted) < mean_loss(1.0) else 1.0


def bins(confidences: np.ndarray, hits: np.ndarray) -> list[dict[str, float]]:
  """Reliability: mean confidence and share of hits in bins of confidence.

  A bin holds confidences above its lower and at most its upper edge, and bins
  without any are left out.

  Args:
    confidences: probability of each prediction, (predictions,).
    hits: whether each was right.
  """
  edges = np.linspace(0, 1, NUM_BINS + 1)
  index = np.searchsorted(edges[1:-1], confidences)
  counts = np.bincount(index, minlength=NUM_BINS)
  sums = np.bincount(index, confidences, NUM_BINS)
  right = np.bincount(index, hits, NUM_BINS)
  return [
    {
      'confidence': float(sums[n] / counts[n]),
      'accuracy': float(right[n] / counts[n]),
      'count': int(counts[n]),
    }
    for n in np.flatnonzero(counts)
  ]


def expected_error(reliability: list[dict[str, float]]) -> float:
  """ECE: the mean distance of confidence and accuracy, weighted by count."""
  total = sum(row['count'] for row in reliability)
  return sum(
    row['count'] / total * abs(row['confidence'] - row['accuracy'])
    for row in reliability
  )


def threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
  """The threshold of the greatest F1 of one label; 0.5 if no text has it.

  It lies in the middle between the two probabilities that it separates.

  Args:
    probabilities: of the label, (texts,).
    truth: whether each text has it.
  """
  if not truth.any():
    return 0.5
  order = np.argsort(-probabilities, kind='stable')
  ordered = probabilities[order]
  hits = np.cumsum(truth[order])
  f1 = 2 * hits / (np.arange(1, len(order) + 1) + truth.sum())
  # Equal probabilities are on one side.
  is_end = np.append(ordered[1:] < ordered[:-1], True)
  last = int(np.argmax(np.where(is_end, f1, -1.0)))
  below = ordered[last + 1] if last + 1 < len(ordered) else 0.0
  return float((ordered[last] + below) / 2)
