r"""Predicts labels or numbers for texts with a trained run, or several.

    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --text="not a good film , a great one"
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 < texts
    bash scripts/run.sh experiments.predict --workdir=runs/a,runs/b < texts
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 --json \
        --input=new.tsv > predictions.jsonl
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --input=new.csv --config.data.text.delimiter=semicolon

A row of input is a line, a JSON object, or a row of a table. Each row has one
line of output. With --json, the line is an object with all values of the row,
`prediction` and `probabilities`. Otherwise it has label, probability and the
values of the row, separated by tabs, and one JSON object follows all rows. An
empty text has no label: null, or (empty). With --min_probability, a text whose
label is less probable has none either: null, or (unsure). Answers come in the
order of the rows, as soon as they are known. Memory does not grow with their
number, unless the input is one JSON array. The answers of several runs, an
ensemble, are averaged. One process reads, computes and prints.

A language model, a run of next_token, continues a text:

    bash scripts/run.sh experiments.predict --workdir=runs/stories \
        --prompt="One evening" --tokens=200 --temperature=0.8 --top_p=0.9
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from experiments.command import app
from experiments.command.errors import UserError, at, one_of
from experiments.command.imports import import_frozen
from experiments.command.log import Reporter, log
from experiments.command.signals import Signals
from experiments.data import encoding, input_rows, readers
from experiments.data.text_files import Text
from experiments.training import run_flags

# Functions import what imports jax: --help and wrong input do not wait.

# Flags that apply to --prompt alone.
_OF_PROMPT = ('tokens', 'temperature', 'top_p', 'seed')
# Keys that a prediction adds to its row.
_ANSWER = ('prediction', 'probabilities')


def load(
  workdir: str | list[str],
  checkpoint: str | int = 'best',
  batch_size: int = 64,
  min_probability: float = 0.0,
  calibrated: bool = True,
):
  """Trained runs as one function of texts; no training files are needed.

      from experiments import predict
      classify = predict.load('runs/sst2')
      for prediction in classify(['a fine film', 'a dull one']):
        print(prediction.label, prediction.probabilities)

  Of a language model, a generator of text:

      predict.load('runs/stories').generate('One evening', tokens=200)

  Compiles a program at the first call and for every new length of texts; see
  experiments.training.prediction.Predictor, which is returned, and Prediction,
  of which it returns one for each text, and generation.Generator.

  Args:
    workdir: folder of a run, or gs://BUCKET/FOLDER; of an ensemble, whose
      probabilities are averaged: a list of them, or one text as of --workdir.
      A ~ is the user's home.
    checkpoint: 'best', 'last', or a number of steps.
    batch_size: texts of a batch, at most, over all devices.
    min_probability: labels that are less probable are not answered.
    calibrated: whether the temperature and the thresholds are used that were
      fitted on validation.

  Raises:
    UserError: there is no such run or checkpoint, its task predicts tokens and
      no labels, or has no probabilities to limit, or several runs differ in
      their vocabulary or labels.
  """
  from experiments.learning.text_tasks import TextTask
  from experiments.settings import stored
  from experiments.training import ensembles, generation, prediction

  with run_flags.opened(workdir) as paths:
    ensembles.check(paths)
    path, *_ = paths
    settings = stored.read_settings(path)
    task = settings.task
    if task.entry.is_causal:
      (run,) = ensembles.restored(paths, str(checkpoint))
      return generation.Generator(run, encoding.read_tokenizer(path))
    if not issubclass(task.entry, TextTask):
      raise UserError(
        f'--workdir={path} was trained on config.task = {task}, which '
        'predicts tokens and no labels; use experiments.evaluate for its '
        'scores on a split, experiments.inspect --text for its attention'
      )
    if min_probability and not task.entry.has_probabilities:
      raise UserError(
        f'min_probability = {min_probability} must be 0 for config.task = '
        f'{task}, whose answers have no probabilities'
      )
    return prediction.Predictor(
      list(ensembles.restored(paths, str(checkpoint), calibrated)),
      encoding.read_tokenizer(path),
      batch_size,
      min_probability,
    )


def _define(values) -> None:
  flags = app.flags
  run_flags.define_run(values)
  flags.DEFINE_multi_string(
    'text', [], 'A text to classify; may be repeated.', flag_values=values
  )
  flags.DEFINE_string(
    'input',
    None,
    'File of texts to classify; if not given, standard input.',
    flag_values=values,
  )
  input_rows.define(values, 'the input, if not as by its ending or in the run')
  flags.DEFINE_bool(
    'json',
    False,
    'Print one JSON object per text, with all probabilities.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'min_probability',
    0.0,
    'Answer no label that is less probable.',
    lower_bound=0.0,
    upper_bound=1.0,
    flag_values=values,
  )
  run_flags.define_calibrated(values)
  run_flags.define_batch_size(values, 64)
  flags.DEFINE_string(
    'prompt',
    None,
    'A text that a language model goes on from.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'tokens', 100, 'With --prompt: how many are drawn.', 1, flag_values=values
  )
  flags.DEFINE_float(
    'temperature',
    1.0,
    'With --prompt: divides the logits; 0: the most probable token.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'top_p',
    1.0,
    'With --prompt: only the most probable tokens are drawn, as few as have '
    'this probability together.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'seed', 0, 'With --prompt: of the draws.', flag_values=values
  )


def main(values) -> None:
  """Restores a run, predicts and prints."""
  workdir = app.required(values, 'workdir')
  if values.text and values.input is not None:
    raise UserError('--text and --input exclude one another')
  if values.prompt is not None:
    _generate(values, workdir)
    return
  for name in _OF_PROMPT:
    if values[name].present:
      raise UserError(f'--{name} and --prompt need one another')
  changed = input_rows.changed(values)
  if values.text and changed:
    key = next(iter(changed))
    raise UserError(f'--text and --config.data.text.{key} exclude one another')
  format = changed.get('format') or input_rows.format_of(values.input or '')
  one_of(format, input_rows.FORMATS, 'data.text.format')
  if format == 'parquet' and values.input is None:
    raise UserError(
      "config.data.text.format = 'parquet' needs --input, the file of the table"
    )
  encoding.check_texts(values.text)
  signals = Signals('stopping')
  signals.install()
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      paths = on_exit.enter_context(run_flags.opened(workdir))
      file = on_exit.enter_context(_opened(values))
    import_frozen('experiments.training.prediction')
    from experiments.command import processes
    from experiments.training import prediction

    processes.require_one('experiments.predict')
    predictor = load(
      paths,
      values.checkpoint,
      values.batch_size,
      values.min_probability,
      values.calibrated,
    )
    if not isinstance(predictor, prediction.Predictor):
      raise UserError(
        f'--workdir={workdir} was trained on config.task = '
        f'{predictor.run.settings.task}, which predicts tokens and no labels; '
        'give --prompt, a text that it goes on from'
      )
    trained = predictor.runs[0].settings.data.further()
    if values.text:
      with at('--text'):
        texts = [trained.text_of([text]) for text in values.text]
      rows = (
        ({readers.TEXT: t}, text)
        for t, text in zip(values.text, texts, strict=True)
      )
    else:
      options = input_rows.options_of(trained, values.input or '', changed)
      rows = _rows(values, options, file)
    windows = input_rows.windows(rows, predictor.window, file)
    try:
      count = _predict(values, predictor, windows, signals)
      if not values.json:
        app.print_result({'count': count, **predictor.steps})
    except BrokenPipeError:
      # The reader of standard output, such as `head`, has read enough.
      app.drop_output()


def _generate(values, workdir: str) -> None:
  """Prints the prompt and what follows it."""
  if values.text or values.input is not None or values.json:
    raise UserError('--prompt excludes --text, --input and --json')
  encoding.check_texts([values.prompt])
  import_frozen('experiments.training.generation')
  from experiments.command import processes
  from experiments.training import generation

  sampling = generation.Sampling(values.temperature, values.top_p, values.seed)
  sampling.check()
  processes.require_one('experiments.predict')
  generator = load(workdir, values.checkpoint)
  if not isinstance(generator, generation.Generator):
    raise UserError(
      '--prompt needs a language model, a run of config.task = next_token'
    )
  text = generator.generate(
    values.prompt, values.tokens, **dataclasses.asdict(sampling)
  )
  app.print_lines([values.prompt + text])
  result = {'prompt': values.prompt, 'text': text, 'step': generator.run.step}
  app.print_result(result)


def _opened(values):
  """The file of --input, or standard input."""
  if values.text:
    return contextlib.nullcontext()
  if values.input is None:
    if sys.stdin is None:
      raise UserError('standard input is closed; give --text or --input')
    return contextlib.nullcontext(sys.stdin.buffer)
  try:
    return open(values.input, 'rb')
  except OSError as error:
    raise UserError(f'--input={values.input}: {error.strerror}') from error


def _rows(values, options: Text, file) -> Iterator[tuple[dict, Any]]:
  """The rows of the input, each with its text, or its pair of texts."""
  name = values.input or 'standard input'
  blank = {readers.TEXT: ''} if options.format == 'lines' else {}
  for number, texts, row in readers.rows(
    options, name, options.text_columns, True, file
  ):
    taken = [key for key in _ANSWER if key in row]
    if taken and values.json:
      raise UserError(
        f'{name} row {number}: {taken[0]!r} is a key of the answer; rename it'
      )
    text = ('', '') if options.has_pairs else ''
    if texts is not None:
      with at(f'{name} row {number}'):
        text = options.text_of(texts)
    yield row or blank, text


def _predict(values, predictor, windows, signals: Signals) -> int:
  """Prints predictions window by window; returns the number of rows.

  Raises:
    Interrupted: a signal was received.
  """
  count = num_truncated = num_empty = first_empty = 0
  report = Reporter('predicted {} texts')
  for window in _interruptible(windows, signals):
    answers = predictor([text for _, text in window])
    rows = [row for row, _ in window]
    line = _json_line if values.json else _text_line
    app.print_lines(map(line, rows, answers))
    signals.check()
    for number, answer in enumerate(answers, count + 1):
      if answer.is_empty:
        num_empty, first_empty = num_empty + 1, first_empty or number
    num_truncated += sum(answer.is_truncated for answer in answers)
    count += len(rows)
    report.add(len(rows))
  if num_empty:
    log(
      f'WARNING: {num_empty} of {count} texts are empty and have no label, '
      f'first: text {first_empty}'
    )
  if num_truncated:
    log(
      f'{num_truncated} of {count} texts are truncated to '
      f'{predictor.max_length} tokens (config.data.max_length)'
    )
  return count


def _interruptible(windows: Iterator, signals: Signals) -> Iterator:
  """Yields the windows; each of them may wait for its texts.

  Raises:
    Interrupted: a signal was received, at once while waiting.
  """
  while True:
    with signals.at_once():
      window = next(windows, None)
    if window is None:
      return
    yield window


def _json_line(row: dict, answer) -> str:
  answered = zip(_ANSWER, (answer.label, answer.probabilities), strict=True)
  # A date of a Parquet file is no JSON, nor is a number that is not finite.
  text = json.dumps(row, default=str)
  record = json.loads(text, parse_constant=lambda _: None)
  return json.dumps(record | dict(answered))


def _label_cells(answer) -> tuple[str, str]:
  """(label, its probability); several are joined with commas."""
  label, probabilities = answer.label, answer.probabilities
  if label is None:
    return '(empty)' if answer.is_empty else '(unsure)', ''
  if probabilities is None:
    return f'{label:.6g}', ''
  labels = label if isinstance(label, list) else [label]
  shown = (f'{probabilities[label]:.4f}' for label in labels)
  return ', '.join(labels) or '(none)', ', '.join(shown)


def _text_line(row: dict, answer) -> str:
  label, probability = _label_cells(answer)
  shown = ('' if value is None else str(value) for value in row.values())
  cells = (' '.join(text.split()) for text in shown)
  return '\t'.join([label, probability, *cells])


if __name__ == '__main__':
  app.run(main, _define, __doc__)
