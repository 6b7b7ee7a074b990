"""Inspects a model: attention maps, head importance, position encodings.

    bash scripts/run.sh experiments.inspect --workdir=runs/sst2 \\
        --text="not a good film , a great one" --split=validation
    bash scripts/run.sh experiments.inspect --output=runs/rotary \\
        --config.model.position.name=rotary

With --text, the attention of every layer and head, as figures and as an HTML
page, and the weights of attentive pooling; with --split, statistics of the
heads on the texts of a split, and accuracy as heads are ablated; always, the
position encoding, of a trained model or, without --workdir, of an untrained
model of --config, at initialisation. Each figure is a PNG, with its numbers and
the names of their axes as .json. The last line of standard output is one JSON
object. With several processes, all restore the run, and process 0 does the
rest.
"""

from __future__ import annotations

import functools
import os

import jax
import numpy as np

from experiments.command import app, distributed, processes
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding
from experiments.data.text_files import SPLITS
from experiments.inspection import (
  ablation,
  figures,
  head_analysis,
  pages,
  position_figures,
)
from experiments.inspection import flags as inspection_flags
from experiments.settings import extensions, reference, stored
from experiments.settings import settings as settings_lib
from experiments.settings.settings import Settings
from experiments.training import build, evaluation
from experiments.workdir import buckets
from selfattn.classifier import embed


def _define(values) -> None:
  flags = app.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a trained run; none: an untrained model.'),
    ('output', None, 'Folder to write to; if not given, WORKDIR/inspect.'),
    ('checkpoint', 'best', 'Checkpoint to load: best, last, or a step.'),
    ('data_dir', None, 'Folder of the data, if it has moved since training.'),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_multi_string(
    'text',
    [],
    'A text to show the attention of; may be repeated.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'split',
    None,
    SPLITS,
    'Split to analyse heads on; none: no analysis.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'num_examples',
    512,
    'Largest number of examples of --split to use.',
    1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'length',
    0,
    'Number of positions to draw; 0: config.data.max_length.',
    0,
    flag_values=values,
  )
  flags.DEFINE_list(
    'columns',
    ['6', '7', '8', '9'],
    'Columns of the position encoding P to draw as curves.',
    flag_values=values,
  )
  inspection_flags.define_member(values)
  distributed.define(values)


def main(values) -> None:
  """Restores or initialises a model, and writes the figures."""
  workdir = values.workdir
  _check(values)
  cluster = distributed.find(values, os.environ)
  output = values.output or os.path.join(workdir, 'inspect')
  if workdir is None:
    if cluster is not None and cluster.index:
      return  # process 0 draws an untrained model alone
    extensions.add(values.config, values.config_path)
    settings = settings_lib.from_config(values.config)
    classifier = build.model(settings, vocab_size=1, num_classes=2)
    _length(values, settings, classifier)
    head_analysis.require_member(settings, values.member)
    app.make_folder(output, 'output')
    init = functools.partial(build.init_state, settings, classifier)
    state = jax.jit(init)(build.hparams(settings))
    params = head_analysis.of_member(settings, values.member, state.eval_params)
    found = _positions(values, settings, classifier, params, output)
    app.print_result({'output': output, 'files': found})
    return
  if cluster is not None:
    distributed.join(cluster, values.start_timeout, values.peer_timeout)
  with buckets.staged(workdir) as path:
    settings = stored.read_settings(path)
    _length(values, settings, build.model(settings, 1, 2))
    head_analysis.require_member(settings, values.member)
    app.make_folder(output, 'output')
    _, program, state = evaluation.restore_run(path, values.checkpoint)
    params = processes.gather_arrays(state.eval_params)
    result = processes.together(
      lambda: (
        processes.is_first()
        and _inspect(values, path, output, settings, program, params)
      )
    )
    if result:
      app.print_result(result | {'step': int(state.step)})


def _check(values) -> None:
  """UserError for flags that exclude or require each other."""
  workdir = values.workdir
  if workdir is None:
    for name in ('text', 'split'):
      if values[name].value:
        raise UserError(
          f'--{name} needs --workdir, the folder of a trained run'
        )
    if not values.output:
      raise UserError('--output or --workdir is required')
  else:
    if app.has_config(values):
      raise UserError(f'--workdir={workdir} has its own config; drop --config')
    if not values.output and workdir.startswith(buckets.SCHEMES):
      raise UserError(
        f'--output is required: --workdir={workdir} is read-only here'
      )
  encoding.check_texts(values.text)
  for text in values.columns:
    if not text.isdecimal():
      raise UserError(f'--columns={text} is not a column index of P, from 0')


def _inspect(values, path, output, settings, program, params) -> dict:
  # One device is enough, even if the run was sharded.
  params = jax.device_put(params, jax.local_devices()[0])
  params = head_analysis.of_member(settings, values.member, params)
  classifier = program.classifier
  tokenizer = encoding.read_tokenizer(path)
  tokens = head_analysis.names(tokenizer)
  texts = encoding.encode(tokenizer, values.text, settings.data.max_length)
  head_analysis.require_tokens(values.text, texts)
  split = _examples(values, settings, path)
  result = {'output': output}
  attended = list(
    head_analysis.attention_maps(classifier, params, texts, tokens)
  )
  files = _positions(values, settings, classifier, params, output)
  for number, maps in enumerate(attended):
    name = f'attention-{number}'
    files += figures.attention(output, name, maps)
    files += figures.rollout(output, f'{name}-rollout', maps)
    for (part, layer), P in maps.terms.items():
      suffix = position_figures.file_suffix(part, layer)
      files += figures.term(
        output, f'position-{number}{suffix}', P, maps.tokens
      )
    if maps.pool_weights is not None:
      files += figures.pooling(output, f'pooling-{number}', maps)
    log(figures.most_attended(maps))
  if attended:
    pages.write(
      os.path.join(output, 'attention.html'),
      'Attention',
      [pages.attention(list(zip(values.text, attended, strict=True)))],
    )
    files.append('attention.html')
  if split is not None:
    found, drawn = _heads(program, params, *split, tokens, output)
    result |= found
    files += drawn
  return result | {'files': files}


def _heads(program, params, examples, lengths, tokens, output):
  """(statistics and ablation of heads, names of the files)."""
  classifier = program.classifier
  rows = head_analysis.statistics_rows(
    head_analysis.statistics(classifier, params, examples, lengths, tokens)
  )
  accuracies = None
  reason = ablation.unsupported_reason(classifier, params)
  if reason is None:
    ablated, accuracies = ablation.ablate(
      classifier, params, examples, lengths, program.task
    )
    rows = [row | more for row, more in zip(rows, ablated, strict=True)]
  else:
    log(f'WARNING: heads are not ablated: {reason}')
  files = figures.heads(output, rows)
  if accuracies is not None:
    files += figures.ablation(output, accuracies)
  log(figures.heads_table(rows))
  return {'heads': rows, 'ablation': accuracies}, files


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
  """Number of positions to draw.

  Raises:
    UserError: the method does not support so many, or the encoder has no heads.
  """
  head_analysis.require_heads(classifier)
  length = values.length or settings.data.max_length
  position = getattr(classifier.encoder, 'position', None)
  most = position and position.max_length()
  if most is not None and length > most:
    if values.length:
      raise UserError(
        f'--length={length} is more than the {most} positions that the method '
        'supports'
      )
    length = most
  if length < 2:
    raise UserError(f'--length={length} must be at least 2')
  return length


def _positions(values, settings, classifier, params, output) -> list[str]:
  if not hasattr(classifier.encoder, 'position'):
    return []
  # The same token at all positions, so that only positions differ.
  shape = (1, _length(values, settings, classifier))
  ids_BL = np.full(shape, classifier.vocab_size // 2)
  return position_figures.draw(
    output,
    classifier.encoder,
    params['encoder'],
    embed(params, ids_BL).astype(classifier.dtype),
    ids_BL,
    settings.data.max_length,
    [int(column) for column in values.columns],
  )


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
