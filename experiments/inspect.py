"""Opens a model up: where it attends, what each head is for, its positions.

    bash scripts/run.sh experiments.inspect --workdir=runs/sst2 \\
        --text="not a good film , a great one" --split=validation
    bash scripts/run.sh experiments.inspect --output=runs/rotary \\
        --config.model.position.name=rotary

With --text, the attention of every layer and head, as pictures and as a page
for a browser; with --split, what the heads do on labelled texts and how far
the model needs them; always, the position encoding, of a trained model or,
without --workdir, of a fresh one of --config. Each picture is written as PNG
and SVG, beside its numbers as .npz and the names of their axes as .json. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import os

import jax
import numpy as np

from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import loading
from experiments.data.text_files import SPLITS
from experiments.inspection import (
  figures,
  head_analysis,
  pages,
  position_figures,
)
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import build, evaluation
from experiments.workdir import buckets


def _define(values) -> None:
  flags = app.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a trained run; none: a fresh model.'),
    ('output', None, 'Folder of what is written; WORKDIR/inspect.'),
    ('checkpoint', 'best', 'best, last, or a step.'),
    ('data_dir', None, 'Where the data is, if not where it was.'),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_multi_string(
    'text', [], 'A text to attend to; may be repeated.', flag_values=values
  )
  flags.DEFINE_enum(
    'split',
    None,
    SPLITS,
    'Labelled texts to judge heads by.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'num_examples', 512, 'Of --split, at most.', 1, flag_values=values
  )
  flags.DEFINE_integer(
    'length',
    0,
    'Positions drawn; 0: config.data.max_length.',
    0,
    flag_values=values,
  )
  flags.DEFINE_list(
    'columns', ['6', '7', '8', '9'], 'Of P, as curves.', flag_values=values
  )
  head_analysis.define_member(values)


def main(values) -> None:
  """Restores or makes a model, and writes what was asked for."""
  place = values.workdir
  _check(values)
  output = values.output or os.path.join(place, 'inspect')
  if place is None:
    settings = settings_lib.from_config(values.config)
    classifier = build.model(settings, vocab_size=1, num_classes=2)
    _length(values, settings, classifier)
    head_analysis.require_member(settings, values.member)
    app.make_folder(output, 'output')
    state = build.init_state(settings, classifier, build.hparams(settings))
    params = head_analysis.of_member(settings, values.member, state.params)
    found = _positions(values, settings, classifier, params, output)
    app.print_result({'output': output, 'files': found})
    return
  with buckets.staged(place) as path:
    settings = stored.read_settings(path)
    _length(values, settings, build.model(settings, 1, 2))
    head_analysis.require_member(settings, values.member)
    app.make_folder(output, 'output')
    app.print_result(_inspect(values, path, output))


def _check(values) -> None:
  """UserError for flags that do not go together."""
  place = values.workdir
  if place is None:
    for name in ('text', 'split'):
      if values[name].value:
        raise UserError(
          f'--{name} needs --workdir, the folder of a trained run'
        )
    if not values.output:
      raise UserError('--output or --workdir is missing')
  else:
    if app.has_config(values):
      raise UserError(f'--workdir={place} has its own config; drop --config')
    if not values.output and place.startswith(buckets.SCHEMES):
      raise UserError(f'--output is missing; --workdir={place} is only read')
  loading.check_texts(values.text)
  for text in values.columns:
    if not text.isdecimal():
      raise UserError(f'--columns={text} is not the number of a column of P')


def _inspect(values, path: str, output: str) -> dict:
  settings, program, state = evaluation.restore_run(path, values.checkpoint)
  # One device is enough, whatever the run had.
  params = jax.device_put(jax.device_get(state.params), jax.devices()[0])
  params = head_analysis.of_member(settings, values.member, params)
  classifier = program.classifier
  tokenizer = loading.read_tokenizer(path)
  tokens = head_analysis.names(tokenizer)
  texts = loading.encode(tokenizer, values.text, settings.data.max_length)
  head_analysis.require_tokens(values.text, texts)
  split = _examples(values, settings, path)
  result = {'output': output, 'step': int(state.step)}
  opened = list(head_analysis.opened(classifier, params, texts, tokens))
  files = _positions(values, settings, classifier, params, output)
  for number, one in enumerate(opened):
    name = f'attention-{number}'
    files += figures.maps(output, name, one)
    files += figures.rollout(output, f'{name}-rollout', one)
    log(figures.most_attended(one))
  if opened:
    pages.write(
      os.path.join(output, 'attention.html'),
      'Attention',
      [pages.attention(list(zip(values.text, opened, strict=True)))],
    )
    files.append('attention.html')
  if split is not None:
    rows, removed = head_analysis.judge(
      classifier, params, *split, tokens, program.task
    )
    files += figures.heads(output, rows, removed)
    log(figures.heads_table(rows))
    result |= {'heads': rows, 'removed': removed}
  return result | {'files': files}


def _examples(values, settings: Settings, path: str):
  """(examples, bucket lengths) of --split, or None."""
  if values.split is None:
    return None
  loaded = evaluation.load_data(settings, path, values.data_dir)
  examples = loaded.splits[values.split]
  rng = np.random.default_rng(0)
  chosen = rng.permutation(len(examples))[: values.num_examples]
  return examples.take(np.sort(chosen)), loaded.bucket_lengths


def _length(values, settings: Settings, classifier) -> int:
  """Positions to draw.

  Raises:
    UserError: the method does not have so many, or the encoder has none.
  """
  head_analysis.require_heads(classifier)
  length = values.length or settings.data.max_length
  most = classifier.encoder.position.max_length()
  if most is not None and length > most:
    if values.length:
      raise UserError(f'--length={length} is more than the {most} positions')
    length = most
  if length < 2:
    raise UserError(f'--length={length} must be at least 2')
  return length


def _positions(values, settings, classifier, params, output) -> list[str]:
  return position_figures.draw(
    output,
    classifier.encoder,
    params['encoder'],
    settings.model.embed_dim,
    _length(values, settings, classifier),
    settings.data.max_length,
    [int(column) for column in values.columns],
  )


if __name__ == '__main__':
  app.run(main, _define, __doc__, takes_config=True)
