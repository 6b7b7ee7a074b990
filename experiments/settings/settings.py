"""From a ConfigDict to frozen dataclasses, with all checks.

This is the only reader of ConfigDicts, and it uses no device. Every check
raises UserError with the key to change.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any, get_type_hints

from experiments.command.config_files import DEFAULT_CONFIG, load_config, plain
from experiments.command.errors import UserError, one_of
from experiments.command.values import Choice, flat_keys
from experiments.data.loading import DataSettings
from experiments.learning import tasks
from experiments.learning.optimizers import OPTIMIZERS, OptimizerSettings
from experiments.learning.parameter_groups import GROUPS, GroupSettings
from experiments.learning.schedules import warmup_updates
from experiments.settings import registry, validation
from experiments.settings.keys import (
  CHOICES,
  JOINED,
  NAMES,
  flat_settings,
  join,
  name_key,
  without_aliases,
)
from experiments.workdir.keeping import CheckpointSettings


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The classifier: config.model, explained in configs/default.py."""

  encoder: Choice
  position: Choice
  position_sampling: Choice
  normaliser: Choice
  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  dropout_rate: float
  attention_dropout_rate: float
  word_dropout_rate: float
  embed_init_std: float
  pool: Choice
  head: Choice
  dtype: str
  num_members: int


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """The loop of training: config.train, explained in configs/default.py."""

  steps: int
  batch_size: int
  ema_decay: float
  grad_accum_steps: int
  fsdp_min_size: int
  log_every: int
  eval_every: int
  eval_batch_size: int
  init_from: str


@dataclasses.dataclass(frozen=True)
class Settings:
  """A whole run; configs/default.py explains the sections.

  Attributes:
    extension: digest of the file that registered entries of tables, or ''; set
      by settings.extensions, not by users.
  """

  seed: int
  data: DataSettings
  model: ModelSettings
  task: Choice
  optimizer: OptimizerSettings
  train: TrainSettings
  checkpoint: CheckpointSettings
  extension: str

  def __post_init__(self):
    # A share of the run and the same number of steps are the same run.
    updates = warmup_updates(self.optimizer.warmup_steps, self.train.steps)
    optimizer = dataclasses.replace(self.optimizer, warmup_steps=updates)
    object.__setattr__(self, 'optimizer', optimizer)

  @property
  def best(self) -> Callable:
    """max or min: what is best of several values of checkpoint.best_metric."""
    return tasks.TASKS[self.task.name].metrics[self.checkpoint.best_metric]

  def flat(self) -> dict[str, Any]:
    """Values by dotted key of the config; of options, those that are chosen."""
    flat = flat_settings(self)
    if not self.extension:
      del flat['extension']
    return flat

  def digest(self) -> str:
    """Eight hexadecimal digits, the same for the same settings.

    Values that are the default are left out, so that a new key changes no
    digest.
    """
    defaults = flat_keys(default_config())
    chosen = {k: v for k, v in self.flat().items() if v != defaults.get(k)}
    text = json.dumps(chosen, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def default_config() -> dict:
  """The nested config of configs/default.py, with lists for tuples."""
  return json.loads(json.dumps(load_config(DEFAULT_CONFIG).to_dict()))


# Keys of every section, by the key of the section.
SECTIONS = {
  name: tuple(get_type_hints(kind))
  for name, kind in get_type_hints(Settings).items()
  if dataclasses.is_dataclass(kind)
}


def from_config(config) -> Settings:
  """Settings from a ConfigDict or the like nested dict.

  Raises:
    UserError: an unknown or missing key, a value of the wrong type, a choice
      that does not exist, or values that exclude each other.
  """
  values = config.to_dict() if hasattr(config, 'to_dict') else dict(config)
  values = plain(values)
  settings = _section(Settings, {'extension': ''} | values, '')
  validation.check(settings, settings.flat())
  return settings


def _section(cls, values: dict, path: str):
  hints = get_type_hints(cls)
  # For a choice whose options share this section: its options, by choice.
  shared, wanted = {}, dict.fromkeys(hints)
  for name in hints:
    key = join(path, name)
    table, block_key = CHOICES.get(key, ({}, key))
    if block_key == path:
      del wanted[name]
      shared[name] = registry.blocks(table)
      wanted |= {'name': None} | shared[name]
    else:
      wanted[block_key.rpartition('.')[2]] = None
  registry.check_keys(values, wanted, path)

  fields = {}
  groups = _groups(values['groups'], path) if 'groups' in hints else {}
  others = [group.name for group in groups.values() if group.name]
  for name, kind in hints.items():
    key = join(path, name)
    if name == 'groups':
      fields[name] = groups
    elif kind is Choice:
      table, block_key = CHOICES[key]
      if name in shared:
        given = {k: values[k] for k in ('name', *shared[name])}
      else:
        given = dict(values[block_key.rpartition('.')[2]])
      if key in NAMES:
        chosen = values[name]
      elif 'name' in given:
        chosen = given.pop('name')
      else:
        raise UserError(f'config.{block_key}.name is missing')
      fields[name] = registry.choose(
        without_aliases(name_key(key), chosen),
        given,
        table,
        block_key,
        name_key(key),
        key in JOINED,
        others,
      )
      if key in JOINED:
        _check_distinct(fields[name].name, chosen, name_key(key))
    elif dataclasses.is_dataclass(kind):
      fields[name] = _section(kind, values[name], key)
    else:
      fields[name] = registry.typed(values[name], kind, key)
  return cls(**fields)


def _check_distinct(names: str, given: str, key: str) -> None:
  """UserError if a name is joined with itself, or with another name of it."""
  counts = collections.Counter(names.split('+'))
  name, count = counts.most_common(1)[0]
  if count > 1:
    raise UserError(f'config.{key} = {given!r} joins {name} with itself')


def _groups(values: dict, path: str) -> dict[str, GroupSettings]:
  """Settings of each group of parameters."""
  path = join(path, 'groups')
  registry.check_keys(values, GROUPS, path)
  groups = {
    group: _section(GroupSettings, values[group], join(path, group))
    for group in GROUPS
  }
  for group, wanted in groups.items():
    one_of(wanted.name, ('', *OPTIMIZERS), f'{path}.{group}.name')
  return groups
