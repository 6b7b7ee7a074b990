"""Configs of earlier versions, read as configs of this one.

What a later version adds, renames or drops must not make a run unreadable:
its config.json says which format it has, and everything that has changed since
stands in the tables here, and nowhere else.
"""

from __future__ import annotations

import copy
from typing import Any

from experiments import choices, settings
from experiments.choices import UserError
from experiments.settings import CHOICES, SECTIONS, Settings

# What config.json says now; one that says nothing is of format 0. It grows
# when an earlier version could no longer read what this one writes.
FORMAT = 1
# Keys that have another name now: {former: present}, dotted.
RENAMED: dict[str, str] = {}
# Keys of a section that were not there from the start, and the value with
# which a run does what it did without them. Options of a choice need no line:
# what theirs do without them is their default.
ADDED: dict[str, Any] = {}


def upgrade(config: dict) -> dict:
  """A nested config of any format, with every key that there is now.

  Blocks and options that are gone are left out where they were not chosen;
  where they were, they stay, and settings.from_config refuses them.

  Raises:
    UserError: a later version has written it.
  """
  config = copy.deepcopy(config)
  version = config.pop('format', 0)
  if version > FORMAT:
    raise UserError(
      f'the config has format {version}, and this version reads formats up to '
      f'{FORMAT}; use the version that wrote it, or a later one'
    )
  for former, present in RENAMED.items():
    section, name = _section(config, former)
    if name in section:
      value = section.pop(name)
      section, name = _section(config, present)
      section[name] = value
  _name_of_hub(config)
  for key, value in ADDED.items():
    section, name = _section(config, key)
    section.setdefault(name, value)
  for table, key in CHOICES.values():
    _complete(*_section(config, key), table, SECTIONS.get(key, ()))
  return config


def read(config: dict) -> Settings:
  """Settings of a run that is there, from its nested config of any format.

  What is refused today may have been trained before, so values are not asked
  whether they go together.

  Raises:
    UserError: a later version has written it, or a key means nothing.
  """
  return settings.typed(upgrade(config))


def _name_of_hub(config: dict) -> None:
  """The name of a data set of the hub was config.data.dir."""
  data = config.get('data', {})
  text = data.get('text', {})
  if data.get('name') == 'text' and text.get('format') == 'hub' and data['dir']:
    text['hub_name'], data['dir'] = data['dir'], ''


def former(key: str) -> set[str]:
  """The dotted names that a key has had."""
  return {key} | {old for old, new in RENAMED.items() if new == key}


def _section(config: dict, key: str) -> tuple[dict, str]:
  """The dict that a dotted key stands in, made if need be, and its name."""
  *sections, name = key.split('.')
  for section in sections:
    config = config.setdefault(section, {})
  return config, name


def _complete(section: dict, name: str, table, fields) -> None:
  """Fills in the options of a choice, and leaves out what was not chosen."""
  values = section.get(name, {})
  chosen = str(values.get('name', '')).split('+')
  blocks = {
    entry: options
    for entry, options in choices.block(table, '').items()
    if entry != 'name'
  }
  for entry, value in list(values.items()):
    is_gone = isinstance(value, dict) and entry not in {*blocks, *fields}
    if is_gone and entry not in chosen:
      del values[entry]
  for entry, options in blocks.items():
    given = values.setdefault(entry, {})
    if entry not in chosen:
      given = {k: v for k, v in given.items() if k in options}
    values[entry] = options | given
