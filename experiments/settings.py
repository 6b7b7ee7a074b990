"""From a ConfigDict to frozen dataclasses: everything is checked here.

This is the only reader of ConfigDicts, and it finishes before a device is
touched. Every check raises UserError with the key to change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, get_type_hints

from experiments import choices
from experiments.choices import Choice, UserError
from experiments.datasets import DATASETS
from experiments.optimizers import OPTIMIZERS, SCHEDULES
from experiments.vocabulary import VOCABULARIES
from selfattn.attention import BACKENDS
from selfattn.classifier import POOLS
from selfattn.encoders import ACTIVATIONS, ENCODERS, NORMS
from selfattn.positions import POSITIONS

DTYPES = ('float32', 'bfloat16')
BEST_METRICS = {'accuracy': max, 'macro_f1': max, 'loss': min}


@dataclasses.dataclass(frozen=True)
class DataSettings:
  """What is read, how it is cut into splits and into batches."""

  source: Choice
  dir: str
  max_length: int
  seed: int
  validation_fraction: float
  test_fraction: float
  num_buckets: int
  vocabulary: Choice

  def moved_to(self, directory: str) -> DataSettings:
    """The same data in another folder."""
    return dataclasses.replace(self, dir=directory)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The classifier."""

  encoder: Choice
  position: Choice
  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  dropout_rate: float
  attention_dropout_rate: float
  word_dropout_rate: float
  embed_init_std: float
  pool: str
  dtype: str


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """How gradients become updates."""

  method: Choice
  learning_rate: float
  schedule: str
  warmup_steps: int
  weight_decay: float
  decay: tuple
  clip_norm: float
  label_smoothing: float


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """How long, how much at once, and what is reported when."""

  steps: int
  batch_size: int
  accumulate: int
  log_every: int
  eval_every: int
  eval_batch_size: int


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """When a state is saved, how many stay, and which one is the best."""

  every_steps: int
  keep: int
  best_metric: str


@dataclasses.dataclass(frozen=True)
class Settings:
  """A whole run."""

  seed: int
  data: DataSettings
  model: ModelSettings
  optimizer: OptimizerSettings
  train: TrainSettings
  checkpoint: CheckpointSettings

  def flat(self) -> dict[str, Any]:
    """Dotted keys as the config spells them, chosen options only."""
    return _flat(self)

  def digest(self) -> str:
    """Eight hexadecimal digits, the same for the same settings."""
    text = json.dumps(self.flat(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# Every choice with its table, and the key under which its name and options
# stand: its own, or that of the section, which it then shares.
_CHOICES = {
  'data.source': (DATASETS, 'data'),
  'data.vocabulary': (VOCABULARIES, 'data.vocabulary'),
  'model.encoder': (ENCODERS, 'model.encoder'),
  'model.position': (POSITIONS, 'model.position'),
  'optimizer.method': (OPTIMIZERS, 'optimizer'),
}


# What a number must be, the test of it, and the keys it holds for.
_RANGES = {
  'at least 1': (
    lambda value: value >= 1,
    """data.max_length data.num_buckets
    model.num_layers model.num_heads model.embed_dim model.mlp_dim
    train.steps train.batch_size train.accumulate train.log_every
    train.eval_every train.eval_batch_size
    checkpoint.every_steps checkpoint.keep""",
  ),
  'at least 0 and less than 1': (
    lambda value: 0 <= value < 1,
    """model.dropout_rate model.attention_dropout_rate
    model.word_dropout_rate optimizer.label_smoothing
    data.validation_fraction data.test_fraction""",
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


def from_config(config) -> Settings:
  """Settings from a ConfigDict or from the nested dict of a config.json.

  Raises:
    UserError: an unknown or missing key, a value of the wrong type, a choice
      that does not exist, or values that do not go together.
  """
  values = config.to_dict() if hasattr(config, 'to_dict') else dict(config)
  settings = _section(Settings, values, '')
  _check(settings)
  return settings


def _section(cls, values: dict, path: str):
  hints = get_type_hints(cls)
  wanted = {}
  for name in hints:
    table, block_key = _CHOICES.get(_join(path, name), ({}, None))
    wanted |= choices.block(table, '') if block_key == path else {name: None}
  choices.check_keys(values, wanted, path)

  fields = {}
  for name, kind in hints.items():
    key = _join(path, name)
    if kind is Choice:
      table, block_key = _CHOICES[key]
      block = choices.block(table, '')
      chosen = (
        {k: values[k] for k in block} if block_key == path else values[name]
      )
      fields[name] = choices.choose(chosen, table, block_key)
    elif dataclasses.is_dataclass(kind):
      fields[name] = _section(kind, values[name], key)
    else:
      fields[name] = choices.typed(values[name], kind, key)
  return cls(**fields)


def _join(path: str, name: str) -> str:
  return f'{path}.{name}' if path else name


def _flat(value, path='') -> dict[str, Any]:
  flat = {}
  for field in dataclasses.fields(value):
    entry = getattr(value, field.name)
    key = _join(path, field.name)
    if isinstance(entry, Choice):
      key = _CHOICES[key][1]
      flat[f'{key}.name'] = entry.name
      for option, setting in entry.options.items():
        flat[f'{key}.{entry.name}.{option}'] = setting
    elif dataclasses.is_dataclass(entry):
      flat |= _flat(entry, key)
    else:
      flat[key] = entry
  return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}


def _check(settings: Settings) -> None:
  """Values that are out of range, or do not go together."""
  data, model = settings.data, settings.model
  optimizer, train = settings.optimizer, settings.train
  flat = settings.flat()

  def require(holds: bool, key: str, allowed: str) -> None:
    if not holds:
      raise UserError(f'config.{key} = {flat[key]!r} must be {allowed}')

  for allowed, (holds, keys) in _RANGES.items():
    for key in keys.split():
      require(holds(flat[key]), key, allowed)

  choices.one_of(model.pool, POOLS, 'model.pool')
  choices.one_of(model.dtype, DTYPES, 'model.dtype')
  choices.one_of(optimizer.schedule, SCHEDULES, 'optimizer.schedule')
  choices.one_of(
    settings.checkpoint.best_metric, BEST_METRICS, 'checkpoint.best_metric'
  )
  require(
    optimizer.warmup_steps <= train.steps,
    'optimizer.warmup_steps',
    f'at most config.train.steps = {train.steps}',
  )
  require(
    train.batch_size % train.accumulate == 0,
    'train.accumulate',
    f'a divisor of config.train.batch_size = {train.batch_size}',
  )
  DATASETS[data.source.name](**data.source.options).check(data.dir)
  VOCABULARIES[data.vocabulary.name](**data.vocabulary.options).check()
  if model.encoder.name == 'attention':
    _check_attention(settings, require)
  elif model.pool == 'cls':
    raise UserError(
      "config.model.pool = 'cls' reads what attention gathers, and "
      f'config.model.encoder.name = {model.encoder.name!r} has none; '
      'use mean or max'
    )


def _check_attention(settings: Settings, require) -> None:
  data, model = settings.data, settings.model
  encoder = model.encoder.options
  key = 'model.encoder.attention'
  choices.one_of(encoder['norm'], NORMS, f'{key}.norm')
  choices.one_of(encoder['activation'], ACTIVATIONS, f'{key}.activation')
  choices.one_of(encoder['backend'], BACKENDS, f'{key}.backend')
  if model.embed_dim % model.num_heads:
    below = model.embed_dim - model.embed_dim % model.num_heads
    near = [n for n in (below, below + model.num_heads) if n]
    raise UserError(
      f'config.model.embed_dim = {model.embed_dim} does not split into '
      f'config.model.num_heads = {model.num_heads}; '
      f'try {" or ".join(map(str, near))}'
    )
  if encoder['backend'] == 'xla' and model.attention_dropout_rate > 0:
    raise UserError(
      f"config.{key}.backend = 'xla' cannot serve: it has no dropout on the "
      'weights; set config.model.attention_dropout_rate=0 or use reference'
    )
  if encoder['causal'] and model.pool == 'cls':
    raise UserError(
      "config.model.pool = 'cls' reads the first vector, which sees only "
      f'itself when config.{key}.causal is set; use mean or max'
    )
  position = POSITIONS[model.position.name](
    embed_dim=model.embed_dim,
    num_heads=model.num_heads,
    **model.position.options,
  )
  limit = position.max_length()
  length = data.max_length + (model.pool == 'cls')
  if limit is not None and length > limit:
    name = model.position.name
    raise UserError(
      f'config.model.position.{name}.max_len = {limit} is less than the '
      f'longest input, {length} tokens; raise it or lower '
      'config.data.max_length'
    )
