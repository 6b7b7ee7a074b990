"""Overrides of keys, from generators of a config file and from --grid.

    def sweep_positions():
      for name in ('none', 'rotary', 't5'):
        yield {'model.position': name}

A config file may define generators like this one beside get_config(). Several
of them are combined to their product.
"""

from __future__ import annotations

import itertools
from typing import Any

from experiments.command import config_files
from experiments.command.errors import UserError, in_file, nearest
from experiments.command.values import (
  flat_keys,
  kind_of,
  parse_tuple,
  split,
  unquoted,
)


def product(sweeps: list[list[dict]]) -> list[dict]:
  """Cartesian product of lists of overrides; UserError for a key of two."""
  trials = []
  for parts in itertools.product(*sweeps):
    merged: dict = {}
    for part in parts:
      twice = merged.keys() & part.keys()
      if twice:
        raise UserError(f'two sweeps override config.{min(twice)}')
      merged |= part
    trials.append(merged)
  return trials


def generated(module, name: str) -> list[dict]:
  """Overrides from a generator sweep_NAME of a config file, or a UserError."""
  known = [n.removeprefix('sweep_') for n in vars(module) if n[:6] == 'sweep_']
  if name not in known:
    # Those of the default config are not inherited: they may not fit a config.
    raise UserError(
      f'--sweep={name}: {module.__file__} has no sweep_{name}(); it has '
      f'{", ".join(sorted(known)) or "no other"}{nearest(name, known)}'
    )
  function = getattr(module, f'sweep_{name}')
  with in_file(module.__file__, f'--sweep={name}'):
    trials = list(function() or ())
  if not trials or not all(isinstance(trial, dict) for trial in trials):
    raise UserError(f'--sweep={name}: sweep_{name}() must yield dicts of keys')
  return config_files.plain(trials)


def grid(text: str, config) -> list[dict]:
  """Overrides of --grid 'config.KEY=VALUE,VALUE,...', parsed by type of KEY.

  A comma inside of quotes or brackets belongs to a value. UserError if there is
  no such key, or for a value of another type.
  """
  name, _, values = text.partition('=')
  prefix, _, key = name.partition('.')
  keys = flat_keys(config)
  if not values or prefix != 'config':
    raise UserError(f'--grid={text} is not config.KEY=VALUE,VALUE')
  if key not in keys:
    raise UserError(
      f'--grid={text}: config has no key {key}{nearest(key, list(keys))}'
    )
  try:
    parts = split(values)
  except ValueError as error:
    raise UserError(f'--grid=config.{key}: {error}') from error
  return [{key: _parsed(part, keys[key], text)} for part in parts]


def _parsed(text: str, current: Any, flag: str) -> Any:
  if isinstance(current, str):
    return unquoted(text)
  try:
    if isinstance(current, bool):
      return {'true': True, 'false': False}[text.lower()]
    if isinstance(current, int | float):
      return type(current)(text)
    return parse_tuple(text)
  except (KeyError, ValueError) as error:
    raise UserError(
      f'--grid={flag}: {text!r} is not {kind_of(current)}'
    ) from error
