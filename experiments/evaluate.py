"""Evaluates a trained run, or an ensemble of runs, on one of its splits.

    bash scripts/run.sh experiments.evaluate --workdir=runs/sst2 --split=test
    bash scripts/run.sh experiments.evaluate --workdir='runs/seeds/trials/*'

Prints loss, accuracy, precision, recall and F1 of each class, the confusion
matrix, and accuracy by length; for a task that predicts tokens, its metrics.
The probabilities of several runs, an ensemble, are averaged. The last line is
the same as one JSON object. With several processes, process 0 prints.
"""

from __future__ import annotations

import os

from experiments.command import app, distributed
from experiments.command.imports import import_frozen
from experiments.command.log import log
from experiments.learning import scores
from experiments.training import run_flags

# What imports jax is imported in functions: --help and wrong input do not wait.


def _table(labels, confusion) -> str:
  precision, recall, f1 = scores.per_class(confusion)
  width = max(map(len, labels))
  lines = [f'{"class":<{width}}  precision  recall      f1  count']
  for index, label in enumerate(labels):
    lines.append(
      f'{label:<{width}}  {precision[index]:9.4f}  {recall[index]:6.4f}  '
      f'{f1[index]:6.4f}  {confusion[index].sum():5}'
    )
  lines.append('\nconfusion (row: true class, column: predicted)')
  cell = len(str(confusion.max()))
  for label, row in zip(labels, confusion, strict=True):
    counts = '  '.join(f'{count:{cell}}' for count in row)
    lines.append(f'{label:<{width}}  {counts}')
  return '\n'.join(lines)


def _length_table(ranges) -> str:
  lines = ['\n   tokens  accuracy  count']
  for row in ranges:
    tokens = f'{row["shortest"]}-{row["longest"]}'
    lines.append(f'{tokens:>9}  {row["accuracy"]:8.4f}  {row["count"]:5}')
  return '\n'.join(lines)


def _define(values) -> None:
  run_flags.define_run(values)
  run_flags.define_split(values, 'test')
  run_flags.define_batch_size(values, 256)
  distributed.define(values)


def main(values) -> None:
  """Evaluates a checkpoint and prints the results."""
  workdir = app.required(values, 'workdir')
  cluster = distributed.find(values, os.environ)
  import_frozen('experiments.training.evaluation')
  if cluster is not None:
    distributed.join(cluster, values.start_timeout, values.peer_timeout)
  with run_flags.opened(workdir) as paths:
    _evaluate(values, paths)


def _evaluate(values, paths: list[str]) -> None:
  from experiments.command import processes
  from experiments.settings import stored
  from experiments.training import ensembles, evaluation

  ensembles.check(paths, has_data=True)
  settings = stored.read_settings(paths[0])
  loaded = processes.together(
    lambda: evaluation.load_data(settings, paths[0], values.data_dir)
  )
  examples = loaded.splits[values.split]
  answers = ensembles.evaluate(
    ensembles.restored(paths, values.checkpoint),
    examples,
    values.batch_size,
    loaded.bucket_lengths,
  )
  if not processes.is_first():
    return
  task = answers.task
  found = task.scores(answers.outputs, examples.labels)
  result = {'split': values.split, **found}
  if task.has_labels:
    result |= _by_label(answers.outputs, examples, loaded.labels)
  else:
    log('\n'.join(f'{name:<12}{value:.4f}' for name, value in found.items()))
  result |= {'count': len(examples), **ensembles.steps(answers.steps)}
  if len(paths) > 1:
    of_runs = [task.scores(own, examples.labels) for own in answers.of_runs]
    result |= {'accuracies': [found['accuracy'] for found in of_runs]}
  app.print_result(result)


def _by_label(outputs, examples, labels: list[str]) -> dict:
  """Prints and returns the scores of each class and each range of lengths."""
  _, logits = outputs
  predictions = logits.argmax(axis=-1)
  confusion = scores.confusion_matrix(examples.labels, predictions, len(labels))
  hits = predictions == examples.labels
  ranges = scores.by_length(examples.lengths, hits)
  log(_table(labels, confusion))
  log(_length_table(ranges))
  precision, recall, f1 = scores.per_class(confusion)
  return {
    'mean_over_lengths': scores.mean_over_lengths(examples.lengths, hits),
    'labels': labels,
    'precision': precision.tolist(),
    'recall': recall.tolist(),
    'f1': f1.tolist(),
    'confusion': confusion.tolist(),
    'by_length': ranges,
  }


if __name__ == '__main__':
  app.run(main, _define, __doc__)
