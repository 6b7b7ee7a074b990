"""What each key of a config means, and which values it may have.

The meaning of a key stands once in the code: in the comment of its line in
configs/default.py or, of an option, in the docstring of its class. What is
allowed is what `settings.from_config` says where it refuses a value.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import re
from typing import Any

from experiments.command.config_files import DEFAULT_CONFIG, load_config
from experiments.command.errors import UserError
from experiments.command.values import KINDS, flat_keys
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.parameter_groups import GROUPS, GroupSettings
from experiments.settings import registry, settings
from experiments.settings.keys import CHOICES, NAMES, name_key

# A value of each type that is refused wherever some are.
_REFUSED: dict[type, Any] = {
  bool: False,
  int: -7,
  float: -7.0,
  str: '?',
  tuple: ('?',),
}


def meanings() -> dict[str, str]:
  """A sentence by dotted key, in the order of default.py, then of the tables.

  It is '' for an option whose class does not document it.
  """
  with open(DEFAULT_CONFIG, encoding='utf-8') as file:
    found = _comments(file.read())
  for table, block in CHOICES.values():
    for name, cls in table.items():
      for option in registry.options(cls):
        found[f'{block}.{name}.{option}'] = attribute(cls, option)
  for group in GROUPS:
    for field in dataclasses.fields(GroupSettings):
      key = f'optimizer.groups.{group}.{field.name}'
      found[key] = attribute(GroupSettings, field.name)
  return found


def allowed() -> dict[str, str]:
  """The type of each key, and the values that are not refused."""
  base = load_config(DEFAULT_CONFIG).to_dict()
  # Where a check depends on other keys, these leave the key to be the cause.
  for key, value in {
    'data.name': 'text',
    'data.dir': 'folder',
    'model.encoder.attention.causal': True,
  }.items():
    _set(base, key, value)
  return {
    key: _allowed(base, key, value)
    for key, value in flat_keys(base).items()
    if not isinstance(value, dict)
  }


def described() -> dict[str, str]:
  """Meaning and allowed values of each key, for --help."""
  found = meanings()
  return {
    key: f'{found[key]} ({values})'.strip() for key, values in allowed().items()
  }


def attribute(cls: type, name: str) -> str:
  """What the docstring of a class, or of a base, says of an attribute."""
  for each in cls.__mro__:
    text = inspect.cleandoc(vars(each).get('__doc__') or '')
    _, _, section = text.partition('\nAttributes:\n')
    found = re.search(
      rf'^  {name}: (.*(?:\n    .*)*)', section, flags=re.MULTILINE
    )
    if found:
      return _sentence(found[1])
  return ''


def _sentence(text: str) -> str:
  """On one line, without the final dot."""
  return ' '.join(text.split()).rstrip('.')


def _comments(text: str) -> dict[str, str]:
  """The comment above or behind each assignment to a key in get_config()."""
  lines = text.splitlines()
  (body,) = (
    node.body
    for node in ast.parse(text).body
    if isinstance(node, ast.FunctionDef) and node.name == 'get_config'
  )
  names = {CHOICES[c][1]: name_key(c) for c in CHOICES if c not in NAMES}
  sections, found = {'config': ''}, {}
  for node in body:
    target, *others = getattr(node, 'targets', [None])
    if not isinstance(target, ast.Attribute):
      continue
    key = f'{sections[target.value.id]}{target.attr}'
    sections |= {other.id: f'{key}.' for other in others}
    first = node.lineno - 1
    while lines[first - 1].lstrip().startswith('#'):
      first -= 1
    own = '\n'.join(
      (*lines[first : node.lineno - 1], lines[node.end_lineno - 1])
    )
    if comment := ' '.join(re.findall('# (.*)', own)):
      found[names.get(key, key)] = _sentence(comment)
  return found


def _allowed(base: dict, key: str, value: Any) -> str:
  refused, name = _REFUSED[type(value)], KINDS[type(value)]
  config = copy.deepcopy(base)
  for choice, (table, block) in CHOICES.items():
    entry = key.removeprefix(f'{block}.').partition('.')[0]
    if key.startswith(f'{block}.') and entry in table:
      own = table is OPTIMIZERS and table[entry].only
      group = f'optimizer.groups.{own[0]}.name' if own else ''
      _set(config, group or name_key(choice), entry)
  _set(config, key, refused)
  try:
    settings.from_config(config)
  except UserError as error:
    found = re.match(
      rf'config\.{re.escape(key)} = \S+ (?:must be|is not) (one of .*|.*)',
      str(error),
    )
    if found:
      # Values of other keys are those of this config.
      what = re.sub(r'([\w.]+) = [^\s,]+', r'\1', found[1])
      return what if what.startswith('one of') else f'{name}, {what}'
  return name


def _set(config: dict, key: str, value: Any) -> None:
  *sections, name = key.split('.')
  for section in sections:
    config = config[section]
  config[name] = value
