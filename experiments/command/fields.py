"""Types of values, and the options of a class: its fields, typed.

An annotation is readable if its values can be written in a config: bool, int,
float, str, None, tuple, tuple[...], Literal, and unions of these.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from experiments.command.errors import UserError
from experiments.command.values import KINDS, parse_tuple

# Fields with the default None that the program sets; `name` is of Flax.
_SET = {'head_dim', 'name', 'platform', 'vocab_size'}


def options(entry: Any) -> dict[str, Any]:
  """The options of a class with their defaults, in the order of its fields.

  A UserError says that it is no dataclass, or which default has another type.
  """
  return {name: default for name, (_, default) in typed_fields(entry).items()}


def sizes(entry: Any) -> set[str]:
  """Names of the fields that are no options."""
  names = {field.name for field in dataclasses.fields(entry)}
  return names - options(entry).keys()


@functools.cache
def typed_fields(entry: Any) -> Mapping[str, tuple[Any, Any]]:
  """(type, default) of each option of a class; UserError as by `options`."""
  declared = {
    name
    for name, kind in inspect.get_annotations(entry).items()
    if not re.search('ClassVar|InitVar|KW_ONLY', str(kind))
  }
  fields = dataclasses.fields(entry)
  names = {field.name for field in fields}
  for name in sorted(declared - names):
    raise UserError(
      f'{entry.__name__}.{name} is no field: {entry.__name__} needs '
      '@dataclasses.dataclass(frozen=True)'
    )
  kinds = {}
  for field in fields:
    kind = _annotation(entry, field.name)
    is_set = field.default is None and field.name in _SET
    has_default = field.default is not dataclasses.MISSING
    # Of experiments.command.schema: a key of a config is no option beside it.
    is_key = bool(field.metadata.keys() & {'limit', 'table'})
    if is_set or is_key or not has_default or not _is_readable(kind):
      continue
    if field.default is None:
      kind = kind | None
    typed(field.default, kind, f'{entry.__name__}.{field.name}')
    kinds[field.name] = kind, field.default
  return kinds


def _annotation(entry: type, name: str) -> Any:
  """The type of a field; a string, if that cannot be evaluated."""
  base = next(b for b in entry.__mro__ if name in inspect.get_annotations(b))
  kind = inspect.get_annotations(base)[name]
  # Those of the module itself, which may be in sys.modules no more.
  init = inspect.unwrap(vars(base).get('__init__') or base)
  names = getattr(init, '__globals__', None)
  hints = SimpleNamespace(__annotations__={name: kind})
  try:
    return get_type_hints(hints, names)[name]
  except Exception:
    return kind


def _members(kind: Any) -> tuple:
  """The types of a union, or the one type."""
  is_union = get_origin(kind) in (Union, UnionType)
  return get_args(kind) if is_union else (kind,)


def _is_readable(kind: Any) -> bool:
  """Whether values of an annotation can be written in a config."""
  origin = get_origin(kind)
  if origin is Literal:
    return all(type(value) in KINDS for value in get_args(kind))
  if origin is tuple:
    return all(_is_readable(part) for part in get_args(kind) if part is not ...)
  parts = _members(kind)
  return kind in KINDS or (len(parts) > 1 and all(map(_is_readable, parts)))


def kind_text(kind: Any) -> str:
  """What values of a readable annotation are called."""
  origin, parts = get_origin(kind), get_args(kind)
  if origin is Literal:
    return ' or '.join(map(repr, parts))
  if origin is tuple:
    kinds = ', '.join(map(kind_text, _elements(parts)))
    if parts[-1:] == (...,):
      return f'a list, each element {kinds}'
    return f'a list of {len(parts)}: {kinds}'
  return ' or '.join(KINDS.get(p) or kind_text(p) for p in _members(kind))


def _elements(parts: tuple) -> tuple:
  """The types of the elements of tuple[...], without the ellipsis."""
  return parts[:1] if parts[-1:] == (...,) else parts


def typed(value: Any, kind: Any, name: str) -> Any:
  """`value` as `kind`, if no information is lost; else a UserError."""
  # Of `float | int`, 3 is an int.
  parts = sorted(_members(kind), key=lambda part: type(value) is not part)
  for part in parts:
    try:
      return _as(value, part)
    except ValueError:
      continue
  limit = ' below 2147483648, and above its negative' * _is_long(value)
  raise UserError(f'{name} = {value!r} must be {kind_text(kind)}{limit}')


def _is_long(value: Any) -> bool:
  """Whether it is an integer of more than 32 bits."""
  return type(value) is int and abs(value) >= 2**31


def _as(value: Any, kind: Any) -> Any:
  """A value as one type; ValueError if it is of another."""
  origin, parts = get_origin(kind), get_args(kind)
  if origin is Literal:
    if not any(type(value) is type(p) and value == p for p in parts):
      raise ValueError
    return value
  if tuple in (kind, origin):
    return _as_tuple(value, parts)
  if kind is float and type(value) is int:
    try:
      return float(value)
    except OverflowError:
      raise ValueError from None
  if type(value) is not kind or _is_long(value):
    raise ValueError
  return value


def _as_tuple(value: Any, parts: tuple) -> tuple:
  """A value as a tuple with elements of some types; ValueError as by `_as`."""
  if not isinstance(value, str | list | tuple):
    raise ValueError
  elements = parse_tuple(value) if isinstance(value, str) else tuple(value)
  if not parts:
    return elements
  kinds = _elements(parts)
  if len(kinds) < len(parts):
    kinds *= len(elements)
  pairs = zip(elements, kinds, strict=True)
  try:
    return tuple(typed(element, kind, '') for element, kind in pairs)
  except UserError:
    raise ValueError from None
