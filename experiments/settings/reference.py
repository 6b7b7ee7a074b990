"""What each key of a config means, and which values it may have.

All of it stands once in the code: meanings in docstrings, limits and tables in
the fields of settings.
"""

from __future__ import annotations

from typing import Any

from experiments.command import calls, fields, modules, schema
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
  """The text of --help on all keys, '', or on what is named; else a UserError.

  A name is a key or a part of one, such as position or model; an entry of a
  table, such as rotary; or `module:Class`. Values are those of the config, or
  else the defaults.
  """
  texts, values = meanings(), flat_keys(default_config())
  values |= flat_keys(config or {})
  if not name:
    return '\n'.join(_key(key, values[key], texts[key]) for key in texts)
  name = name.removeprefix('config.')
  keys = [key for key in texts if f'.{name}.' in f'.{key}.']
  lines = [
    _key(key, values[key], f'{texts[key]} ({allowed()[key]})') for key in keys
  ]
  if len(keys) == 1 and keys[0] in tables():
    entries = tables()[keys[0]].entries
    return '\n\n'.join(
      [_key(keys[0], values[keys[0]], texts[keys[0]])]
      + [_entry(entry, cls) for entry, cls in entries.items()]
    )
  if keys:
    return '\n'.join(lines)
  if ':' in name:
    return _own_entry(name)
  known, choices = set(), {}
  for table in tables().values():
    known |= table.entries.keys() | table.aliases.keys()
    entry = table.aliases.get(name, name)
    if entry in table.entries:
      # `linear` is a head, and a schedule, too.
      choices[table.entries[entry]] = entry
  if choices:
    return '\n\n'.join(_entry(entry, cls) for cls, entry in choices.items())
  parts = {part for key in texts for part in key.split('.')}
  raise UserError(
    f'--help={name} is no key of a config, no choice of one and no '
    f'module:Class; sections are {", ".join(default_config())}'
    f'{nearest(name, parts | known | texts.keys())}'
  )


def first_sentence(entry: Any) -> str:
  """The first paragraph of a docstring, on one line; '' without any."""
  text = ' '.join((entry.__doc__ or '').partition('\n\n')[0].split())
  # Dataclasses have their signature in its place.
  return '' if text.startswith(f'{entry.__name__}(') else text


def _key(key: str, value: Any, text: str) -> str:
  return f'  --config.{key}={shown(value)}: {text}'


def _own_entry(name: str) -> str:
  """Lines of `--help=module:Class`, as `_entry` has them of a table."""
  entry = modules.named(name, None, '--help')
  for table in tables().values():
    if isinstance(entry, type) and issubclass(entry, table.base):
      return _entry(name, modules.named(name, table.base, '--help'))
  bases = {table.base.__name__: None for table in tables().values()}
  raise UserError(
    f'--help={name} is a subclass of none of {", ".join(bases)}, of which '
    'each choice is one'
  )


def _entry(name: str, entry: Any) -> str:
  """What an entry is, and its options as they are written."""
  lines = [f'{name}: {first_sentence(entry)}'.removesuffix(': ')]
  for option, (kind, default) in fields.typed_fields(entry).items():
    what = schema.meaning(entry, option) or fields.kind_text(kind)
    lines.append(f'  {option}={calls.option_text(default)}: {what}')
  return '\n'.join(lines)
