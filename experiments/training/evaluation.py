"""A trained run on labelled texts: restoring it, its scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from experiments.command.errors import UserError, one_of
from experiments.data import loading
from experiments.data.batches import Examples, eval_batches
from experiments.learning.steps import State
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import compiled
from experiments.training.compiled import Program
from experiments.workdir import checkpoints as checkpoints_lib


def evaluate(
  program: Program,
  params,
  examples: Examples,
  batch_size: int,
  lengths,
  check: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
  """Loss and logits of every example, in the order of the split.

  Args:
    program: of a run, or of a group, whose leading axis the result has as well.
    lengths: bucket lengths of the data.
    check: is called between batches, and may raise.
  """
  outputs, ahead = [], compiled.RunAhead()
  for rows, batch in eval_batches(examples, batch_size, lengths, program.share):
    check()
    outputs.append((rows, program.eval_step(params, program.put(batch))))
    ahead.add(outputs[-1][1])
  *group, _, num_classes = outputs[0][1][1].shape
  losses = np.zeros((*group, len(examples)))
  logits = np.zeros((*group, len(examples), num_classes))
  for rows, (batch_losses, batch_logits) in outputs:
    losses[..., rows] = np.asarray(batch_losses)[..., : len(rows)]
    logits[..., rows, :] = np.asarray(batch_logits)[..., : len(rows), :]
  return losses, logits


def confusion_matrix(
  labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> np.ndarray:
  """Counts (true class, predicted class)."""
  matrix = np.zeros((num_classes, num_classes), np.int64)
  np.add.at(matrix, (labels, predictions), 1)
  return matrix


def scores(losses: np.ndarray, confusion: np.ndarray) -> dict[str, float]:
  """Mean loss, accuracy, and F1 averaged over the classes that occur."""
  _, _, f1 = per_class(confusion)
  occurs = confusion.sum(axis=1) > 0
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


def by_length(
  lengths: np.ndarray, hits: np.ndarray, num_ranges: int = 8
) -> list[dict[str, float]]:
  """Accuracy on texts of similar length, from the shortest to the longest.

  Args:
    lengths: tokens of each text, as the model read it.
    hits: whether each was classified right.
    num_ranges: at most so many, equally wide; those without a text are left
      out.
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
  """Mean over the lengths that occur of the accuracy at each."""
  _, place, counts = np.unique(lengths, return_inverse=True, return_counts=True)
  return float((np.bincount(place, hits) / counts).mean())


def summarize(labels, losses, logits) -> dict[str, float]:
  """Scores of one split."""
  predictions = logits.argmax(axis=-1)
  return scores(losses, confusion_matrix(labels, predictions, logits.shape[-1]))


def load_data(
  settings: Settings, path: str, directory: str | None
) -> loading.Data:
  """The data that the run in `path` was made from.

  Args:
    directory: where it is now; None: where it was.

  Raises:
    UserError: it is not there, or not the same.
  """
  wanted = settings.data
  if directory is not None:
    wanted = wanted.moved_to(directory)
  return loading.load(wanted, path)


def restore_run(path: str, which: str) -> tuple[Settings, Program, State]:
  """The settings, the program and a state of a trained workdir.

  Args:
    which: 'best', 'last' or a number of steps.

  Raises:
    UserError: there is no such checkpoint, or it does not fit.
  """
  settings = stored.read_settings(path)
  facts = loading.read_facts(path)
  vocab_size = loading.read_tokenizer(path).get_vocab_size()
  program = compiled.make(settings, vocab_size, len(facts['labels']))
  with checkpoints_lib.reading(path, settings.checkpoint) as saved:
    found = saved.steps()
    if not found:
      raise UserError(f'--workdir={path} has no checkpoint yet')
    if which == 'last':
      step = max(found)
    elif which == 'best':
      step = saved.best() or max(found)
    else:
      step = int(one_of(which, [str(s) for s in found], '--checkpoint'))
    state = saved.restore(step, program.template)
  return settings, program, state
