"""The loss of a language model by length of its window, and by position in it.

Press et al. 2022 (ALiBi), section 2.1 and appendix B: windows without overlap,
or a window that slides by a stride, of which the last tokens count.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax
import numpy as np

from experiments.data import streams
from experiments.data.batches import eval_batches
from experiments.learning import steps
from experiments.settings import parts
from experiments.training.compiled import Program
from experiments.training.evaluation import Evaluated


class LengthLoss(NamedTuple):
  """The loss of a stream that is read in windows of one length.

  All tokens of the stream but the first are predicted, each once, whatever the
  length is.

  Attributes:
    length: tokens of a window.
    loss: mean over all predicted tokens, in nats.
    bits_per_byte: of the text.
    perplexity: exp(loss).
    by_position: means over ranges of positions in the window, from 1, that
      double: `first`, `last`, `loss` and `count`, the predictions.
  """

  length: int
  loss: float
  bits_per_byte: float
  perplexity: float
  by_position: list[dict[str, float]]


def unsupported(program: Program, length: int) -> str | None:
  """Why a model cannot read windows of a length; None if it can."""
  model, encoder = program.settings.model, program.classifier.encoder
  return parts.unsupported_length(model, encoder, length)


def evaluate(
  run: Evaluated,
  tokens: np.ndarray,
  num_bytes: int,
  length: int,
  stride: int,
  batch_tokens: int,
) -> LengthLoss:
  """The loss in windows of a length.

  Args:
    tokens: of the stream.
    num_bytes: of its text.
    stride: tokens from one window to the next, of which the last `stride`
      count, apart from the first window, of which all do; 0: `length`.
    batch_tokens: tokens of a batch, at most, if a window has not more.
  """
  stride = stride or length
  examples = streams.windows(tokens, length, stride)
  losses = _losses(run, examples, length, batch_tokens)
  counts = _counts(examples, length, stride)
  total, count = losses[counts].sum(), int(counts.sum())
  loss = float(total / count)
  return LengthLoss(
    length,
    loss,
    float(total / (num_bytes * math.log(2))),
    math.exp(min(loss, 88.0)),
    _by_position(losses, counts),
  )


def _losses(run, examples, length, batch_tokens) -> np.ndarray:
  """The loss at each position of each window, (windows, length)."""
  token_losses = jax.jit(
    steps.make_token_losses(run.program.classifier, run.program.task)
  )
  losses = np.zeros((len(examples), length))
  rows_of_batch = max(batch_tokens // length, 1)
  for rows, batch in eval_batches(examples, rows_of_batch, (length + 1,)):
    losses[rows] = token_losses(run.params, batch)[: len(rows)]
  return losses


def _counts(examples, length, stride) -> np.ndarray:
  """Whether the loss there counts, boolean (windows, length)."""
  position = np.arange(length)
  is_read = position < examples.lengths[:, None] - 1
  is_first = np.arange(len(examples))[:, None] == 0
  return is_read & (is_first | (position >= length - stride))


def _by_position(losses, counts) -> list[dict[str, float]]:
  """Means over positions 1, 2, 3-4, 5-8, ..."""
  ends = [0, 1]
  while ends[-1] < losses.shape[1]:
    ends.append(min(2 * ends[-1], losses.shape[1]))
  ranges = []
  for start, end in itertools.pairwise(ends):
    inside = counts[:, start:end]
    if inside.any():
      ranges.append(
        {
          'first': start + 1,
          'last': end,
          'loss': float(losses[:, start:end][inside].mean()),
          'count': int(inside.sum()),
        }
      )
  return ranges
