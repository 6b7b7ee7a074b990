"""Configs: Python files with get_config()."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from experiments.command.errors import UserError, in_file
from experiments.command.provenance import ROOT

DEFAULT_CONFIG = os.path.join(ROOT, 'configs', 'default.py')


def find_config(path: str) -> str:
  """The path itself or, of configs/NAME that is not there, one of this code."""
  folder = os.path.dirname(DEFAULT_CONFIG)
  if os.path.dirname(path) != os.path.basename(folder) or os.path.exists(path):
    return path
  file = os.path.join(folder, os.path.basename(path))
  return file if os.path.exists(file) else path


def load_config(path: str) -> Any:
  """The ConfigDict that get_config() of a Python file returns, or UserError."""
  return load_module(path)[1]


def load_module(path: str) -> tuple[ModuleType, Any]:
  """(module, ConfigDict) of a config file; UserError as by load_config."""
  name = f'--config={path}'
  if not os.path.isfile(path):
    raise UserError(f'{name} is not a file')
  if not path.endswith('.py'):
    raise UserError(f'{name} is not a Python file (.py)')
  module = ModuleType('config')
  module.__file__ = path
  folder = os.path.dirname(os.path.abspath(path))
  if folder not in sys.path:
    # For modules beside it, none of which hides one of Python.
    sys.path.append(folder)
  with in_file(path, name):
    # An import would write a __pycache__ beside the config.
    with open(path, 'rb') as file:
      code = compile(file.read(), path, 'exec', dont_inherit=True)
    exec(code, vars(module))
    config = module.get_config()
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'{name}: get_config() returns a {type(config).__name__}, '
      'not a ConfigDict'
    )
  _make_plain(config)
  return module, config


def _make_plain(config: ConfigDict) -> None:
  """Replaces numbers of NumPy in a config, and leaves all else as it is."""
  with config.ignore_type():
    for key, value in config.items():
      if isinstance(value, ConfigDict):
        _make_plain(value)
      elif repr(plain(value)) != repr(value):
        config[key] = plain(value)


def plain(value: Any) -> Any:
  """A value of a config with Python's numbers and lists for those of NumPy."""
  if isinstance(value, Mapping):
    return {key: plain(entry) for key, entry in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(map(plain, value))
  # Numbers and arrays of NumPy and JAX, which are not imported for this.
  return value.tolist() if hasattr(value, 'tolist') else value
