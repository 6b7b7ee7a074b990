"""Checks of the values of settings; their types are checked before.

No file is read: whether one exists is checked by the commands that read it.
"""

from __future__ import annotations

from typing import Any

import jax

from experiments.command.errors import UserError, one_of
from experiments.data.datasets import DATASETS, GENERATED
from experiments.data.splits import GROUPINGS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning import tasks
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.schedules import SCHEDULES
from experiments.settings import parts
from selfattn.dropout import MAX_RATE
from selfattn.pools import POOLS

DTYPES = ('float32', 'bfloat16')

# What is allowed, the test of a value, and the keys that it is for.
_RANGES = {
  'at least 1': (
    lambda value: value >= 1,
    """data.max_length data.num_buckets
    model.num_layers model.num_heads model.embed_dim model.mlp_dim
    train.steps train.batch_size train.log_every
    train.eval_every train.eval_batch_size
    checkpoint.every_steps checkpoint.max_to_keep""",
  ),
  f'at least 0 and less than 1, {MAX_RATE:.8f} at most': (
    lambda value: 0 <= value <= MAX_RATE,
    """model.dropout_rate model.attention_dropout_rate
    model.word_dropout_rate train.ema_decay""",
  ),
  'at least 0 and less than 1': (
    lambda value: 0 <= value < 1,
    """optimizer.label_smoothing
    data.validation_fraction data.test_fraction""",
  ),
  'at least 0': (
    lambda value: value >= 0,
    'train.fsdp_min_size data.num_folds data.fold',
  ),
  'at least 0 and finite': (
    lambda value: 0 <= value < float('inf'),
    'optimizer.warmup_steps optimizer.weight_decay optimizer.clip_norm',
  ),
  'greater than 0 and finite': (
    lambda value: 0 < value < float('inf'),
    'optimizer.learning_rate model.embed_init_std',
  ),
  'at least 0 and less than 2147483648': (
    lambda value: 0 <= value < 2**31,
    'seed data.seed',
  ),
}


def check(settings, flat: dict[str, Any]) -> None:
  """Checks ranges, and values that exclude each other.

  Args:
    settings: a Settings.
    flat: its values by dotted key.

  Raises:
    UserError: a value is not allowed; with the key to change.
  """
  data, model = settings.data, settings.model
  optimizer, train = settings.optimizer, settings.train
  if jax.config.jax_enable_x64:
    raise UserError(
      'JAX_ENABLE_X64 is set, and training computes in float32: unset it'
    )

  def require(holds: bool, key: str, allowed: str) -> None:
    if not holds:
      raise UserError(f'config.{key} = {flat[key]!r} must be {allowed}')

  for allowed, (holds, keys) in _RANGES.items():
    for key in keys.split():
      require(holds(flat[key]), key, allowed)

  _check_folds(data, require)
  one_of(model.dtype, DTYPES, 'model.dtype')
  one_of(optimizer.schedule, SCHEDULES, 'optimizer.schedule')
  metrics = tasks.TASKS[settings.task.name].metrics
  one_of(settings.checkpoint.best_metric, metrics, 'checkpoint.best_metric')
  updates = optimizer.warmup_steps
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
  for group, own in optimizer.groups.items():
    require(
      0 <= own.learning_rate_scale < float('inf'),
      f'optimizer.groups.{group}.learning_rate_scale',
      'at least 0 and finite',
    )
  _check_optimizers(optimizer)
  DATASETS[data.source.name](**data.source.options).check(data.dir)
  VOCABULARIES[data.vocabulary.name](**data.vocabulary.options).check()
  encoder = parts.encoder(model)
  parts.check_encoder(model, encoder, None)
  _check_task(settings, encoder)
  parts.head(model)
  pool = parts.pool(model)
  if pool.uses_cls:
    _check_cls(data, model, encoder)
  if 'position' in parts.sizes(type(encoder)):
    _check_length(data, model, encoder.position, pool)


def _check_folds(data, require) -> None:
  require(data.num_folds != 1, 'data.num_folds', 'at least 2, or 0 for none')
  require(
    not (data.num_folds and data.source.name in GENERATED),
    'data.num_folds',
    f'0 for config.data.name = {data.source.name!r}, which has a test split',
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
  one_of(data.split_by, GROUPINGS, 'data.split_by')


def _check_optimizers(optimizer) -> None:
  chosen = {'': optimizer.method.name}
  chosen |= {name: own.name for name, own in optimizer.groups.items()}
  for group, name in chosen.items():
    allowed = OPTIMIZERS[name].only if name else ()
    if allowed and group not in allowed:
      key = f'optimizer.groups.{group}' if group else 'optimizer'
      raise UserError(
        f'config.{key}.name = {name!r} is for {" or ".join(allowed)} alone; '
        f'set config.optimizer.groups.{allowed[0]}.name to it'
      )
  for name, options in optimizer.method.blocks.items():
    with parts.prefixed(f'optimizer.{name}'):
      OPTIMIZERS[name](**options).check()


def _check_task(settings, encoder) -> None:
  choice, task = settings.task, tasks.make(settings.task)
  with parts.prefixed(f'task.{choice.name}'):
    task.check()
  if task.is_causal and not encoder.causal:
    name = settings.model.encoder.name
    able = name if 'causal' in settings.model.encoder.options else 'attention'
    raise UserError(
      f'config.task.name = {choice.name!r} needs a causal encoder, and '
      f'config.model.encoder.name = {name!r} is not; set '
      f'config.model.encoder.{able}.causal=True, or choose rnn with '
      'config.model.encoder.rnn.bidirectional=False'
    )


def _check_cls(data, model, encoder) -> None:
  reason = parts.unsupported_cls(model, encoder, data.max_length)
  if reason:
    *some, last = (name for name, cls in POOLS.items() if not cls.uses_cls)
    raise UserError(
      f'config.model.pool = {model.pool.name!r} reads the vector of [CLS], '
      f'which {reason} (config.model.encoder.name = {model.encoder.name!r}); '
      f'use {", ".join(some)} or {last}'
    )


def _check_length(data, model, position, pool) -> None:
  sampling = model.position_sampling.name
  length = data.max_length + pool.uses_cls
  with parts.prefixed(f'model.position_sampling.{sampling}'):
    sampled = parts.sampling(model)
    length = sampled.max_length(length)
  parted = zip(model.position.blocks, position.parts, strict=True)
  for name, (_, part) in parted:
    if sampled.is_real and not part.supports_real_positions:
      raise UserError(
        f'config.model.position_sampling.name = {sampling!r} gives position '
        f'ids that are no integers, which {name!r} of '
        'config.model.position.name does not support'
      )
    limit, option = part.max_length(), part.length_option
    if limit is not None and length > limit:
      more = (
        f'raise config.model.position.{name}.{option} or ' if option else ''
      )
      raise UserError(
        f'config.model.position.name = {model.position.name!r} supports at '
        f'most {limit} positions, and texts may need {length}; {more}'
        'lower config.data.max_length'
      )
