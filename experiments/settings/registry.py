"""Choices by name: a dict of classes, and a block of options for each name.

`block(table, name)` makes the section of a config, `choose(...)` checks it. An
entry is a class with dataclass fields; those that have a default are its
options, so a default is written once, next to the code that reads it.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.command.errors import UserError, nearest, one_of
from experiments.command.values import Choice, parse_tuple

# Fields that Flax adds to every module.
_NOT_OPTIONS = {'parent', 'name'}


def fields(cls: type) -> set[str]:
  """Names of the dataclass fields of a class, or of a Flax module."""
  return {field.name for field in dataclasses.fields(cls)} - _NOT_OPTIONS


def options(cls: type) -> dict[str, Any]:
  """Fields of `cls` that have a default other than None, with the default.

  Raises:
    UserError: a default is of a type that a config cannot hold.
  """
  found = {
    field.name: field.default
    for field in dataclasses.fields(cls)
    if field.default not in (dataclasses.MISSING, None)
    and field.name not in _NOT_OPTIONS
  }
  for name, default in found.items():
    if not isinstance(default, bool | int | float | str | tuple):
      raise UserError(
        f'{cls.__name__}.{name} = {default!r} is the default of an option, '
        'which must be a bool, int, float, str or tuple; without a default, it '
        'is none'
      )
  return found


def _check(name: str, cls: Any) -> None:
  """UserError for what is no entry of a table."""
  if not isinstance(cls, type):
    raise UserError(f'{name!r} is registered as {cls!r}, which is not a class')
  if '+' in name:
    raise UserError(f'{name!r}: names are joined by +, and have none')
  declared = {
    key
    for key, kind in inspect.get_annotations(cls).items()
    if 'ClassVar' not in str(kind)
  }
  for key in sorted(declared - fields(cls) - _NOT_OPTIONS):
    raise UserError(
      f'{cls.__name__}.{key} is no field: {cls.__name__} needs '
      '@dataclasses.dataclass(frozen=True)'
    )
  for option, base in itertools.product(options(cls), cls.__mro__[1:]):
    # Functions, properties, and what wraps them.
    if hasattr(vars(base).get(option), '__get__'):
      raise UserError(
        f'{cls.__name__}.{option} is an option with the name of a method, '
        f'{base.__name__}.{option}: it needs another name'
      )


def blocks(table: Mapping[str, type]) -> dict[str, Any]:
  """A block of options for every entry that has options."""
  for name, cls in table.items():
    _check(name, cls)
  found = {entry: options(cls) for entry, cls in table.items()}
  return {k: v for k, v in found.items() if v}


def block(table: Mapping[str, type], name: str) -> dict[str, Any]:
  """`{'name': name}` and a block for every entry that has options."""
  return {'name': name} | blocks(table)


def choose(
  chosen: Any,
  values: Mapping,
  table: Mapping[str, type],
  key: str,
  name_key: str,
  joins: bool = False,
  others: Iterable[str] = (),
) -> Choice:
  """The chosen name with its checked options.

  Args:
    values: blocks of options, by name.
    key: their section of the config.
    name_key: key of the name.
    joins: whether several names may be joined by +.
    others: names whose options are used as well.

  Raises:
    UserError: an unknown name or option, or a value of another type.
  """
  names = str(chosen).split('+') if joins else [chosen]
  for name in names:
    one_of(name, table, name_key, joined=str(chosen) if joins else '')
  wanted = blocks(table)
  check_keys(values, wanted, key)
  found = {}
  for name in dict.fromkeys((*names, *others)):
    defaults, given = wanted.get(name, {}), values.get(name, {})
    check_keys(given, defaults, f'{key}.{name}')
    found[name] = {
      option: typed(given[option], type(default), f'{key}.{name}.{option}')
      for option, default in defaults.items()
    }
  return Choice(chosen, found)


def check_keys(given: Mapping, wanted: Mapping, key: str) -> None:
  """UserError if the two differ in their keys."""
  prefix = f'config.{key}.' if key else 'config.'
  for name in given:
    if name not in wanted:
      raise UserError(
        f'{prefix}{name} is not a key{nearest(name, list(wanted))}'
      )
  for name in wanted:
    if name not in given:
      raise UserError(f'{prefix}{name} is missing')


def typed(value: Any, kind: type, key: str) -> Any:
  """`value` as `kind`, if no information is lost; else UserError."""
  if kind is int and type(value) is int and abs(value) >= 2**31:
    raise UserError(
      f'config.{key} = {value} must be below 2147483648, and above its negative'
    )
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    return float(value)
  if kind is tuple and isinstance(value, list | tuple):
    return tuple(value)
  if kind is tuple and isinstance(value, str):
    try:
      return parse_tuple(value)
    except ValueError as error:
      raise UserError(f'config.{key} = {error}') from error
  if type(value) is kind:
    return value
  raise UserError(
    f'config.{key} = {value!r} is a {type(value).__name__}, '
    f'not a {kind.__name__}'
  )
