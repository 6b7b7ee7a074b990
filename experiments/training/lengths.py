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

from experiments.command.log import Reporter
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
  # A text may have fewer tokens than a window.
  most = min(length, len(tokens) - 1)
  examples = streams.windows(tokens, most, stride)
  sums, counts = _by_index(run, examples, most, stride or most, batch_tokens)
  loss = float(sums.sum() / counts.sum())
  return LengthLoss(
    length,
    loss,
    streams.bits_per_byte(loss, len(tokens), num_bytes),
    math.exp(min(loss, 88.0)),
    _by_position(sums, counts),
  )


def _by_index(
  run, examples, length, stride, batch_tokens
) -> tuple[np.ndarray, np.ndarray]:
  """At each index in a window: (the sum of losses that count, their number)."""
  classifier, task = run.program.classifier, run.program.task

  @jax.jit
  def token_losses(params, batch):
    logits, targets = steps.eval_logits(task, classifier, params, batch)
    return task.losses(logits, targets)[0]

  index, sums, counts = np.arange(length), np.zeros(length), np.zeros(length)
  rows_of_batch = max(batch_tokens // length, 1)
  batches = eval_batches(examples, rows_of_batch, (length + 1,))
  text = 'evaluated {} windows'
  with Reporter(text, len(examples), has_lines=False) as report:
    for rows, batch in batches:
      losses = np.asarray(token_losses(run.params, batch))[: len(rows)]
      is_read = index < examples.lengths[rows, None] - 1
      is_first = np.asarray(rows)[:, None] == 0
      is_counted = is_read & (is_first | (index >= length - stride))
      sums += losses.sum(axis=0, dtype=np.float64, where=is_counted)
      counts += is_counted.sum(axis=0)
      report.add(len(rows))
  return sums, counts


def _by_position(sums, counts) -> list[dict[str, float]]:
  """Means over positions 1, 2, 3-4, 5-8, ..."""
  ends = [0, 1]
  while ends[-1] < len(counts):
    ends.append(min(2 * ends[-1], len(counts)))
  return [
    {
      'first': start + 1,
      'last': end,
      'loss': float(sums[start:end].sum() / count),
      'count': int(count),
    }
    for start, end in itertools.pairwise(ends)
    if (count := counts[start:end].sum())
  ]
