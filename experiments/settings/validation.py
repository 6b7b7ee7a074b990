"""What a run's settings must satisfy, beyond their types.

No file is looked at: whether one exists is asked where it is read.
"""

from __future__ import annotations

from typing import Any

from experiments.command.errors import UserError, one_of
from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning import tasks
from experiments.learning.optimizers import SCHEDULES
from selfattn import positions
from selfattn.backends import BACKENDS
from selfattn.baselines import CELLS
from selfattn.classifier import POOLS
from selfattn.dropout import MAX_RATE
from selfattn.encoders import ACTIVATIONS, NORMS
from selfattn.kernels import why_not
from selfattn.positions.sampling import SAMPLINGS

DTYPES = ('float32', 'bfloat16')
_RNN = 'model.encoder.rnn'

# What a number must be, the test of it, and the keys it holds for.
_RANGES = {
  'at least 1': (
    lambda value: value >= 1,
    """data.max_length data.num_buckets
    model.num_layers model.num_heads model.embed_dim model.mlp_dim
    model.num_members
    train.steps train.batch_size train.log_every
    train.eval_every train.eval_batch_size
    checkpoint.every_steps checkpoint.keep""",
  ),
  f'at least 0 and less than 1, {MAX_RATE:.8f} at most': (
    lambda value: 0 <= value <= MAX_RATE,
    """model.dropout_rate model.attention_dropout_rate
    model.word_dropout_rate""",
  ),
  'at least 0 and less than 1': (
    lambda value: 0 <= value < 1,
    """optimizer.label_smoothing
    data.validation_fraction data.test_fraction""",
  ),
  'at least 0': (
    lambda value: value >= 0,
    'train.shard_from pretrain.steps',
  ),
  'at least 0 and finite': (
    lambda value: 0 <= value < float('inf'),
    """optimizer.warmup_steps optimizer.weight_decay optimizer.clip_norm
    pretrain.warmup_steps""",
  ),
  'greater than 0 and finite': (
    lambda value: 0 < value < float('inf'),
    """optimizer.learning_rate pretrain.learning_rate
    model.embed_init_std""",
  ),
  'at least 0 and less than 2147483648': (
    lambda value: 0 <= value < 2**31,
    'seed data.seed',
  ),
}


def check(settings, flat: dict[str, Any], is_stored: bool = False) -> None:
  """Values that are out of range, or do not go together.

  Args:
    settings: a Settings.
    flat: its values by dotted key.

  Raises:
    UserError: with the key to change.
  """
  data, model = settings.data, settings.model
  optimizer, train = settings.optimizer, settings.train

  def require(holds: bool, key: str, allowed: str) -> None:
    if not holds:
      raise UserError(f'config.{key} = {flat[key]!r} must be {allowed}')

  for allowed, (holds, keys) in _RANGES.items():
    for key in keys.split():
      require(holds(flat[key]), key, allowed)

  one_of(model.pool, POOLS, 'model.pool')
  one_of(model.dtype, DTYPES, 'model.dtype')
  one_of(optimizer.schedule, SCHEDULES, 'optimizer.schedule')
  metrics = tasks.TASKS[settings.task.name].metrics
  one_of(settings.checkpoint.best_metric, metrics, 'checkpoint.best_metric')
  for phase in settings.phases():
    updates = phase.settings.optimizer.warmup_steps
    key = 'pretrain' if phase.name == 'pretrain' else 'optimizer'
    require(
      type(updates) is int and updates <= phase.settings.train.steps,
      f'{key}.warmup_steps',
      'below 1, a share of the run, or updates, at most '
      f'config.{phase.name}.steps = {phase.settings.train.steps}',
    )
    key = 'pretrain.task' if phase.name == 'pretrain' else 'task'
    _check_task(phase.settings, key)
  require(
    0 <= train.accumulate <= train.batch_size
    and train.batch_size % (train.accumulate or 1) == 0,
    'train.accumulate',
    f'0 or a divisor of config.train.batch_size = {train.batch_size}',
  )
  DATASETS[data.source.name](**data.source.options).check(data.dir)
  VOCABULARIES[data.vocabulary.name](**data.vocabulary.options).check()
  if model.encoder.name == 'attention':
    _check_attention(settings, require, is_stored)
    return
  if model.encoder.name == 'cnn':
    for option in ('kernel_size', 'dilation'):
      key = f'model.encoder.cnn.{option}'
      require(flat[key] >= 1, key, 'at least 1')
  if model.encoder.name == 'rnn':
    one_of(flat[f'{_RNN}.cell'], CELLS, f'{_RNN}.cell')
    is_even = model.embed_dim % 2 == 0
    require(
      is_even or not flat[f'{_RNN}.bidirectional'],
      f'{_RNN}.bidirectional',
      f'False, or config.model.embed_dim = {model.embed_dim} even',
    )
  if model.pool == 'cls':
    raise UserError(
      "config.model.pool = 'cls' reads what attention gathers, and "
      f'config.model.encoder.name = {model.encoder.name!r} has none; '
      'use mean or max'
    )


def _check_task(settings, key: str) -> None:
  choice, task = settings.task, tasks.make(settings.task)
  try:
    task.check()
  except ValueError as error:
    raise UserError(f'config.{key}.{choice.name}.{error}') from None
  encoder = settings.model.encoder
  # Either of two options says so, whichever the encoder has.
  sees_after = not encoder.options.get('causal', False)
  if not encoder.options.get('bidirectional', True):
    sees_after = False
  if task.is_causal and sees_after:
    raise UserError(
      f'config.{key}.name = {choice.name!r} asks for what stands after a '
      f'token, which config.model.encoder.name = {encoder.name!r} sees; set '
      'config.model.encoder.attention.causal=True, or choose rnn with '
      'config.model.encoder.rnn.bidirectional=False'
    )


def _check_attention(settings, require, is_stored) -> None:
  data, model = settings.data, settings.model
  encoder = model.encoder.options
  key = 'model.encoder.attention'
  one_of(encoder['norm'], NORMS, f'{key}.norm')
  one_of(encoder['activation'], ACTIVATIONS, f'{key}.activation')
  one_of(encoder['backend'], BACKENDS, f'{key}.backend')
  if model.embed_dim % model.num_heads:
    below = model.embed_dim - model.embed_dim % model.num_heads
    near = [n for n in (below, below + model.num_heads) if n]
    raise UserError(
      f'config.model.embed_dim = {model.embed_dim} does not split into '
      f'config.model.num_heads = {model.num_heads}; '
      f'try {" or ".join(map(str, near))}'
    )
  heads = encoder['num_kv_heads'] or model.num_heads
  require(
    0 < heads <= model.num_heads and model.num_heads % heads == 0,
    f'{key}.num_kv_heads',
    f'0 or a divisor of config.model.num_heads = {model.num_heads}',
  )
  window = encoder['window']
  require(
    len(window) in (0, 2) and all(type(n) is int and n >= -1 for n in window),
    f'{key}.window',
    '() or (left, right), each at least -1',
  )
  require(
    0 <= encoder['softcap'] < float('inf'),
    f'{key}.softcap',
    'at least 0 and finite',
  )
  if encoder['causal'] and model.pool == 'cls':
    raise UserError(
      "config.model.pool = 'cls' reads the first vector, which sees only "
      f'itself when config.{key}.causal is set; use mean or max'
    )
  # It stands before the tokens, so only what is after it matters. The first
  # version trained such models.
  sees_all = not window or not -1 < window[1] < data.max_length
  if model.pool == 'cls' and not sees_all and not is_stored:
    raise UserError(
      "config.model.pool = 'cls' reads the first vector, which sees only "
      f'{window[1]} of the tokens with config.{key}.window = {window}; '
      'use mean or max'
    )
  try:
    position = positions.make(
      model.position.blocks,
      model.embed_dim,
      model.num_heads,
      encoder['causal'],
    )
  except ValueError as error:
    raise UserError(f'config.model.position.{error}') from None
  reason = why_not_backend(model, position, None)
  if reason:
    raise UserError(reason)
  length = data.max_length + (model.pool == 'cls')
  sampling = model.position_sampling
  key = f'model.position_sampling.{sampling.name}'
  try:
    length = SAMPLINGS[sampling.name](**sampling.options).max_length(length)
  except ValueError as error:
    raise UserError(f'config.{key}.{error}') from None
  limit = position.max_length()
  if limit is not None and length > limit:
    raise UserError(
      f'config.model.position.name = {model.position.name!r} can tell '
      f'{limit} positions apart, and texts may need {length}; raise '
      'config.model.position.learned.max_len or lower config.data.max_length'
    )


def why_not_backend(model, position, platform: str | None) -> str | None:
  """Why the chosen backend cannot serve this model, or None if it can."""
  backend = model.encoder.options['backend']
  reason = why_not(
    backend,
    platform=platform,
    dtype=model.dtype,
    head_dim=model.embed_dim // model.num_heads,
    has_dropout=model.attention_dropout_rate > 0,
    has_softcap=model.encoder.options['softcap'] > 0,
    hooks=position.hooks,
  )
  if reason is None:
    return None
  return (
    f'config.model.encoder.attention.backend = {backend!r} cannot serve: '
    f'{reason}; auto, reference and chunked serve everything'
  )
