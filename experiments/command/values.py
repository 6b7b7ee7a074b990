"""Values as people write them: choices by name, tuples, dotted keys."""

from __future__ import annotations

import ast
import csv
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

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


def flat_keys(config, prefix: str = '') -> dict[str, object]:
  """Dotted keys and values of a ConfigDict or dict, sections included."""
  keys: dict[str, object] = {}
  for name, value in config.items():
    keys[f'{prefix}{name}'] = value
    if isinstance(value, ConfigDict | dict):
      keys |= flat_keys(value, f'{prefix}{name}.')
  return keys
