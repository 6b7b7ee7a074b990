"""Values as people write them: choices by name, tuples, dotted keys."""

from __future__ import annotations

import ast
import csv
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

_QUOTES, _BRACKETS = '\'"', {'(': ')', '[': ']'}
_INTEGER = re.compile('0|-?[1-9][0-9]*')


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


def flat_keys(config, prefix: str = '') -> dict[str, object]:
  """Dotted keys and values of a ConfigDict or dict, sections included."""
  keys: dict[str, object] = {}
  for name, value in config.items():
    keys[f'{prefix}{name}'] = value
    if isinstance(value, ConfigDict | dict):
      keys |= flat_keys(value, f'{prefix}{name}.')
  return keys
