r"""Predicts the labels of texts with a trained run.

    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --text="not a good film , a great one" --attention=map.png
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 --json < texts
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --file=texts --output=predictions.parquet
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --table=new.tsv --output=predictions.parquet

--file has one text per line; --table is read as the training files were,
without labels. Without them and --text, texts are lines of standard input.
With --json, every line of output is one JSON object; otherwise one line per
text, then one JSON object. An empty text has no label: null, or (empty).
Results are printed in the order of the texts, as soon as they are known, and
memory does not grow with their number. With several processes, each reads the
same texts and computes its rows of every batch; process 0 prints and writes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from experiments.command import app, distributed
from experiments.command.errors import UserError
from experiments.command.imports import import_frozen
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.data import encoding, loading, text_files, text_stream
from experiments.inspection import flags as inspection_flags
from experiments.workdir import buckets, record_files

# What imports jax is imported in functions: --help and wrong input do not wait.

# Seconds between two lines about progress.
_EVERY = 10.0


def load(workdir: str, checkpoint: str | int = 'best', batch_size: int = 64):
  """A trained run as a function of texts; no training files are needed.

      from experiments import predict
      classify = predict.load('runs/sst2')
      for each in classify(['a fine film', 'a dull one']):
        print(each.label, each.probabilities)

  Compiles a program at the first call and for every new length of texts; see
  experiments.training.prediction.Predictor, which is returned, and Prediction,
  of which it returns one for each text.

  Args:
    workdir: folder of a run, or gs://BUCKET/FOLDER.
    checkpoint: 'best', 'last', or a number of steps.
    batch_size: texts of a batch, at most, over all devices.

  Raises:
    UserError: there is no such run or checkpoint, or its task predicts tokens
      and no labels.
  """
  from experiments.learning.tasks import TASKS
  from experiments.settings import stored
  from experiments.training import evaluation, prediction

  with buckets.staged(workdir) as path:
    settings = stored.read_settings(path)
    task = settings.task.name
    if not TASKS[task].has_labels:
      raise UserError(
        f'--workdir={path} was trained on config.task.name = {task!r}, which '
        'predicts tokens and no labels; use experiments.evaluate for its '
        'scores on a split, experiments.inspect --text for its attention'
      )
    return prediction.Predictor(
      evaluation.restore_params(path, str(checkpoint)),
      encoding.read_tokenizer(path),
      loading.read_facts(path)['labels'],
      batch_size,
    )


def _define(values) -> None:
  flags = app.flags
  flags.DEFINE_string(
    'workdir', None, 'Folder of a trained run.', flag_values=values
  )
  flags.DEFINE_multi_string(
    'text', None, 'A text to classify; may be repeated.', flag_values=values
  )
  flags.DEFINE_string(
    'file',
    None,
    'File of texts to classify, one text per line.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'table',
    None,
    'File of texts to classify, of the format and with the text columns of '
    'config.data.text of the run; labels are not read.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'json',
    False,
    'Print one JSON object per text, with all probabilities.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'output',
    None,
    'New file NAME.jsonl or NAME.parquet: write the results there, with all '
    'probabilities, and print the last line only.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'checkpoint',
    'best',
    'Checkpoint to load: best, last, or a step.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'attention',
    None,
    'NAME.png: draw the attention of one text there; writes NAME.png and '
    'NAME.json.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'batch_size', 64, 'Texts per batch.', 1, flag_values=values
  )
  inspection_flags.define_member(values)
  distributed.define(values)


def main(values) -> None:
  """Restores a run, predicts and prints."""
  workdir = app.required(values, 'workdir')
  given = [
    f'--{name}'
    for name in ('text', 'file', 'table')
    if getattr(values, name) is not None
  ]
  if len(given) > 1:
    raise UserError(f'{" and ".join(given)} exclude one another')
  if values.attention is None and values.member:
    raise UserError('--member requires --attention')
  cluster = distributed.find(values, os.environ)
  if cluster is not None and (values.attention is not None or not given):
    raise UserError(
      'of several processes, each reads --text, --file or --table, and none '
      'draws --attention; start one with --distributed=off'
    )
  signals = Signals('stopping')
  signals.install()
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      path = on_exit.enter_context(buckets.staged(workdir))
      windows = on_exit.enter_context(_source(values, path))
    if values.attention is not None:
      from experiments.inspection import single_text

      single_text.check_figure(values.attention)
      found = _interruptible(windows(1), signals)
      texts = list(itertools.chain.from_iterable(found))
      if len(texts) != 1:
        count = len(texts)
        raise UserError(f'--attention needs exactly one text, not {count}')
      windows = functools.partial(_one_window, texts)
      single_text.check_member(path, values.member)
    if values.output is not None:
      record_files.check_path(values.output)
    if cluster is not None:
      timeouts = values.start_timeout, values.peer_timeout
      distributed.join(cluster, *timeouts, signals)
    import_frozen('experiments.training.prediction')
    from experiments.command import processes

    if cluster is not None:
      signals.share(processes.is_preempted)
    predictor = load(path, values.checkpoint, values.batch_size)
    if values.attention is not None:
      signals.check()
      single_text.draw(values.attention, predictor, texts, values.member)
    read = processes.checked_equal(
      _interruptible(windows(predictor.window), signals), 'texts'
    )
    if not processes.is_first():
      _predict(predictor, read, lambda *_: None, signals)
      return
    try:
      with _writer(values, predictor.labels) as write:
        count = _predict(predictor, read, write, signals)
      result = {'count': count, 'step': predictor.run.step}
      if values.output is not None:
        app.print_result(result | {'output': values.output})
      elif not values.json:
        app.print_result(result)
    except BrokenPipeError:
      # Its reader, such as `head`, has read enough.
      if cluster is not None:
        raise  # the other processes end, too
      app.drop_output()


@contextlib.contextmanager
def _source(values, path: str) -> Iterator[Callable]:
  """A function from the size of a window to all windows of texts."""
  if values.text is not None:
    encoding.check_texts(values.text)
    yield functools.partial(_one_window, values.text)
  elif values.file is not None or values.table is not None:
    flag = 'table' if values.file is None else 'file'
    name = getattr(values, flag)
    try:
      file = open(name, 'rb')  # noqa: SIM115
    except OSError as error:
      raise UserError(
        f'cannot read texts: --{flag}={name}: {error.strerror}'
      ) from error
    with file:
      if flag == 'table':
        yield functools.partial(_of_table, name, path)
      else:
        yield functools.partial(text_stream.windows, file, f'--file={name}')
  elif sys.stdin is None:
    raise UserError('standard input is closed; give --text or --file')
  else:
    yield functools.partial(text_stream.windows, sys.stdin, 'standard input')


def _one_window(texts: list[str], size: int) -> list[list[str]]:
  del size
  return [texts]


def _of_table(table: str, path: str, size: int) -> Iterator[list[str]]:
  """Windows of the texts of a table like those that the run was trained on.

  Raises:
    UserError: it was trained on no files; a row has no text, among others.
  """
  from experiments.data.datasets import DATASETS
  from experiments.settings import stored

  source = stored.read_settings(path).data.source
  kind = DATASETS[source.name]
  if not hasattr(kind, 'read_file'):
    raise UserError(
      f'--table={table}: {path} was trained on config.data.name = '
      f'{source.name!r}, which reads no files; use --file, one text per line'
    )
  # Each row has a prediction.
  options = source.options | {'invalid_rows': 'error'}
  rows = kind(**options).read_file(table, None, text_files.UNLABELLED)
  while texts := [row.text for row in itertools.islice(rows, size)]:
    yield texts


@contextlib.contextmanager
def _writer(values, labels: list[str]) -> Iterator[Callable]:
  """A function that prints or writes texts and their predictions."""

  def records(texts, found):
    return [
      {'text': text, 'label': each.label, 'probabilities': each.probabilities}
      for text, each in zip(texts, found, strict=True)
    ]

  def lines(texts, found):
    if values.json:
      return map(json.dumps, records(texts, found))
    return (
      '(empty)'
      if each.label is None
      else f'{each.label}  {each.probabilities[each.label]:.4f}  {text}'
      for text, each in zip(texts, found, strict=True)
    )

  if values.output is None:
    yield lambda *given: app.print_lines(lines(*given))
    return
  fields = {
    'text': str,
    'label': str,
    'probabilities': dict.fromkeys(labels, float),
  }
  with record_files.opened(values.output, fields) as add:
    yield lambda *given: add(records(*given))


def _interruptible(windows: Iterable, signals: Signals) -> Iterator[list[str]]:
  """The windows, of which each may wait for its texts.

  Raises:
    Interrupted: a signal was received, at once while waiting.
  """
  remaining = iter(windows)
  while True:
    with signals.at_once():
      texts = next(remaining, None)
    if texts is None:
      return
    yield texts


def _predict(predictor, windows, write: Callable, signals: Signals) -> int:
  """Writes predictions window by window; returns the number of texts.

  Raises:
    Interrupted: a signal was received.
  """
  count, said, start = 0, 0, time.monotonic()
  last, num_truncated, num_empty, first_empty = start, 0, 0, 0
  for texts, found in predictor.stream(windows):
    write(texts, found)
    signals.check()
    for number, each in enumerate(found, count + 1):
      if each.label is None:
        num_empty, first_empty = num_empty + 1, first_empty or number
    num_truncated += sum(each.is_truncated for each in found)
    count += len(texts)
    now = time.monotonic()
    # Not for texts that are typed.
    if now - last >= _EVERY and count - said >= predictor.window:
      log(f'{count:,} texts, {count / (now - start):,.0f} texts/s')
      last, said = now, count
  if num_empty:
    log(
      f'WARNING: {num_empty} of {count} texts are empty and have no label, '
      f'first: text {first_empty}'
    )
  if num_truncated:
    log(
      f'{num_truncated} of {count} texts are truncated to '
      f'{predictor.run.settings.data.max_length} tokens '
      '(config.data.max_length)'
    )
  return count


if __name__ == '__main__':
  app.run(main, _define, __doc__)
