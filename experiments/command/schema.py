"""Fields of settings: the default, what is allowed, and which table is meant.

Settings are frozen dataclasses, and their fields are the keys of a config:

    steps: int = field(2_000, POSITIVE)
    position: tuple[Call, ...] = choice('sinusoidal', POSITIONS)

What a key means stands in the docstring of its class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, get_type_hints

from experiments.command import calls
from experiments.command.calls import Call, Table
from experiments.command.errors import UserError, nearest
from experiments.command.fields import typed
from experiments.command.values import join


@dataclasses.dataclass(frozen=True)
class Limit:
  """Values that are allowed.

  Attributes:
    text: what a value must be, for messages and pages.
    holds: whether a value is allowed.
  """

  text: str
  holds: Callable[[Any], bool]


def at_least(least: int) -> Limit:
  """Numbers of at least so much, and finite."""
  is_allowed = lambda value: least <= value < float('inf')  # noqa: E731
  return Limit(f'at least {least}', is_allowed)


def one_of(names) -> Limit:
  """The names of a tuple or a table."""
  return Limit(f'one of {", ".join(map(repr, names))}', lambda v: v in names)


POSITIVE = at_least(1)
ABOVE_0 = Limit('greater than 0 and finite', lambda v: 0 < v < float('inf'))
SHARE = Limit('at least 0 and less than 1', lambda value: 0 <= value < 1)
SEED = Limit(
  'at least 0 and less than 2147483648', lambda value: 0 <= value < 2**31
)


def field(default: Any, limit: Limit | None = None) -> Any:
  """A field of settings with a limit."""
  return dataclasses.field(default=default, metadata={'limit': limit})


def choice(default: str, table: Table) -> Any:
  """A field of settings that chooses from a table.

  Its value is a Call, or a tuple of them where the table joins, or a tuple of
  such tuples where it has patterns over layers.
  """
  return dataclasses.field(default=default, metadata={'table': table})


def section(settings: type) -> Any:
  """A field of settings that are a section of the config."""
  return dataclasses.field(default_factory=settings)


def read(cls: Any, values: Mapping, path: str = '') -> Any:
  """Settings of a class from a nested dict with all of its keys.

  A UserError names a key that is unknown or missing, or whose value is of the
  wrong type, not allowed, or no such choice.
  """
  kinds = get_type_hints(cls)
  names = [entry.name for entry in dataclasses.fields(cls)]
  for name in values:
    if name not in names:
      raise UserError(
        f'config.{join(path, name)} is not a key{nearest(name, names)}'
      )
  made = {}
  for entry in dataclasses.fields(cls):
    key = join(path, entry.name)
    if entry.name not in values:
      raise UserError(f'config.{key} is missing')
    value, kind = values[entry.name], kinds[entry.name]
    table = entry.metadata.get('table')
    if dataclasses.is_dataclass(kind) and table is None:
      if not isinstance(value, Mapping):
        raise UserError(f'config.{key} = {value!r} is no section')
      made[entry.name] = read(kind, value, key)
    elif table is None:
      made[entry.name] = value = typed(value, kind, f'config.{key}')
      limit = entry.metadata.get('limit')
      if limit and not limit.holds(value):
        raise UserError(f'config.{key} = {value!r} must be {limit.text}')
    else:
      made[entry.name] = calls.read(value, table, key)
  return cls(**made)


def defaults(cls: type) -> dict[str, Any]:
  """The nested dict of all keys with their defaults."""
  kinds, nested = get_type_hints(cls), {}
  for entry in dataclasses.fields(cls):
    is_section = dataclasses.is_dataclass(kinds[entry.name])
    is_section = is_section and 'table' not in entry.metadata
    nested[entry.name] = (
      defaults(kinds[entry.name]) if is_section else entry.default
    )
  return nested


def flat(settings: Any) -> dict[str, Any]:
  """Values by dotted key, as JSON holds them; of a choice, its text."""
  values: dict[str, Any] = {}
  for key, (_, entry, _) in fields_by_key(type(settings)).items():
    value = attrgetter(key)(settings)
    value = calls.text(value) if 'table' in entry.metadata else value
    values[key] = list(value) if isinstance(value, tuple) else value
  return values


def calls_of(settings: Any) -> Iterator[Call]:
  """All choices of settings."""
  for key, (_, entry, _) in fields_by_key(type(settings)).items():
    if 'table' in entry.metadata:
      value = attrgetter(key)(settings)
      for part in value if isinstance(value, tuple) else (value,):
        yield from part if isinstance(part, tuple) else (part,)


@functools.cache
def fields_by_key(cls: Any, path: str = '') -> dict[str, tuple]:
  """(class, field, type) of each key."""
  kinds, fields = get_type_hints(cls), {}
  for entry in dataclasses.fields(cls):
    key, kind = join(path, entry.name), kinds[entry.name]
    if dataclasses.is_dataclass(kind) and 'table' not in entry.metadata:
      fields |= fields_by_key(kind, key)
    else:
      fields[key] = cls, entry, kind
  return fields


def meaning(cls: type, name: str) -> str:
  """What the docstring of a class, or of a base, says of an attribute."""
  for base in cls.__mro__:
    text = inspect.cleandoc(vars(base).get('__doc__') or '')
    _, _, attributes = text.partition('\nAttributes:\n')
    matched = re.search(
      rf'^  {name}: (.*(?:\n    .*)*)', attributes, flags=re.MULTILINE
    )
    if matched:
      return ' '.join(matched[1].split()).rstrip('.')
  return ''
