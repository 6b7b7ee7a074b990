"""One way to choose by name: a plain dict, and a block of options a name.

`block(table, name)` makes the part of a config, `choose(...)` checks what came
back. A choice is a class with dataclass fields; those that have a default are
its options, so a default is written once, next to the code that reads it.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

# What Flax adds to the fields of every module.
_NOT_OPTIONS = {'parent', 'name'}

_QUOTES, _BRACKETS = '\'"', {'(': ')', '[': ']'}
_INTEGER = re.compile('0|-?[1-9][0-9]*')


class UserError(Exception):
  """The user's input is wrong: one line, exit code 2, no traceback."""


@dataclasses.dataclass(frozen=True)
class Choice:
  """A name out of a table, or several joined by +, with their options alone.

  Attributes:
    name: as the config spells it.
    blocks: options by name.
  """

  name: str
  blocks: Mapping[str, Mapping[str, Any]]

  @property
  def options(self) -> Mapping[str, Any]:
    """Those of a single name."""
    return self.blocks[self.name]


def options(cls: type) -> dict[str, Any]:
  """Fields of `cls` that have a default, with it."""
  return {
    field.name: field.default
    for field in dataclasses.fields(cls)
    if field.default is not dataclasses.MISSING
    and field.name not in _NOT_OPTIONS
  }


def block(table: Mapping[str, type], name: str) -> dict[str, Any]:
  """`{'name': name}` and one block of options for every entry that has any."""
  blocks = {entry: options(cls) for entry, cls in table.items()}
  return {'name': name} | {k: v for k, v in blocks.items() if v}


def one_of(name: Any, allowed, key: str) -> Any:
  """`name` if it is allowed; else UserError with the nearest right one.

  Args:
    key: of the config, or a flag with its dashes.
  """
  if name in allowed:
    return name
  key = key if key.startswith('--') else f'config.{key}'
  raise UserError(
    f'{key} = {name!r} is not one of '
    f'{", ".join(map(str, sorted(allowed)))}{nearest(str(name), allowed)}'
  )


def nearest(name: str, allowed) -> str:
  """'; did you mean ...?', or nothing when nothing is near."""
  near = difflib.get_close_matches(name, list(map(str, allowed)), n=1)
  return f'; did you mean {near[0]}?' if near else ''


def choose(
  values: dict, table: Mapping[str, type], key: str, joins: bool = False
) -> Choice:
  """The chosen name with its checked options.

  Args:
    joins: whether several names may be joined by +.

  Raises:
    UserError: an unknown name or option, or a value of another type.
  """
  chosen = values['name']
  names = str(chosen).split('+') if joins else [chosen]
  for name in names:
    one_of(name, table, f'{key}.name')
  if len(set(names)) < len(names):
    raise UserError(f'config.{key}.name = {chosen!r} joins a name with itself')
  wanted = block(table, chosen)
  check_keys(values, wanted, key)
  blocks = {}
  for name in names:
    defaults, given = wanted.get(name, {}), values.get(name, {})
    check_keys(given, defaults, f'{key}.{name}')
    blocks[name] = {
      option: typed(given[option], type(default), f'{key}.{name}.{option}')
      for option, default in defaults.items()
    }
  return Choice(chosen, blocks)


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


def parse_tuple(text: str) -> tuple:
  """A tuple in Python's spelling, or words between commas: `a,b`, `"a,b",c`.

  Words are a line of CSV. One that is an integer as Python prints it is read as
  such; every other stays as it is written: `+1`, `1.50`.

  Raises:
    ValueError: brackets or quotes that do not match.
  """
  text = text.strip()
  try:
    if text.startswith(('(', '[')):
      value = ast.literal_eval(text)
      if not isinstance(value, tuple | list):
        raise ValueError('brackets alone make no tuple')
      return tuple(value)
    rows = csv.reader([text], skipinitialspace=True, strict=True)
    words = [word.strip() for word in next(rows)]
  except (ValueError, SyntaxError, csv.Error) as error:
    raise ValueError(f'{text!r} is not a tuple; write a,b') from error
  if words and not words[-1]:
    del words[-1]
  return tuple(int(w) if _INTEGER.fullmatch(w) else w for w in words)


def split(text: str) -> list[str]:
  """What stands between the commas that are outside of quotes and brackets.

  A quote is one at the beginning of a value, or of an element in brackets; what
  ends it is a character of the value where it is doubled.

  Raises:
    ValueError: quotes or brackets that do not match.
  """
  parts, start, closing, quote, before = [], 0, [], '', ','
  characters = iter(enumerate(text))
  for place, character in characters:
    if quote:
      is_doubled = text[place : place + 2] == 2 * quote
      if is_doubled or (character == '\\' and closing):
        next(characters, None)
      elif character == quote:
        quote = ''
    elif character in _QUOTES and before in ',([':
      quote = character
    elif character in _BRACKETS:
      closing.append(_BRACKETS[character])
    elif character in _BRACKETS.values():
      if not closing or closing.pop() != character:
        closing.append('')
        break
    elif character == ',' and not closing:
      parts.append(text[start:place])
      start = place + 1
    before = before if character.isspace() else character
  if quote or closing:
    raise ValueError(
      f'quotes or brackets that do not match in {text!r}; put quotes around '
      'a value that holds one'
    )
  return [*parts, text[start:]]


def unquoted(text: str) -> str:
  """A value without the quotes around it, if there are such."""
  quote, inner = text[:1], text[1:-1]
  is_quoted = len(text) > 1 and quote in _QUOTES and text[-1] == quote
  if not is_quoted or quote in inner.replace(2 * quote, ''):
    return text
  return inner.replace(2 * quote, quote)


def typed(value: Any, kind: type, key: str) -> Any:
  """`value` as `kind`, where that loses nothing; else UserError."""
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
