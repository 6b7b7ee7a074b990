"""Evaluates a trained run, or an ensemble of runs, on one of its splits.

    bash scripts/run.sh experiments.evaluate --workdir=runs/sst2 --split=test
    bash scripts/run.sh experiments.evaluate --workdir='runs/seeds/trials/*'
    bash scripts/run.sh experiments.evaluate --workdir=runs/sst2 --file=new.tsv

Prints the metrics of the task, beside those of the most frequent answer of
train. `classify` also has precision, recall and F1 of each class, the confusion
matrix, and accuracy by length; with more than 50 classes, it has those of the
least F1 and no matrix. Then it prints the calibration of the probabilities,
before and after the temperature that was fitted on validation. --lengths prints
the loss of a stream by length of the window. The answers of several runs, an
ensemble, are averaged. The last line is one JSON object with all values. With
several processes, process 0 prints.
"""

from __future__ import annotations

import os

from experiments.command import app, distributed
from experiments.command.command_line import define, numbers, refuse
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import input_rows
from experiments.data.contract import SPLITS
from experiments.training import run_flags

# Functions import what imports jax: --help and wrong input do not wait.


# Keys of labels in which --file may differ from the files of the run.
_LABELS = (
  'label_column', 'label_columns', 'label_separator', 'unknown_labels',
)  # fmt: skip


def _define(values) -> None:
  define(
    values,
    run_flags.WORKDIR,
    run_flags.CHECKPOINT,
    ('split', 'test', 'Split to read.', SPLITS),
    run_flags.DATA_DIR,
    ('batch_size', 256, 'Texts of a batch.', 1),
    ('file', None, 'Another file to read in place of a split, or a pattern, '
     'with the columns and the format of those of the run: as in '
     'config.data.text.test, but below the current folder.'),
    ('lengths', [], 'Lengths of windows in which a stream is read: its loss in '
     'each.'),
    ('stride', 0, 'With --lengths: tokens from one window to the next, of '
     'which the last ones count; 0: windows do not overlap.', 0),
    run_flags.CALIBRATED,
  )  # fmt: skip
  input_rows.define(
    values, '--file, if it differs from those of the run', *_LABELS
  )
  distributed.define(values)


def main(values) -> None:
  """Evaluates a checkpoint and prints the results."""
  workdir = app.required(values, 'workdir')
  if values.file is None:
    names = sorted(input_rows.names(values))
    refuse(values, names, 'and --file need one another')
  else:
    refuse(values, ('data_dir', 'split'), 'and --file exclude one another')
  if values.stride and not values.lengths:
    raise UserError(f'--stride={values.stride} is of --lengths, which is empty')
  lengths = numbers(values, 'lengths')
  if lengths and values.stride > min(lengths):
    raise UserError(
      f'--stride={values.stride} must be at most the least of --lengths, '
      f'{min(lengths)}'
    )
  if lengths:
    reason = 'is of probabilities, and --lengths has a loss alone'
    refuse(values, ('calibrated',), reason)
  cluster = distributed.find(values, os.environ)
  app.import_frozen('experiments.training.evaluation')
  if cluster is not None:
    distributed.join(values, cluster)
  with run_flags.opened(workdir) as paths:
    if lengths:
      app.print_result(_by_window(values, paths, lengths))
    else:
      _evaluate(values, paths)


def _evaluate(values, paths: list[str]) -> None:
  from experiments.command import processes
  from experiments.settings import stored
  from experiments.training import ensembles

  processes.together(lambda: ensembles.check(paths, values.file is None))
  settings = stored.read_settings(paths[0])
  loaded, split, place = processes.together(
    lambda: _data(values, settings, paths[0])
  )
  examples = loaded.splits[split]
  answers = ensembles.evaluate(
    ensembles.restored(paths, values.checkpoint, values.calibrated),
    examples,
    values.batch_size,
    loaded.bucket_lengths,
  )
  if not processes.is_first():
    return
  task = answers.task
  measured = loaded.scores(split, task, answers.outputs)
  result = place | measured
  if hasattr(task, 'report'):
    result |= _reported(answers, task, examples)
  else:
    lines = [
      f'{name:<14}{value:.4f}'
      for name, value in result.items()
      if name not in place and value is not None
    ]
    log('\n'.join(lines))
  for reason in task.reasons(measured):
    log(reason)
  result |= {'count': len(examples), **ensembles.steps(answers.steps)}
  app.print_result(result)


def _reported(answers, task, examples) -> dict:
  """Prints the report of a task, and returns its values."""
  from experiments.learning import reports

  report = task.report(answers.outputs, answers.raw, examples)
  parts = [reports.text(table) for table in report.tables]
  if report.confusion is not None:
    parts.insert(2, reports.matrix(task.facts.names, report.confusion))
  log('\n\n'.join(parts))
  temperatures = [fit.get('temperature') for fit in answers.fits]
  values = report.values | {'temperatures': temperatures}
  if len(answers.of_runs) > 1:
    values['of_runs'] = [
      task.fitted([fit]).scores(outputs, examples.labels)
      for outputs, fit in zip(answers.of_runs, answers.fits, strict=True)
    ]
  return values


def _by_window(values, paths: list[str], listed: list[int]) -> dict:
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
  loaded, split, place = _data(values, settings, paths[0])
  run = evaluation.restore_params(paths[0], values.checkpoint)
  log(f'{"length":>7}  {"nats":>7}  {"bits/byte":>9}  {"perplexity":>10}')
  rows = []
  for length in listed:
    if reason := lengths.unsupported(run.program, length):
      log(f'{length:>7}  {reason}')
      rows.append({'length': length, 'unsupported': reason})
      continue
    row = lengths.evaluate(
      run,
      loaded.splits[split].tokens,
      loaded.num_bytes[split],
      length,
      values.stride,
      values.batch_size * settings.data.max_length,
    )
    log(
      f'{length:>7}  {row.loss:7.4f}  {row.bits_per_byte:9.4f}  '
      f'{row.perplexity:10.3f}'
    )
    rows.append(row._asdict())
  return place | {
    'stride': values.stride,
    'lengths': rows,
    'step': run.step,
  }


def _data(values, settings, path: str):
  """(the data of the run or of --file, its split, what says so in a result)."""
  from experiments.data import loading
  from experiments.training import evaluation

  if values.file is None:
    loaded = evaluation.load_data(settings, path, values.data_dir)
    return loaded, values.split, {'split': values.split}
  loaded = loading.load_file(
    settings.data,
    path,
    values.file,
    input_rows.changed(values),
    settings.task.entry.labels,
  )
  return loaded, 'test', {'file': values.file}


if __name__ == '__main__':
  app.run(main, _define, __doc__)
