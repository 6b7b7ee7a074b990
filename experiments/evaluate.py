"""Evaluates a trained run, or an ensemble of runs, on one of its splits.

    bash scripts/run.sh experiments.evaluate --workdir=runs/sst2 --split=test
    bash scripts/run.sh experiments.evaluate --workdir='runs/seeds/trials/*'
    bash scripts/run.sh experiments.evaluate --workdir=runs/sst2 --file=new.tsv

Prints loss, accuracy, precision, recall and F1 of each class, the confusion
matrix, and accuracy by length; for a task that predicts tokens, its metrics;
with --lengths, the loss of a stream by length of the window. Of
more than 50 classes, those with the least F1, and no matrix. The probabilities
of several runs, an ensemble, are averaged. The last line is the same as one
JSON object. With several processes, process 0 prints.
"""

from __future__ import annotations

import os

from absl import flags

from experiments.command import app, distributed
from experiments.command.errors import UserError
from experiments.command.imports import import_frozen
from experiments.command.log import log
from experiments.data import input_rows
from experiments.data.text_files import UNKNOWN
from experiments.learning import scores
from experiments.training import run_flags

# What imports jax is imported in functions: --help and wrong input do not wait.


def _table(labels, confusion, shown) -> str:
  """Scores of the classes `shown`, and the matrix if these are all."""
  precision, recall, f1 = scores.per_class(confusion)
  width = max(len(labels[index]) for index in shown)
  lines = [f'{"class":<{width}}  precision  recall      f1  count']
  for index in shown:
    lines.append(
      f'{labels[index]:<{width}}  {precision[index]:9.4f}  '
      f'{recall[index]:6.4f}  {f1[index]:6.4f}  {confusion[index].sum():5}'
    )
  if len(shown) < len(labels):
    lines.append(f'\n{len(shown)} of {len(labels)} classes, of the least F1')
    return '\n'.join(lines)
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
  flags.DEFINE_string(
    'file',
    None,
    'Another file to read in place of a split, or a pattern, with the columns '
    'and the format of those of the run: as in config.data.text.test, but '
    'below the current folder.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'unknown_labels',
    'error',
    UNKNOWN,
    'What to do with texts of --file whose labels the run does not know.',
    flag_values=values,
  )
  flags.DEFINE_list(
    'lengths',
    [],
    'Lengths of windows in which a stream is read: its loss in each.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'stride',
    0,
    'With --lengths: tokens from one window to the next, of which the last '
    'ones count; 0: windows do not overlap.',
    lower_bound=0,
    flag_values=values,
  )
  input_rows.define(values, '--file, if not as in the run', 'label_column')
  distributed.define(values)


def main(values) -> None:
  """Evaluates a checkpoint and prints the results."""
  workdir = app.required(values, 'workdir')
  _check_file(values)
  _lengths(values)
  cluster = distributed.find(values, os.environ)
  import_frozen('experiments.training.evaluation')
  if cluster is not None:
    distributed.join(cluster, values.start_timeout, values.peer_timeout)
  with run_flags.opened(workdir) as paths:
    _evaluate(values, paths)


def _check_file(values) -> None:
  """UserError for flags of a split beside --file, or of a file without it."""
  of_split = {'split', 'data_dir'}
  of_file = {'unknown_labels', *input_rows.names(values)}
  is_file = values.file is not None
  for name in sorted(of_split if is_file else of_file):
    if values[name].present:
      reason = 'exclude one another' if is_file else 'need one another'
      raise UserError(f'--{name} and --file {reason}')


def _evaluate(values, paths: list[str]) -> None:
  from experiments.command import processes
  from experiments.settings import stored
  from experiments.training import ensembles

  is_file = values.file is not None
  if values.lengths:
    app.print_result(_by_window(values, paths))
    return
  processes.together(lambda: ensembles.check(paths, not is_file))
  settings = stored.read_settings(paths[0])
  loaded = processes.together(lambda: _data(values, settings, paths[0]))
  split = 'test' if is_file else values.split
  examples = loaded.splits[split]
  answers = ensembles.evaluate(
    ensembles.restored(paths, values.checkpoint),
    examples,
    values.batch_size,
    loaded.bucket_lengths,
  )
  if not processes.is_first():
    return
  task = answers.task
  place = {'file': values.file} if is_file else {'split': values.split}
  scores_of_all = loaded.scores(split, task, answers.outputs)
  result = place | scores_of_all
  if task.has_labels:
    result |= _by_label(answers.outputs, examples, loaded.labels)
  else:
    lines = [f'{name:<14}{value:.4f}' for name, value in scores_of_all.items()]
    log('\n'.join(lines))
  result |= {'count': len(examples), **ensembles.steps(answers.steps)}
  if len(paths) > 1:
    result['accuracies'] = [
      task.scores(outputs, examples.labels)['accuracy']
      for outputs in answers.of_runs
    ]
  app.print_result(result)


def _lengths(values) -> list[int]:
  """Those of --lengths.

  Raises:
    UserError: one is no number of tokens, or shorter than the stride.
  """
  if values.stride and not values.lengths:
    raise UserError(f'--stride={values.stride} is of --lengths, which is empty')
  if values.lengths and values.file is not None:
    raise UserError('--lengths and --file exclude one another')
  for text in values.lengths:
    if not text.strip().isdecimal() or int(text) < max(values.stride, 1):
      raise UserError(
        f'--lengths={",".join(values.lengths)}: {text!r} must be a number of '
        f'tokens, at least --stride = {max(values.stride, 1)}'
      )
  return [int(text) for text in values.lengths]


def _by_window(values, paths: list[str]) -> dict:
  """Prints and returns the loss of a stream by length of the window."""
  from experiments.command import processes
  from experiments.settings import stored
  from experiments.training import evaluation, lengths

  processes.require_one('--lengths')
  if len(paths) > 1:
    raise UserError('--lengths needs one run, and --workdir names several')
  settings = stored.read_settings(paths[0])
  if not settings.data.is_stream:
    raise UserError(
      '--lengths needs a run on a stream, and this one has '
      f'config.data.source = {settings.data.source}'
    )
  loaded = evaluation.load_data(settings, paths[0], values.data_dir)
  run = evaluation.restore_params(paths[0], values.checkpoint)
  log(f'{"length":>7}  {"nats":>7}  {"bits/byte":>9}  {"perplexity":>10}')
  rows = []
  for length in _lengths(values):
    if reason := lengths.unsupported(run.program, length):
      log(f'{length:>7}  {reason}')
      rows.append({'length': length, 'unsupported': reason})
      continue
    row = lengths.evaluate(
      run,
      loaded.splits[values.split].tokens,
      loaded.num_bytes[values.split],
      length,
      values.stride,
      values.batch_size * settings.data.max_length,
    )
    log(
      f'{length:>7}  {row.loss:7.4f}  {row.bits_per_byte:9.4f}  '
      f'{row.perplexity:10.3f}'
    )
    rows.append(row._asdict())
  return {
    'split': values.split,
    'stride': values.stride,
    'lengths': rows,
    'step': run.step,
  }


def _data(values, settings, path: str):
  """The data of the run, or that of --file."""
  from experiments.data import loading
  from experiments.training import evaluation

  if values.file is None:
    return evaluation.load_data(settings, path, values.data_dir)
  return loading.load_file(
    settings.data,
    path,
    values.file,
    input_rows.changed(values),
    settings.task.entry.has_labels,
    values.unknown_labels,
  )


def _by_label(outputs, examples, labels: list[str]) -> dict:
  """Prints and returns the scores of each class and each range of lengths."""
  _, logits = outputs
  predictions = logits.argmax(axis=-1)
  confusion = scores.confusion_matrix(examples.labels, predictions, len(labels))
  hits = predictions == examples.labels
  ranges = scores.by_length(examples.lengths, hits)
  shown = scores.shown_classes(confusion)
  log(_table(labels, confusion, shown))
  log(_length_table(ranges))
  precision, recall, f1 = (
    score[shown].tolist() for score in scores.per_class(confusion)
  )
  result = {
    'mean_over_lengths': scores.mean_over_lengths(examples.lengths, hits),
    'labels': [labels[index] for index in shown],
    'precision': precision,
    'recall': recall,
    'f1': f1,
    'by_length': ranges,
  }
  if len(shown) == len(labels):
    result['confusion'] = confusion.tolist()
  return result


if __name__ == '__main__':
  app.run(main, _define, __doc__)
