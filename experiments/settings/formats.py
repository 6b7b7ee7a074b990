"""Configs of earlier versions, read as configs of this one.

Keys that a later version adds, renames or removes must not make a run
unreadable: config.json names its format, and all changes since are in the
tables here and in keys.ADDED.
"""

from __future__ import annotations

import copy
from typing import Any

from experiments.command.errors import UserError
from experiments.command.values import flat_keys
from experiments.settings import registry, settings
from experiments.settings.keys import (
  ADDED,
  CHOICES,
  current_value,
  group_defaults,
  name_key,
)
from experiments.settings.settings import SECTIONS, Settings

# The format that config.json names; 0 if it names none. It is raised when an
# earlier version could not read what this one writes.
FORMAT = 3
# Renamed keys: {old: new}, dotted.
RENAMED: dict[str, str] = {
  'train.accumulate': 'train.grad_accum_steps',
  'train.shard_from': 'train.fsdp_min_size',
  'optimizer.decay': 'optimizer.weight_decay_names',
  'checkpoint.keep': 'checkpoint.max_to_keep',
}


def upgrade(config: dict) -> dict:
  """A nested config of any format, with every key that there is now.

  Removed options are left out if they were not chosen; if they were, they stay,
  and settings.from_config raises.

  Raises:
    UserError: a later version has written it, or it lacks sections.
  """
  config = copy.deepcopy(config)
  version = config.pop('format', 0)
  if type(version) is not int or version > FORMAT:
    raise UserError(
      f'the config has format {version!r}, and this version reads formats up '
      f'to {FORMAT}; use the version that wrote it, or a later one'
    )
  try:
    for key, value in flat_keys(config).items():
      if current_key(key) != key:
        _remove(config, key)
      _put(config, current_key(key), current_value(current_key(key), value))
    known = flat_keys(config)
    for key, value in (ADDED | group_defaults()).items():
      if key not in known:
        _put(config, key, value)
        known = flat_keys(config)
    _name_of_hub(config)
    for choice, (table, key) in CHOICES.items():
      chosen = known[name_key(choice)]
      *sections, name = key.split('.')
      section = config
      for part in sections:
        section = section[part]
      options = section.setdefault(name, {})
      others = config['optimizer']['groups'] if key == 'optimizer' else {}
      names = [chosen, *(group['name'] for group in others.values())]
      _complete(options, names, table, SECTIONS.get(key, ()))
  except (AttributeError, KeyError, TypeError) as error:
    raise UserError('the config lacks whole sections, or they are not') from (
      error
    )
  return config


def read(config: dict) -> Settings:
  """Settings of a stored run, from its nested config of any format.

  Raises:
    UserError: a later version has written it, a key is unknown, or a value is
      one that no version has allowed.
  """
  return settings.from_config(upgrade(config), is_stored=True)


def _name_of_hub(config: dict) -> None:
  """config.data.dir used to be the name of a data set of the hub."""
  data = config.get('data', {})
  text = data.get('text', {})
  if data.get('name') == 'text' and text.get('format') == 'hub' and data['dir']:
    text['hub_name'], data['dir'] = data['dir'], ''


def current_key(key: str) -> str:
  """The dotted key of this version, from one of any version."""
  while key in RENAMED:
    key = RENAMED[key]
  return key


def _put(config: dict, key: str, value: Any) -> None:
  *sections, name = key.split('.')
  for section in sections:
    config = config.setdefault(section, {})
  config[name] = value


def _remove(config: dict, key: str) -> None:
  """Removes a key, and the section that it leaves empty."""
  first, _, rest = key.partition('.')
  if rest:
    _remove(config[first], rest)
  if not rest or not config[first]:
    del config[first]


def _complete(values: dict, names, table, fields) -> None:
  """Adds missing options of a choice, and removes unknown ones not chosen."""
  chosen = {part for name in names for part in str(name).split('+')}
  blocks = registry.blocks(table)
  for entry, value in list(values.items()):
    is_gone = isinstance(value, dict) and entry not in {*blocks, *fields}
    if is_gone and entry not in chosen:
      del values[entry]
  for entry, options in blocks.items():
    given = values.setdefault(entry, {})
    if entry not in chosen:
      given = {k: v for k, v in given.items() if k in options}
    values[entry] = options | given
