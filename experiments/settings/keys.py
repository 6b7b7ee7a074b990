"""Dotted keys: how a config spells the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.command.values import Choice
from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.tasks import TASKS
from selfattn import positions
from selfattn.encoders import ENCODERS
from selfattn.heads import HEADS
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS

# Second names of entries, {key: {alias: name}}.
ALIASES: dict[str, dict[str, str]] = {
  'model.position.name': positions.ALIASES,
}
# Every choice with its table, and the section that holds its name and options:
# its own, or one that holds other keys as well.
CHOICES = {
  'data.source': (DATASETS, 'data'),
  'data.vocabulary': (VOCABULARIES, 'data.vocabulary'),
  'model.encoder': (ENCODERS, 'model.encoder'),
  'model.position': (POSITIONS, 'model.position'),
  'model.position_sampling': (SAMPLINGS, 'model.position_sampling'),
  'model.normaliser': (NORMALISERS, 'model.normaliser'),
  'model.pool': (POOLS, 'model.pool_options'),
  'model.head': (HEADS, 'model.head'),
  'task': (TASKS, 'task'),
  'optimizer.method': (OPTIMIZERS, 'optimizer'),
}
# Choices of which several may be joined by +.
JOINED = ('model.position',)
# Choices whose own key is the name; their section holds the options alone.
NAMES = ('model.pool',)


def name_key(choice: str) -> str:
  """Dotted key of the name of one of CHOICES."""
  return choice if choice in NAMES else f'{CHOICES[choice][1]}.name'


def without_aliases(key: str, value: Any) -> Any:
  """The value of a dotted key, with names of entries in place of aliases.

  An entry that has been registered under an alias is meant itself.
  """
  names = ALIASES.get(key, {})
  if not names or not isinstance(value, str):
    return value
  (table,) = (CHOICES[c][0] for c in CHOICES if name_key(c) == key)
  return '+'.join(
    part if part in table else names.get(part, part)
    for part in value.split('+')
  )


def join(path: str, name: str) -> str:
  """Dotted key of a name in a section; '' is the config itself."""
  return f'{path}.{name}' if path else name


def flat_settings(value, path: str = '') -> dict[str, Any]:
  """Values of a dataclass of settings, by dotted key; tuples become lists."""
  flat = {}
  for field in dataclasses.fields(value):
    entry = getattr(value, field.name)
    key = join(path, field.name)
    if isinstance(entry, Choice):
      flat[name_key(key)] = entry.name
      key = CHOICES[key][1]
      for name, options in entry.blocks.items():
        for option, setting in options.items():
          flat[f'{key}.{name}.{option}'] = setting
    elif isinstance(entry, Mapping):
      for name, group in entry.items():
        flat |= flat_settings(group, join(key, name))
    elif dataclasses.is_dataclass(entry):
      flat |= flat_settings(entry, key)
    else:
      flat[key] = entry
  return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}
