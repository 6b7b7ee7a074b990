"""Rows of texts and what answers them: lines of JSON, of cells, or an array."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.command import app
from experiments.command.errors import UserError, at
from experiments.command.log import Reporter, log
from experiments.command.signals import Signals
from experiments.data import input_rows, readers
from experiments.data.text_files import Text
from experiments.data.text_format import TEXT


def rows(
  values, trained: Text, file, keys: Sequence[str]
) -> Iterator[tuple[dict, Any]]:
  """The rows to answer, each with its text, or its pair of texts.

  Args:
    values: flags of experiments.predict.
    trained: how the files of the run were read.
    file: of --input, or standard input.
    keys: those of an answer, which are no columns where it is JSON.

  Raises:
    UserError: a row cannot be read.
  """
  if values.text:
    with at('--text'):
      texts = [trained.text_of([text]) for text in values.text]
    for written, text in zip(values.text, texts, strict=True):
      yield {TEXT: written}, text
    return
  changed = input_rows.changed(values)
  options = input_rows.options_of(trained, values.input or '', changed)
  name = values.input or 'standard input'
  blank = {} if options.format.entry.has_columns else {TEXT: ''}
  for number, texts, row in readers.rows(
    options, name, options.text_columns, True, file
  ):
    taken = [key for key in keys if key in row]
    if taken and values.json:
      raise UserError(
        f'{name} row {number}: {taken[0]!r} is a key of the answer; rename it'
      )
    text = ('', '') if options.has_pairs else ''
    if texts is not None:
      with at(f'{name} row {number}'):
        text = options.text_of(texts)
    yield row or blank, text


def write(
  predictor, windows: Iterator[list], signals: Signals, show: Callable
) -> int:
  """Shows the answers window by window; returns the number of rows.

  A window is a list of pairs (row, its text), and a row has values by column.
  Interrupted if a signal was received.

  Args:
    show: takes the rows of a window and their answers.
  """
  count = num_truncated = num_empty = first_empty = 0
  report = Reporter('predicted {} texts')
  for window in report.counted(interruptible(windows, signals)):
    answers = predictor([text for _, text in window])
    show([row for row, _ in window], answers)
    signals.check()
    for number, answer in enumerate(answers, count + 1):
      if answer.label is None:
        num_empty, first_empty = num_empty + 1, first_empty or number
    num_truncated += sum(answer.is_truncated for answer in answers)
    count += len(window)
  if num_empty:
    log(
      f'WARNING: {num_empty} of {count} texts are empty and have no answer, '
      f'first: text {first_empty}'
    )
  if num_truncated:
    log(
      f'{num_truncated} of {count} texts are truncated to '
      f'{predictor.max_length} tokens (config.data.max_length)'
    )
  return count


def printed(as_json: bool) -> Callable:
  """Prints a line for each row: JSON, or cells with tabs between them."""
  line = _json_line if as_json else _text_line
  return lambda rows, answers: app.print_lines(map(line, rows, answers))


def npy(vectors: list[np.ndarray | None]) -> bytes:
  """A file of NumPy: float32 (texts, width), NaN for texts without tokens."""
  width = max((len(v) for v in vectors if v is not None), default=0)
  none = np.full(width, np.nan, np.float32)
  content = io.BytesIO()
  np.save(content, np.array([none if v is None else v for v in vectors]))
  return content.getvalue()


def interruptible(windows: Iterator, signals: Signals) -> Iterator:
  """The windows; Interrupted after a signal, at once while it waits for one."""
  while True:
    with signals.at_once():
      window = next(windows, None)
    if window is None:
      return
    yield window


def _json_line(row: dict, answer) -> str:
  label = answer.label
  if isinstance(label, np.ndarray):
    # The shortest numbers that are these in float32.
    label = [float(str(x)) for x in label]
  answered = {
    'prediction': label,
    'probabilities': answer.probabilities,
    'is_truncated': answer.is_truncated,
  }
  if answer.spans is not None:
    answered['spans'] = answer.spans
  # A date of a Parquet file is no JSON, nor is a number that is not finite.
  text = json.dumps(row, default=str)
  record = json.loads(text, parse_constant=lambda _: None)
  return json.dumps(record | answered, ensure_ascii=False)


def _label_cells(answer) -> tuple[str, str]:
  """(label, its probability); of several, with commas between them."""
  label, probabilities = answer.label, answer.probabilities
  if label is None:
    return '(empty)', ''
  if probabilities is None:
    # A class for each word, a vector, or a number.
    if isinstance(label, list | np.ndarray):
      return ' '.join('_' if part is None else str(part) for part in label), ''
    # Rounded to what float32 holds: six digits would make large ones equal.
    return str(label), ''
  labels = label if isinstance(label, list) else [label]
  shown = (f'{probabilities[label]:.4f}' for label in labels)
  return ', '.join(labels) or '(none)', ', '.join(shown)


def _text_line(row: dict, answer) -> str:
  label, probability = _label_cells(answer)
  shown = ('' if value is None else str(value) for value in row.values())
  cells = (' '.join(text.split()) for text in shown)
  return '\t'.join([label, probability, *cells])
