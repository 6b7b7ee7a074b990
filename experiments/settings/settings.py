"""From a ConfigDict to frozen dataclasses: everything is checked here.

This is the only reader of ConfigDicts, and it finishes before a device is
touched. Every check raises UserError with the key to change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any, get_type_hints

from experiments.command.values import Choice
from experiments.data.datasets import DATASETS
from experiments.data.loading import DataSettings
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning import tasks
from experiments.learning.optimizers import (
  OPTIMIZERS,
  OptimizerSettings,
  warmup_updates,
)
from experiments.settings import registry, validation
from experiments.workdir.keeping import LAST_PHASE, CheckpointSettings
from selfattn.encoders import ENCODERS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The classifier."""

  encoder: Choice
  position: Choice
  position_sampling: Choice
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
  num_members: int


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
  """What is trained before, on the same texts, with a head of its own."""

  task: Choice
  steps: int
  learning_rate: float
  warmup_steps: float


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """How long, how much at once, and what is reported when."""

  steps: int
  batch_size: int
  accumulate: int
  shard_from: int
  log_every: int
  eval_every: int
  eval_batch_size: int
  init_from: str


@dataclasses.dataclass(frozen=True)
class Settings:
  """A whole run."""

  seed: int
  data: DataSettings
  model: ModelSettings
  task: Choice
  pretrain: PretrainSettings
  optimizer: OptimizerSettings
  train: TrainSettings
  checkpoint: CheckpointSettings

  def __post_init__(self):
    # Updates from here on: a share of the run and the number that it comes to
    # are the same run.
    for name, steps in (
      ('optimizer', self.train.steps),
      ('pretrain', self.pretrain.steps),
    ):
      section = getattr(self, name)
      updates = warmup_updates(section.warmup_steps, steps)
      section = dataclasses.replace(section, warmup_steps=updates)
      object.__setattr__(self, name, section)

  @property
  def steps(self) -> int:
    """Updates of the whole run."""
    return self.pretrain.steps + self.train.steps

  @property
  def best(self) -> Callable:
    """max or min: which of several values of checkpoint.best_metric is best."""
    return tasks.TASKS[self.task.name].metrics[self.checkpoint.best_metric]

  def phases(self) -> tuple[Phase, ...]:
    """What is trained one after the other: one phase, or two."""
    before = self.pretrain
    if not before.steps:
      return (Phase(LAST_PHASE, 0, self),)
    first = dataclasses.replace(
      self,
      task=before.task,
      optimizer=dataclasses.replace(
        self.optimizer,
        learning_rate=before.learning_rate,
        warmup_steps=before.warmup_steps,
      ),
      train=dataclasses.replace(self.train, steps=before.steps),
    )
    return Phase('pretrain', 0, first), Phase(LAST_PHASE, before.steps, self)

  def phase_of(self, step: int) -> Phase:
    """The phase of the update that led to `step`."""
    return next(phase for phase in self.phases() if step <= phase.end)

  def flat(self) -> dict[str, Any]:
    """Dotted keys as the config spells them, chosen options only."""
    return _flat(self)

  def digest(self) -> str:
    """Eight hexadecimal digits, the same for the same settings.

    Options at their defaults are left out, and ADDED keys, so that one that a
    later version adds changes nothing.
    """
    flat = {k: v for k, v in self.flat().items() if ADDED.get(k, ...) != v}
    for section in CHOICES.values():
      flat = _without_defaults(flat, *section)
    text = json.dumps(flat, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Phase:
  """A part of a run that trains one task.

  Attributes:
    name: its section of the config, `pretrain` or `train`.
    start: updates before it.
    settings: as of a run that does nothing else.
  """

  name: str
  start: int
  settings: Settings

  @property
  def end(self) -> int:
    """Updates when it is over."""
    return self.start + self.settings.train.steps


# Keys of a section that were not there from the start, and the value with
# which a run does what it did without them. Options of a choice need no line:
# what theirs do without them is their default.
ADDED: dict[str, Any] = {
  'task.name': 'classify',
  'pretrain.task.name': 'masked_tokens',
  'pretrain.steps': 0,
  'pretrain.learning_rate': 1e-3,
  'pretrain.warmup_steps': 0,
}
# Every choice with its table, and the key under which its name and options
# stand: its own, or that of the section, which it then shares.
CHOICES = {
  'data.source': (DATASETS, 'data'),
  'data.vocabulary': (VOCABULARIES, 'data.vocabulary'),
  'model.encoder': (ENCODERS, 'model.encoder'),
  'model.position': (POSITIONS, 'model.position'),
  'model.position_sampling': (SAMPLINGS, 'model.position_sampling'),
  'task': (tasks.TASKS, 'task'),
  'pretrain.task': (tasks.TASKS, 'pretrain.task'),
  'optimizer.method': (OPTIMIZERS, 'optimizer'),
}
# Choices of which several may be joined by +.
_JOINED = ('model.position',)
# The keys of every section that holds others.
SECTIONS = {
  name: tuple(get_type_hints(kind))
  for name, kind in get_type_hints(Settings).items()
  if dataclasses.is_dataclass(kind)
}


def from_config(config, is_stored: bool = False) -> Settings:
  """Settings from a ConfigDict or the like nested dict.

  Args:
    is_stored: whether it is that of a run that is there, which may have been
      trained with what is refused today.

  Raises:
    UserError: an unknown or missing key, a value of the wrong type, a choice
      that does not exist, or values that do not go together.
  """
  values = config.to_dict() if hasattr(config, 'to_dict') else dict(config)
  settings = _section(Settings, values, '')
  validation.check(settings, settings.flat(), is_stored)
  return settings


def _section(cls, values: dict, path: str):
  hints = get_type_hints(cls)
  wanted = {}
  for name in hints:
    table, block_key = CHOICES.get(_join(path, name), ({}, None))
    wanted |= registry.block(table, '') if block_key == path else {name: None}
  registry.check_keys(values, wanted, path)

  fields = {}
  for name, kind in hints.items():
    key = _join(path, name)
    if kind is Choice:
      table, block_key = CHOICES[key]
      block = registry.block(table, '')
      chosen = (
        {k: values[k] for k in block} if block_key == path else values[name]
      )
      fields[name] = registry.choose(chosen, table, block_key, key in _JOINED)
    elif dataclasses.is_dataclass(kind):
      fields[name] = _section(kind, values[name], key)
    else:
      fields[name] = registry.typed(values[name], kind, key)
  return cls(**fields)


def _without_defaults(flat: dict, table, key: str) -> dict:
  defaults = {
    f'{key}.{name}.{option}': list(value) if isinstance(value, tuple) else value
    for name, cls in table.items()
    for option, value in registry.options(cls).items()
  }
  return {
    k: v for k, v in flat.items() if k not in defaults or defaults[k] != v
  }


def _join(path: str, name: str) -> str:
  return f'{path}.{name}' if path else name


def _flat(value, path='') -> dict[str, Any]:
  flat = {}
  for field in dataclasses.fields(value):
    entry = getattr(value, field.name)
    key = _join(path, field.name)
    if isinstance(entry, Choice):
      key = CHOICES[key][1]
      flat[f'{key}.name'] = entry.name
      for name, options in entry.blocks.items():
        for option, setting in options.items():
          flat[f'{key}.{name}.{option}'] = setting
    elif dataclasses.is_dataclass(entry):
      flat |= _flat(entry, key)
    else:
      flat[key] = entry
  return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}
