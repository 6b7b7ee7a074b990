"""From a ConfigDict to frozen dataclasses: everything is checked here.

This is the only reader of ConfigDicts, and it finishes before a device is
touched. Every check raises UserError with the key to change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from experiments.command.errors import UserError, one_of
from experiments.command.values import Choice
from experiments.data.datasets import DATASETS
from experiments.data.loading import DataSettings
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning import tasks
from experiments.learning.optimizers import OPTIMIZERS, OptimizerSettings
from experiments.learning.parameter_groups import GROUPS, GroupSettings
from experiments.learning.schedules import warmup_updates
from experiments.settings import registry, validation
from experiments.workdir.keeping import LAST_PHASE, CheckpointSettings
from selfattn.encoders import ENCODERS
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The classifier."""

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
  ema_decay: float
  grad_accum_steps: int
  fsdp_min_size: int
  log_every: int
  eval_every: int
  eval_batch_size: int
  init_from: str


@dataclasses.dataclass(frozen=True)
class Settings:
  """A whole run.

  Attributes:
    extension: digest of the file that registered entries of tables, or ''; no
      key of a config that a user writes (settings.extensions).
  """

  seed: int
  data: DataSettings
  model: ModelSettings
  task: Choice
  pretrain: PretrainSettings
  optimizer: OptimizerSettings
  train: TrainSettings
  checkpoint: CheckpointSettings
  extension: str

  def __post_init__(self):
    if not self.pretrain.steps:
      # Its other keys have no effect: whatever they are, it is the same run.
      object.__setattr__(self, 'pretrain', _no_pretraining())
    # A share of the run and the same number of steps are the same run.
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
    flat = _flat(self)
    if not self.extension:
      del flat['extension']
    return flat

  def digest(self) -> str:
    """Eight hexadecimal digits, the same for the same settings.

    Options at their defaults are left out, and ADDED keys, so that one that a
    later version adds changes nothing.
    """
    flat = self.flat()
    for section in CHOICES.values():
      flat = _without_defaults(flat, *section)
    added = ADDED | group_defaults()
    flat = {k: v for k, v in flat.items() if k not in added or added[k] != v}
    text = json.dumps(flat, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _no_pretraining() -> PretrainSettings:
  values = {
    name: ADDED[f'pretrain.{name}']
    for name in ('steps', 'learning_rate', 'warmup_steps')
  }
  name = ADDED['pretrain.task.name']
  task = Choice(name, {name: registry.options(tasks.TASKS[name])})
  return PretrainSettings(task, **values)


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
  'model.normaliser.name': 'softmax',
  'train.ema_decay': 0.0,
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
  'model.normaliser': (NORMALISERS, 'model.normaliser'),
  'model.pool': (POOLS, 'model.pool_options'),
  'task': (tasks.TASKS, 'task'),
  'pretrain.task': (tasks.TASKS, 'pretrain.task'),
  'optimizer.method': (OPTIMIZERS, 'optimizer'),
}
# Choices of which several may be joined by +.
_JOINED = ('model.position',)
# Choices whose own key is the name, with the options alone under the other.
_NAMES = ('model.pool',)
# The keys of every section that holds others.
SECTIONS = {
  name: tuple(get_type_hints(kind))
  for name, kind in get_type_hints(Settings).items()
  if dataclasses.is_dataclass(kind)
}


def group_defaults() -> dict[str, Any]:
  """Dotted keys of the groups of parameters, which then are as the rest."""
  return {
    f'optimizer.groups.{group}.{key}': value
    for group in GROUPS
    for key, value in dataclasses.asdict(GroupSettings()).items()
  }


def name_key(choice: str) -> str:
  """Dotted key of the name of one of CHOICES."""
  return choice if choice in _NAMES else f'{CHOICES[choice][1]}.name'


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
  settings = _section(Settings, {'extension': ''} | values, '')
  validation.check(settings, settings.flat(), is_stored)
  return settings


def _section(cls, values: dict, path: str):
  hints = get_type_hints(cls)
  # Names of the options of a choice, where they share the section, by choice.
  shared, wanted = {}, dict.fromkeys(hints)
  for name in hints:
    key = _join(path, name)
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
    key = _join(path, name)
    if name == 'groups':
      fields[name] = groups
    elif kind is Choice:
      table, block_key = CHOICES[key]
      if name in shared:
        given = {k: values[k] for k in ('name', *shared[name])}
      else:
        given = dict(values[block_key.rpartition('.')[2]])
      if key in _NAMES:
        chosen = values[name]
      elif 'name' in given:
        chosen = given.pop('name')
      else:
        raise UserError(f'config.{block_key}.name is missing')
      fields[name] = registry.choose(
        chosen, given, table, block_key, name_key(key), key in _JOINED, others
      )
    elif dataclasses.is_dataclass(kind):
      fields[name] = _section(kind, values[name], key)
    else:
      fields[name] = registry.typed(values[name], kind, key)
  return cls(**fields)


def _groups(values: dict, path: str) -> dict[str, GroupSettings]:
  """Of the optimizer, for each group of parameters."""
  path = _join(path, 'groups')
  registry.check_keys(values, GROUPS, path)
  groups = {
    group: _section(GroupSettings, values[group], _join(path, group))
    for group in GROUPS
  }
  for group, wanted in groups.items():
    one_of(wanted.name, ('', *OPTIMIZERS), f'{path}.{group}.name')
  return groups


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
      flat[name_key(key)] = entry.name
      key = CHOICES[key][1]
      for name, options in entry.blocks.items():
        for option, setting in options.items():
          flat[f'{key}.{name}.{option}'] = setting
    elif isinstance(entry, Mapping):
      for name, group in entry.items():
        flat |= _flat(group, _join(key, name))
    elif dataclasses.is_dataclass(entry):
      flat |= _flat(entry, key)
    else:
      flat[key] = entry
  return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}
