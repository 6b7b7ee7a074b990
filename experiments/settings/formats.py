"""Configs of earlier versions, read as configs of this one.

What a later version adds, renames or drops must not make a run unreadable:
its config.json says which format it has, and everything that has changed since
stands in the tables here, and nowhere else.
"""

from __future__ import annotations

import copy
from typing import Any

from experiments.command.errors import UserError
from experiments.command.values import flat_keys
from experiments.settings import registry, settings
from experiments.settings.settings import (
  ADDED,
  CHOICES,
  SECTIONS,
  Settings,
  group_defaults,
)

# What config.json says now; one that says nothing is of format 0. It grows
# when an earlier version could no longer read what this one writes.
FORMAT = 2
# Keys that have another name now: {former: present}, dotted.
RENAMED: dict[str, str] = {
  'train.accumulate': 'train.grad_accum_steps',
  'train.shard_from': 'train.fsdp_min_size',
  'optimizer.decay': 'optimizer.weight_decay_names',
  'checkpoint.keep': 'checkpoint.max_to_keep',
}


def upgrade(config: dict) -> dict:
  """A nested config of any format, with every key that there is now.

  Blocks and options that are gone are left out where they were not chosen;
  where they were, they stay, and settings.from_config refuses them.

  Raises:
    UserError: a later version has written it, or it is no config.
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
      if present(key) != key:
        _remove(config, key)
      _put(config, present(key), settings.present_value(present(key), value))
    for key, value in (ADDED | group_defaults()).items():
      if key not in flat_keys(config):
        _put(config, key, value)
    _name_of_hub(config)
    for choice, (table, key) in CHOICES.items():
      chosen = flat_keys(config)[settings.name_key(choice)]
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
  """Settings of a run that is there, from its nested config of any format.

  Raises:
    UserError: a later version has written it, a key means nothing, or a value
      is one that no version has allowed.
  """
  return settings.from_config(upgrade(config), is_stored=True)


def _name_of_hub(config: dict) -> None:
  """The name of a data set of the hub was config.data.dir."""
  data = config.get('data', {})
  text = data.get('text', {})
  if data.get('name') == 'text' and text.get('format') == 'hub' and data['dir']:
    text['hub_name'], data['dir'] = data['dir'], ''


def present(key: str) -> str:
  """The dotted name that a key has now."""
  while key in RENAMED:
    key = RENAMED[key]
  return key


def former(key: str) -> set[str]:
  """All dotted names that a key has had, its own among them."""
  return {key} | {old for old in RENAMED if present(old) == key}


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
  """Fills in the options of a choice, and leaves out what was not chosen."""
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
