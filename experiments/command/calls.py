"""Choices that a config writes as calls: `rotary(base=500)`, `word`, `a+b`.

A call names an entry of a table, or a class of one's own as `module:Class`,
with the options that differ from their defaults:

    config.model.position = 'rotary(base=500)+t5(num_buckets=16)'
    config.model.normaliser = 'ideas:Sharp(power=2.0)'
    config.model.position = 'rotary,rotary,none'   # a pattern over layers

Options are the dataclass fields of the class that have a default, typed by
their annotations. A value is written as in Python; a word, or a call, needs no
quotes: `embeddings(optimizer=ideas:Sign(power=2))`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.command import fields, modules
from experiments.command.errors import UserError, at, nearest
from experiments.command.fields import typed
from experiments.command.values import split

_CALL = re.compile(r'([\w.]+(?::\w+)?)\s*(?:\((.*)\))?', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Call:
  """A class, chosen by name, and its options.

  `str` of it is the canonical text: the same for the same class and options.

  Attributes:
    name: of the entry of a table, or `module:Class`.
    options: those that differ from their defaults, in the order of the class.
    entry: the class.
    key: of the config, for messages.
  """

  name: str
  options: Mapping[str, Any]
  entry: Any = dataclasses.field(compare=False, repr=False)
  key: str = dataclasses.field(default='', compare=False, repr=False)

  @property
  def label(self) -> str:
    """The name, without the module of a class of one's own.

    After it comes the value of the option `label_option` of the class, if any.
    """
    name = self.name.rpartition(':')[2]
    option = getattr(self.entry, 'label_option', '')
    return f'{name}_{self.options[option]}' if option in self.options else name

  def without(self, option: str) -> Call:
    """This call with the default of one option."""
    rest = {k: v for k, v in self.options.items() if k != option}
    return dataclasses.replace(self, options=rest)

  def make(self, *sizes, **more) -> Any:
    """An instance; `sizes` and `more` are what the class needs besides.

    A UserError says which option the class refuses, or how it fails.
    """
    with self.checked():
      return self.entry(*sizes, **{**more, **self.options})

  @contextlib.contextmanager
  def checked(self) -> Iterator[None]:
    """A context in which errors of the class are UserErrors with key and call.

    They are ValueErrors `OPTION = ...`, or any error of a class of one's own.
    """
    name = f'config.{self.key} = {self}'
    try:
      yield
    except UserError:
      raise
    except ValueError as error:
      raise UserError(f'{name}: {error}') from None
    except Exception:
      if ':' not in self.name:
        raise
      with modules.user_errors_in(self.entry, name):
        raise

  def __str__(self):
    inside = ', '.join(f'{k}={option_text(v)}' for k, v in self.options.items())
    return f'{self.name}({inside})' if inside else self.name


@dataclasses.dataclass(frozen=True)
class Table:
  """What a choice may name.

  Attributes:
    entries: classes by name.
    base: what each of them is a subclass of.
    aliases: second names of entries.
    joins: whether several may be joined by +, each once.
    layers: whether several may be a pattern over layers, with commas between.
    optional: whether the text may be empty, for none.
  """

  entries: Mapping[str, Any]
  base: type
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
  joins: bool = False
  layers: bool = False
  optional: bool = False


def parse(text: Any, table: Table, key: str) -> Call:
  """The one call of a text; UserError for no entry, or a wrong option."""
  place = f'config.{key} = {text!r}'
  names = ', '.join(sorted(table.entries))
  if not isinstance(text, str):
    raise UserError(f'{place} must be text: one of {names}, or module:Class')
  matched = _CALL.fullmatch(text.strip())
  if matched is None:
    raise UserError(
      f'{place} is not a name, or a call as NAME(OPTION=VALUE, ...); its names '
      f'are {names}, or module:Class'
    )
  name, inside = matched.groups('')
  name = name if name in table.entries else table.aliases.get(name, name)
  if name in table.entries:
    entry = table.entries[name]
  elif ':' in name:
    entry = modules.named(name, table.base, f'config.{key}')
  else:
    known = [*table.entries, *table.aliases]
    raise UserError(
      f'{place} is not one of {names}, and no module:Class'
      f'{nearest(name, known)}'
    )
  with at(place):
    values, defaults = _options(name, entry, inside), fields.options(entry)
  changed = {
    option: values[option]
    for option, default in defaults.items()
    if option in values and values[option] != default
  }
  return Call(name, changed, entry, key)


def _options(name: str, entry: Any, inside: str) -> dict[str, Any]:
  """The options between the brackets of a call; UserError as by `parse`."""
  known, values = fields.typed_fields(entry), {}
  for option, value in _keywords(inside).items():
    if option not in known:
      raise UserError(
        f'{name} has no option {option!r}; it has '
        f'{", ".join(known) or "none"}{nearest(option, known)}'
      )
    values[option] = typed(value, known[option][0], option)
    if not _is_finite(values[option]):
      raise UserError(f'{option} = {value} must be finite')
  return values


def _is_finite(value: Any) -> bool:
  """Whether no number in it is infinite; there is no literal for NaN."""
  if isinstance(value, tuple):
    return all(map(_is_finite, value))
  return value not in (math.inf, -math.inf)


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
      same = [call.name for call in calls if call.label == label]
      if len(set(same)) > 1:
        raise UserError(
          f'config.{key} = {text!r} joins classes of one name, '
          f'{" and ".join(same)}, as which parameters are stored; rename one'
        )
      raise UserError(f'config.{key} = {text!r} joins {label} with itself')
  return calls


def read(value: Any, table: Table, key: str) -> Call | tuple:
  """The call of a choice, those that it joins, or a pattern of these.

  A pattern over layers is repeated, and has the fewest entries: equal calls are
  one. Raises as `parse`.
  """
  of_layer = parse_joined if table.joins else parse
  if not table.layers:
    return of_layer(value, table, key)
  # Late: it imports jax, for which --help does not wait.
  from selfattn import layers

  entries = _split(value, ',', key) if isinstance(value, str) else [value]
  pattern = [of_layer(entry, table, key) for entry in entries]
  if not table.joins:
    pattern = [(call,) for call in pattern]
  return tuple(pattern[: layers.period(pattern)])


def _split(text: str, separator: str, key: str) -> list[str]:
  try:
    parts = split(text, separator)
  except ValueError as error:
    raise UserError(f'config.{key}: {error}') from None
  if len(parts) > 1 and not all(part.strip() for part in parts):
    raise UserError(
      f'config.{key} = {text!r} must have a name on either side of each '
      f'{separator!r}'
    )
  return parts


def text(value: Call | tuple) -> str:
  """The canonical text of a choice, from which `read` has the same choice."""
  if isinstance(value, Call):
    return str(value)
  is_pattern = any(isinstance(part, tuple) for part in value)
  return (',' if is_pattern else '+').join(map(text, value))


def _keywords(inside: str) -> dict[str, Any]:
  """Options by name, of the text between the brackets of a call."""
  values = {}
  try:
    *parts, last = split(inside)
    # Of the last one, as in Python, a comma may follow.
    for part in [*parts, last] if last.strip() else parts:
      name, separator, value = part.partition('=')
      if not separator or not name.strip().isidentifier():
        raise ValueError('each option has a name, as OPTION=VALUE')
      if name.strip() in values:
        raise ValueError('an option is repeated')
      values[name.strip()] = _value(value.strip())
  except ValueError as error:
    raise UserError(f'it is not a call: {error}') from None
  return values


def _value(text: str) -> Any:
  """The value of a literal; of a word or a call, its text."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError, TypeError, RecursionError):
    if _CALL.fullmatch(text):
      return text
    raise ValueError(f'{text!r} is no value; put quotes around it') from None


def option_text(value: Any) -> str:
  """A value as people write it in a call: a word has no quotes, 3.0 is 3."""
  is_word = isinstance(value, str) and value.isidentifier()
  if is_word and not keyword.iskeyword(value):
    return value
  text = repr(value)
  return text.removesuffix('.0') if isinstance(value, float) else text
