"""What each key of a config means, and which values it may have.

All of it stands once in the code: meanings in docstrings, limits and tables in
the fields of settings.
"""

from __future__ import annotations

from typing import Any

from experiments.command import calls, schema
from experiments.command.calls import Table
from experiments.command.errors import UserError, nearest
from experiments.command.values import KINDS, flat_keys, shown
from experiments.settings.settings import Settings, default_config


def tables() -> dict[str, Table]:
  """The table of each key that is a choice."""
  return {
    key: entry.metadata['table']
    for key, (_, entry, _) in schema.fields_by_key(Settings).items()
    if 'table' in entry.metadata
  }


def meanings() -> dict[str, str]:
  """What each key means, in the order of the settings."""
  return {
    key: schema.meaning(cls, entry.name)
    for key, (cls, entry, _) in schema.fields_by_key(Settings).items()
  }


def allowed() -> dict[str, str]:
  """Which values each key may have."""
  texts = {}
  for key, (_, entry, kind) in schema.fields_by_key(Settings).items():
    table, limit = entry.metadata.get('table'), entry.metadata.get('limit')
    if table is not None:
      texts[key] = ', '.join(table.entries)
    elif limit is not None and kind is str:
      texts[key] = limit.text
    else:
      texts[key] = KINDS[kind] + (f', {limit.text}' if limit else '')
  return texts


def described(name: str, config: Any = None) -> str:
  """The text of --help on all keys, or on one choice.

  Args:
    name: the last part of a key, such as position, or an entry of a table;
      empty: all keys.
    config: whose values are shown; None: the defaults.

  Raises:
    UserError: there is no such choice or entry.
  """
  if not name:
    values = flat_keys(config or default_config())
    return '\n'.join(
      f'  --config.{key}={shown(values[key])}: {text}'
      for key, text in meanings().items()
    )
  found = {key.rpartition('.')[2]: table for key, table in tables().items()}
  if name in found:
    table = found[name]
    return '\n\n'.join(_entry(n, c) for n, c in table.entries.items())
  for table in found.values():
    known = table.aliases.get(name, name)
    if known in table.entries:
      return _entry(known, table.entries[known])
  names = [*found, *(n for table in found.values() for n in table.entries)]
  raise UserError(
    f'--help={name} is no choice of a config; choices are {", ".join(found)}'
    f'{nearest(name, names)}'
  )


def first_sentence(entry: Any) -> str:
  """The first paragraph of a docstring, on one line."""
  return ' '.join((entry.__doc__ or '').partition('\n\n')[0].split())


def _entry(name: str, entry: Any) -> str:
  lines = [f'{name}: {first_sentence(entry)}']
  for option, default in calls.options(entry).items():
    lines.append(
      f'  {option}={shown(default)}: {schema.meaning(entry, option)}'
    )
  return '\n'.join(lines)
