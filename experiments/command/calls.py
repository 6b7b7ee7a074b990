"""Choices that a config writes as calls: `rotary(base=500)`, `word`, `a+b`.

A call names an entry of a table, or a class of one's own as `module:Class`,
with the options that differ from their defaults:

    config.model.position = 'rotary(base=500)+t5(num_buckets=16)'
    config.model.normaliser = 'ideas:Sharp(power=2.0)'
    config.model.position = 'rotary,rotary,none'   # a pattern over layers

Options are the dataclass fields of the class that have a default. A value is
written as in Python; a word, or a call, needs no quotes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

from experiments.command import modules
from experiments.command.errors import UserError, nearest
from experiments.command.values import split, typed
from selfattn import layers

_CALL = re.compile(r'([\w.]+(?::\w+)?)\s*(?:\((.*)\))?', re.DOTALL)
# Fields that Flax adds to every module.
_NOT_OPTIONS = {'parent', 'name'}


@dataclasses.dataclass(frozen=True)
class Call:
  """A class, chosen by name, and its options.

  `str` of it is the canonical text: the same for the same class and options.

  Attributes:
    name: of the entry of a table, or `module:Class`.
    options: those that differ from their defaults, in the order of the class.
    entry: the class.
  """

  name: str
  options: Mapping[str, Any]
  entry: Any = dataclasses.field(compare=False, repr=False)

  @property
  def label(self) -> str:
    """The name, without the module of a class of one's own."""
    return self.name.rpartition(':')[2]

  def without(self, option: str) -> Call:
    """The same call with the default of an option."""
    rest = {k: v for k, v in self.options.items() if k != option}
    return dataclasses.replace(self, options=rest)

  def make(self, *sizes, **more):
    """An instance; `sizes` and `more` are what the class needs besides."""
    return self.entry(*sizes, **{**more, **self.options})

  def __str__(self):
    inside = ', '.join(f'{k}={_text(v)}' for k, v in self.options.items())
    return f'{self.name}({inside})' if inside else self.name


@dataclasses.dataclass(frozen=True)
class Table:
  """What a choice may name.

  Attributes:
    entries: classes by name.
    base: what each of them is a subclass of; None: of no common class.
    aliases: second names of entries.
    needs: names of methods that each of them has, where there is no `base`.
    joins: whether several may be joined by +, each once.
    layers: whether several may be a pattern over layers, with commas between.
    optional: whether the text may be empty, for none.
  """

  entries: Mapping[str, Any]
  base: type | None = None
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
  needs: tuple[str, ...] = ()
  joins: bool = False
  layers: bool = False
  optional: bool = False


def parse(text: Any, table: Table, key: str) -> Call:
  """The one call of a text.

  Args:
    key: of the config, for messages.

  Raises:
    UserError: it is no call, names no entry, or has a wrong option.
  """
  given = f'config.{key} = {text!r}'
  if not isinstance(text, str):
    raise UserError(f'{given} must be text, such as {_example(table)!r}')
  matched = _CALL.fullmatch(text.strip())
  if matched is None:
    raise UserError(
      f'{given} is not a name, or a call as NAME(OPTION=VALUE, ...); its names '
      f'are {", ".join(sorted(table.entries))}, or module:Class'
    )
  name, inside = matched.groups()
  name = name if name in table.entries else table.aliases.get(name, name)
  if ':' in name:
    entry = modules.named(name, table.base, f'config.{key}')
    missing = [m for m in table.needs if not hasattr(entry, m)]
    if not isinstance(entry, type) or missing:
      raise UserError(
        f'config.{key}: {name} must be a class'
        + (f' with {", ".join(table.needs)}' if table.needs else '')
      )
  elif name in table.entries:
    entry = table.entries[name]
  else:
    known = [*table.entries, *table.aliases]
    raise UserError(
      f'{given} is not one of {", ".join(sorted(table.entries))}, and no '
      f'module:Class{nearest(name, known)}'
    )
  defaults = options(entry)
  values = {}
  for option, value in _keywords(inside or '', given).items():
    if option not in defaults:
      raise UserError(
        f'{given}: {name} has no option {option!r}; it has '
        f'{", ".join(defaults) or "none"}{nearest(option, defaults)}'
      )
    kind = type(defaults[option])
    values[option] = typed(value, kind, f'{given}: {option}')
    if kind is float and not math.isfinite(values[option]):
      raise UserError(f'{given}: {option} = {value} must be finite')
  changed = {
    option: values[option]
    for option, default in defaults.items()
    if option in values and values[option] != default
  }
  return Call(name, changed, entry)


def parse_joined(text: Any, table: Table, key: str) -> tuple[Call, ...]:
  """The calls of a text that joins them by +; raises as `parse`."""
  if text == '' and table.optional:
    return ()
  if not isinstance(text, str):
    return (parse(text, table, key),)
  parts = _split(text, '+', key)
  calls = tuple(parse(part, table, key) for part in parts)
  labels = [call.label for call in calls]
  for label in labels:
    if labels.count(label) > 1:
      raise UserError(f'config.{key} = {text!r} joins {label} with itself')
  return calls


def parse_layers(
  text: Any, table: Table, key: str
) -> tuple[tuple[Call, ...], ...]:
  """The joined calls of the first layers, a pattern that is repeated.

  The fewest that are the pattern: equal calls are one. Raises as `parse`.
  """
  entries = _split(text, ',', key) if isinstance(text, str) else [text]
  if not table.joins:
    pattern = [(parse(entry, table, key),) for entry in entries]
  else:
    pattern = [parse_joined(entry, table, key) for entry in entries]
  return tuple(pattern[: layers.period(pattern)])


def _split(text: str, separator: str, key: str) -> list[str]:
  try:
    return split(text, separator)
  except ValueError as error:
    raise UserError(f'config.{key}: {error}') from None


def joined_text(calls: tuple[Call, ...]) -> str:
  """The canonical text of joined calls."""
  return '+'.join(map(str, calls))


def layers_text(pattern: tuple[tuple[Call, ...], ...]) -> str:
  """The canonical text of a pattern over layers."""
  return ','.join(map(joined_text, pattern))


def options(entry: Any) -> dict[str, Any]:
  """The options of a class with their defaults, in the order of its fields.

  A field without a default, or with None, is no option.

  Raises:
    UserError: the class is no dataclass, or a default is of a type that a
      config cannot hold.
  """
  declared = {
    name
    for name, kind in inspect.get_annotations(entry).items()
    if 'ClassVar' not in str(kind)
  }
  fields = {}
  if dataclasses.is_dataclass(entry):
    fields = {field.name: field.default for field in dataclasses.fields(entry)}
  for name in sorted(declared - fields.keys() - _NOT_OPTIONS):
    raise UserError(
      f'{entry.__name__}.{name} is no field: {entry.__name__} needs '
      '@dataclasses.dataclass(frozen=True)'
    )
  found = {
    name: default
    for name, default in fields.items()
    if default not in (dataclasses.MISSING, None) and name not in _NOT_OPTIONS
  }
  for name, default in found.items():
    if not isinstance(default, bool | int | float | str | tuple):
      raise UserError(
        f'{entry.__name__}.{name} = {default!r} is the default of an option, '
        'which must be a bool, int, float, str or tuple'
      )
  return found


def sizes(entry: Any) -> set[str]:
  """Names of the fields that are no options."""
  names = {field.name for field in dataclasses.fields(entry)}
  return names - options(entry).keys() - _NOT_OPTIONS


def _keywords(inside: str, given: str) -> dict[str, Any]:
  """Options by name, of the text between the brackets of a call."""
  text = f'_({inside})'
  try:
    tree = ast.parse(text, mode='eval').body
    if not isinstance(tree, ast.Call):
      raise ValueError('it is more than a call')
    names = [word.arg for word in tree.keywords]
    if tree.args or None in names or not isinstance(tree.func, ast.Name):
      raise ValueError('each option has a name, as OPTION=VALUE')
    if len(set(names)) < len(names):
      raise ValueError('an option is repeated')
    return {word.arg: _value(word.value, text) for word in tree.keywords}
  except (SyntaxError, ValueError, RecursionError) as error:
    reason = getattr(error, 'msg', error)
    raise UserError(f'{given} is not a call: {reason}') from None


def _value(node: ast.expr, text: str) -> Any:
  """A literal; the text of a word or of a call."""
  if isinstance(node, ast.Name | ast.Call):
    return ast.get_source_segment(text, node)
  try:
    return ast.literal_eval(node)
  except ValueError:
    segment = ast.get_source_segment(text, node)
    raise ValueError(f'{segment!r} is no value; put quotes around it') from None


def _text(value: Any) -> str:
  """A value as `_keywords` reads it, without quotes around a word."""
  is_word = isinstance(value, str) and value.isidentifier()
  return value if is_word and not keyword.iskeyword(value) else repr(value)


def _example(table: Table) -> str:
  return next(iter(table.entries))
