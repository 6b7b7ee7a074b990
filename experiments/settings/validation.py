"""Checks of values that depend on each other; each is checked before.

No file is read: whether one exists is checked by the commands that read it.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax

from experiments.command import fields
from experiments.command.calls import Call
from experiments.command.errors import UserError, one_of
from experiments.data.labels import Classes, Numbers, Similarities
from experiments.data.text_files import Text
from experiments.data.token_labels import TokenLabels
from experiments.settings import parts
from selfattn.pools import POOLS


def check(settings) -> None:
  """UserError for an option or a value that is not allowed, with its key."""
  data, model, flat = settings.data, settings.model, settings.flat()
  if jax.config.read('jax_enable_x64'):
    raise UserError(
      'JAX_ENABLE_X64 is set, and training computes in float32: unset it'
    )

  def require(holds: Any, key: str, allowed: str) -> None:
    if not holds:
      raise UserError(f'config.{key} = {flat[key]!r} must be {allowed}')

  _check_folds(data, require)
  _check_labels(data.text, settings.task, require)
  require(
    not data.is_stream or settings.task.entry.reads_streams,
    'task',
    f'next_token, or one that reads streams, for config.data.source = '
    f'{data.source}',
  )
  _check_pairs(settings, require)
  _check_apart(settings, require)
  one_of(
    settings.checkpoint.best_metric,
    settings.metrics,
    'checkpoint.best_metric',
  )
  _check_train(settings, require)
  settings.train.curriculum.make()
  require(
    settings.train.curriculum.name == 'whole' or data.pair_length is None,
    'train.curriculum',
    'whole for pairs, whose second text it would cut',
  )
  _check_optimizers(settings.optimizer)
  _check_data(data)
  _check_token_labels(data.dataset(), settings.task, require)
  encoder = parts.encoder(model)
  parts.check_encoder(model, encoder, None)
  _check_task(settings.task, model, encoder)
  _check_best_length(settings, encoder)
  _check_measures(settings, encoder)
  _checked(model.head)
  pool = _checked(model.pool)
  if pool.uses_cls:
    _check_cls(data, model, encoder)
  if 'position' in fields.sizes(type(encoder)):
    _check_length(data, model, encoder.position, pool)


def _check_train(settings, require) -> None:
  train = settings.train
  updates = settings.optimizer.warmup_steps
  require(
    type(updates) is int and updates <= train.steps,
    'optimizer.warmup_steps',
    'below 1, a share of the run, or updates, at most config.train.steps = '
    f'{train.steps}',
  )
  require(
    0 <= train.grad_accum_steps <= train.batch_size
    and train.batch_size % (train.grad_accum_steps or 1) == 0,
    'train.grad_accum_steps',
    f'0 or a divisor of config.train.batch_size = {train.batch_size}',
  )
  require(
    all(type(n) is int and n >= 1 for n in train.eval_lengths)
    and (not train.eval_lengths or settings.data.is_stream),
    'train.eval_lengths',
    '(), or numbers of tokens for a stream',
  )
  require(
    not (_checked(settings.model.embeddings).file and train.init_from),
    'model.embeddings',
    f'random for config.train.init_from = {train.init_from!r}, whose run has '
    'token embeddings',
  )


def _checked(call: Call) -> Any:
  """An instance of an entry, whose options it has checked."""
  made = call.make()
  with call.checked():
    made.check()
  return made


def _check_data(data) -> None:
  source = data.dataset()
  if source.is_generated and data.dir:
    raise UserError(
      f'config.data.dir = {data.dir!r} must be empty for config.data.source = '
      f'{data.source}, which needs no file'
    )
  with data.source.checked():
    source.check(data.dir)
  _checked(data.vocabulary)


def _check_pairs(settings, require) -> None:
  if settings.data.pair_length is None:
    require(
      settings.model.pair_positions == 'run_on',
      'model.pair_positions',
      "'run_on' where texts are no pairs (config.data.text.join)",
    )
    return
  require(
    settings.task.entry.labels is not None,
    'task',
    'one that reads labels, such as classify, for pairs of texts '
    '(config.data.text.join)',
  )
  require(
    settings.data.max_length >= 4,
    'data.max_length',
    'at least 4 for pairs of texts: a token of each, and two [SEP]',
  )


def _check_apart(settings, require) -> None:
  compares, is_apart = (
    settings.task.entry.compares_texts,
    settings.data.num_apart,
  )
  require(
    compares or not is_apart,
    'task',
    'one that compares texts, such as contrastive, for config.data.text.join = '
    "'apart'",
  )
  require(
    is_apart or not compares,
    'data.text.join',
    f"'apart' for config.task = {settings.task}, which compares texts",
  )
  require(
    not compares or settings.train.batch_size > 1,
    'train.batch_size',
    f'at least 2 for config.task = {settings.task}, which compares texts',
  )
  require(
    not compares or settings.train.grad_accum_steps <= 1,
    'train.grad_accum_steps',
    f'0 or 1 for config.task = {settings.task}, which compares all texts of a '
    'batch',
  )


def _check_labels(text: Text, task: Call, require) -> None:
  labels = task.entry.labels
  require(
    text.label_column != ''
    or text.label_columns
    or labels is None
    or labels.is_optional,
    'data.text.label_column',
    f'a column for config.task = {task}, which reads labels',
  )
  require(
    not text.labels or labels is None or labels.is_listable,
    'data.text.labels',
    f'empty for config.task = {task}, whose labels cannot be listed',
  )
  require(
    not text.label_depth or not isinstance(labels, Numbers | TokenLabels),
    'data.text.label_depth',
    f'0 for config.task = {task}, whose labels have no levels',
  )
  for name in ('label_columns', 'label_separator'):
    require(
      not getattr(text, name)
      or not isinstance(labels, Classes | Numbers | TokenLabels | Similarities),
      f'data.text.{name}',
      f'empty for config.task = {task}; multilabel has texts of several labels',
    )


def _check_token_labels(source, task: Call, require) -> None:
  labels = task.entry.labels
  if labels is None or not source.is_generated:
    return
  kind = 'tokens' if source.has_token_labels else 'texts'
  require(
    isinstance(labels, TokenLabels) == source.has_token_labels,
    'task',
    f'one that reads labels of {kind} for config.data.source, such as '
    + ('classify_tokens' if source.has_token_labels else 'classify'),
  )


def _check_folds(data, require) -> None:
  require(data.num_folds != 1, 'data.num_folds', 'at least 2, or 0 for none')
  source = data.source.entry
  require(
    not (data.num_folds and (source.is_generated or source.is_stream)),
    'data.num_folds',
    f'0 for config.data.source = {data.source.name!r}, which has no folds',
  )
  require(
    not data.group_column
    or (
      issubclass(source, Text)
      and not source.is_stream
      and data.text.format.entry.has_columns
    ),
    'data.split_by',
    "'text' or 'sentence' for data without columns: config.data.source = "
    f'{data.source}, config.data.text.format = {data.text.format}',
  )
  require(
    data.fold < max(data.num_folds, 1),
    'data.fold',
    f'less than config.data.num_folds = {data.num_folds}'
    if data.num_folds
    else '0 for config.data.num_folds = 0',
  )
  require(
    not (data.num_folds and data.test_fraction),
    'data.test_fraction',
    f'0 where config.data.num_folds = {data.num_folds}, of which one is test',
  )


def _check_optimizers(optimizer) -> None:
  optimizer.schedule.make()
  for name, group in optimizer.groups_by_name().items():
    if not 0 <= group.learning_rate_scale < float('inf'):
      raise UserError(
        f'config.optimizer.groups: {name}.learning_rate_scale = '
        f'{group.learning_rate_scale} must be at least 0 and finite'
      )
  for group, call in optimizer.methods_by_group().items():
    allowed = call.entry.only
    if allowed and group not in allowed:
      raise UserError(
        f'config.optimizer: {call.name} is for {" or ".join(allowed)} alone; '
        f"set config.optimizer.groups = '{allowed[0]}(optimizer={call.name})'"
      )
    _checked(call)


def _check_task(task: Call, model, encoder) -> None:
  if _checked(task).is_causal and not encoder.causal:
    raise UserError(
      f'config.task = {task} needs a causal encoder, and '
      f'config.model.encoder = {model.encoder} is not; set '
      "'attention(causal=True)' or 'rnn(bidirectional=False)'"
    )


def _check_best_length(settings, encoder) -> None:
  best = settings.checkpoint.best_metric
  labels = [call.label for call in settings.train.measures]
  for length in settings.train.eval_lengths:
    reason = parts.unsupported_length(settings.model, encoder, length)
    of_length = {f'{name}_{length}' for name in ('bits_per_byte', *labels)}
    if best in of_length and reason:
      raise UserError(
        f'config.checkpoint.best_metric = {best!r} needs a model that reads '
        f'{length} tokens, and this one does not: {reason}'
      )


def _check_measures(settings, encoder) -> None:
  for call in settings.train.measures:
    of_training = ('gradient_norm', 'learning_rate')
    if call.label in (*settings.task.make().all_metrics(), *of_training):
      raise UserError(
        f'config.train.measures = {call} has the name of a metric of '
        f'config.task = {settings.task}; rename the class'
      )
    made = call.make()
    with call.checked():
      made.check(encoder)


def _check_cls(data, model, encoder) -> None:
  reason = parts.unsupported_cls(model, encoder, data.max_length)
  if reason:
    *some, last = (name for name, cls in POOLS.items() if not cls.uses_cls)
    raise UserError(
      f'config.model.pool = {model.pool} reads the vector of [CLS], which '
      f'{reason} (config.model.encoder = {model.encoder}); '
      f'use {", ".join(some)} or {last}'
    )


def _check_length(data, model, position, pool) -> None:
  length = data.max_length + pool.uses_cls
  sampled = model.position_sampling.make()
  with model.position_sampling.checked():
    length = sampled.max_length(length)
  calls = itertools.chain.from_iterable(model.position)
  layers = map(position.of_layer, range(len(model.position)))
  methods = [method for layer in layers for _, method in layer.parts]
  for call, part in zip(calls, methods, strict=True):
    if sampled.is_real and not part.supports_real_positions:
      raise UserError(
        f'config.model.position_sampling = {model.position_sampling} gives '
        f'position ids that are no integers, which config.model.position = '
        f'{call} does not support'
      )
    limit, option = part.max_length(), part.length_option
    if limit is not None and length > limit:
      more = f'raise {option} of it or ' if option else ''
      raise UserError(
        f'config.model.position = {call} supports at most {limit} positions, '
        f'and texts may need {length}; {more}lower config.data.max_length'
      )
