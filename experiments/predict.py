"""Predicts the labels of texts with a trained run.

    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --text="not a good film , a great one" --attention=map.png
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 --json < texts

Without --text or --file, texts are read from standard input, one text per line.
With --json, every line of output is one JSON object; otherwise one line per
text, then one JSON object. An empty text has no label: null, or (empty).
"""

from __future__ import annotations

import json
import os
import sys

import jax
import numpy as np

from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import loading
from experiments.inspection import figures, head_analysis
from experiments.learning.tasks import TASKS
from experiments.settings import stored
from experiments.training.evaluation import evaluate, restore_run
from experiments.workdir import buckets


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
  flags.DEFINE_bool(
    'json',
    False,
    'Print one JSON object per text, with all probabilities.',
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
    'NAME.png or NAME.svg: draw the attention of one text there; writes '
    'NAME.png, NAME.svg, NAME.npz and NAME.json.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'batch_size', 64, 'Texts per batch.', 1, flag_values=values
  )
  head_analysis.define_member(values)


def _texts(values) -> list[str]:
  if values.text is not None and values.file is not None:
    raise UserError('--text and --file exclude one another')
  if values.text is not None:
    return values.text
  try:
    if values.file is not None:
      with open(values.file, encoding='utf-8-sig') as file:
        return file.read().splitlines()
    return sys.stdin.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'cannot read texts: {error}') from error


def main(values) -> None:
  """Restores a run, predicts and prints."""
  workdir = app.required(values, 'workdir')
  texts = _texts(values)
  loading.check_texts(texts)
  if values.attention is None and values.member:
    raise UserError('--member requires --attention')
  if values.attention is not None:
    _check_figure(values.attention)
    if len(texts) != 1:
      raise UserError(f'--attention needs exactly one text, not {len(texts)}')
  with buckets.staged(workdir) as path:
    _predict(values, path, texts)


def _check_figure(path: str) -> None:
  """UserError if a figure cannot be written there, or would replace a file."""
  stem, kind = os.path.splitext(os.path.abspath(path))
  if kind not in ('.png', '.svg'):
    raise UserError(f'--attention={path} is not NAME.png or NAME.svg')
  app.make_folder(os.path.dirname(stem), 'attention')
  there = [os.path.exists(f'{stem}.{k}') for k in figures.KINDS]
  if any(there) and not all(there):
    raise UserError(
      f'--attention={path} would overwrite a file of another program; it '
      f'writes NAME{", NAME".join(f".{k}" for k in figures.KINDS)}'
    )


def _predict(values, path: str, texts: list[str]) -> None:
  settings = stored.read_settings(path)
  head_analysis.require_member(settings, values.member)
  task = settings.task.name
  if not TASKS[task].has_labels:
    raise UserError(
      f'--workdir={path} was trained on config.task.name = {task!r}, which '
      'predicts tokens and no labels; use experiments.evaluate for its scores '
      'on a split, experiments.inspect --text for its attention'
    )
  settings, program, state = restore_run(path, values.checkpoint)
  labels = loading.read_facts(path)['labels']
  probabilities = np.zeros((0, len(labels)))
  is_empty = np.zeros(len(texts), bool)
  if texts:
    tokenizer = loading.read_tokenizer(path)
    examples = loading.encode(tokenizer, texts, settings.data.max_length)
    is_empty = examples.lengths == 0
    if is_empty.any():
      log(
        f'WARNING: {is_empty.sum()} of {len(texts)} texts are empty and have '
        f'no label, first: text {is_empty.argmax() + 1}'
      )
    longest = max(1, int(examples.lengths.max()))
    _, logits = evaluate(
      program,
      state.eval_params,
      examples,
      min(values.batch_size, len(texts)),
      (longest,),
    )
    probabilities = np.asarray(jax.nn.softmax(logits, axis=-1))
    if values.attention is not None:
      head_analysis.require_tokens(texts, examples)
      names = head_analysis.names(tokenizer)
      params = head_analysis.of_member(
        settings, values.member, state.eval_params
      )
      maps = head_analysis.attention_maps(
        program.classifier, params, examples, names
      )
      stem, _ = os.path.splitext(os.path.abspath(values.attention))
      figures.attention(*os.path.split(stem), next(maps))
  for text, row, empty in zip(
    texts, probabilities.tolist(), is_empty, strict=True
  ):
    label = None if empty else labels[int(np.argmax(row))]
    if values.json:
      each = None if empty else dict(zip(labels, row, strict=True))
      print(json.dumps({'text': text, 'label': label, 'probabilities': each}))
    else:
      print('(empty)' if empty else f'{label}  {max(row):.4f}  {text}')
  if not values.json:
    app.print_result({'count': len(texts), 'step': int(state.step)})


if __name__ == '__main__':
  app.run(main, _define, __doc__)
