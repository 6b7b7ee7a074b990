"""Values of a config: parsing, types, dotted keys."""

from __future__ import annotations

import ast
import re
from typing import Any

from ml_collections import ConfigDict

_QUOTES, _BRACKETS = '\'"', {'(': ')', '[': ']'}
_QUOTED = re.compile(r'([\'"])((?:\\.|(?!\1).)*)\1', re.DOTALL)
_INTEGER = re.compile('0|-?[1-9][0-9]*')


def parse_tuple(text: str) -> tuple:
  """Parses a Python tuple, or comma-separated words: `a,b`, `"a,b",c`.

  Integers as Python prints them become int; all else stays a string: `+1`,
  `1.50`. A ValueError says that brackets or quotes do not match.
  """
  text = text.strip()
  try:
    if text.startswith(('(', '[')):
      value = ast.literal_eval(text)
      if not isinstance(value, tuple | list):
        raise ValueError('brackets alone make no tuple')
      return tuple(value)
    words = [unquoted(word.strip()) for word in split(text)]
  except (ValueError, SyntaxError) as error:
    raise ValueError(f'{text!r} is not a tuple; write a,b') from error
  if not words[-1]:
    del words[-1]
  return tuple(int(w) if _INTEGER.fullmatch(w) else w for w in words)


def shown(value: Any) -> str:
  """A value as it is written on a command line; '' for None."""
  if isinstance(value, list | tuple):
    return ','.join(map(str, value))
  return '' if value is None else str(value)


# What values of a type of a config are called.
KINDS = {
  bool: 'True or False',
  int: 'an integer',
  float: 'a number',
  str: 'text',
  tuple: 'a list, as a,b or (1, 2)',
  type(None): 'None',
}


def kind_of(value: Any) -> str:
  """What values of its type are called, with numbers as an example."""
  name = KINDS[type(value)]
  is_number = type(value) in (int, float)
  return f'{name}, such as {value!r}' if is_number else name


def split(text: str, separator: str = ',') -> list[str]:
  """Splits at the separators outside of quotes and brackets.

  A quote opens only at the beginning of a value, or of an element in brackets,
  and closes at its end; a backslash before it stands for the character. A
  ValueError says that quotes or brackets do not match.
  """
  parts, start, closing, quote, before = [], 0, [], '', separator
  characters = iter(enumerate(text))
  for index, character in characters:
    if quote:
      if character == '\\':
        next(characters, None)
      elif character == quote:
        quote, before = '', 'end of quotes'
      continue
    if before == 'end of quotes' and character not in f'{separator},)]= ':
      closing.append('')
      break
    if character in _QUOTES and before in f'{separator},=([':
      quote = character
    elif character in _BRACKETS:
      closing.append(_BRACKETS[character])
    elif character in _BRACKETS.values():
      if not closing or closing.pop() != character:
        closing.append('')
        break
    elif character == separator and not closing:
      parts.append(text[start:index])
      start = index + 1
    before = before if character.isspace() else character
  if quote or closing:
    raise ValueError(
      f'quotes or brackets that do not match in {text!r}; put quotes around '
      'a value that holds one'
    )
  return [*parts, text[start:]]


def unquoted(text: str) -> str:
  r"""The text in quotes, with \' for a quote; any other text as it is."""
  if not (matched := _QUOTED.fullmatch(text)):
    return text
  return re.sub(r'\\([\'"\\])', r'\1', matched[2])


def is_section(value: object) -> bool:
  """Whether a value of a config has keys of its own."""
  return isinstance(value, ConfigDict | dict)


def flat_keys(config, prefix: str = '') -> dict[str, object]:
  """Dotted keys and values of a ConfigDict or dict, sections included."""
  keys: dict[str, object] = {}
  for name, value in config.items():
    keys[f'{prefix}{name}'] = value
    if is_section(value):
      keys |= flat_keys(value, f'{prefix}{name}.')
  return keys


def join(section: str, name: str) -> str:
  """Dotted key of a name in a section; '' is the config itself."""
  return f'{section}.{name}' if section else name
