"""Python files with get_config(): configs, and the copies in workdirs."""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from experiments.command.errors import UserError

DEFAULT_CONFIG = os.path.abspath(
  os.path.join(os.path.dirname(__file__), '..', '..', 'configs', 'default.py')
)


def find_config(path: str) -> str:
  """The path itself or, of configs/NAME that is not there, one of this code."""
  folder = os.path.dirname(DEFAULT_CONFIG)
  if os.path.dirname(path) != os.path.basename(folder) or os.path.exists(path):
    return path
  found = os.path.join(folder, os.path.basename(path))
  return found if os.path.exists(found) else path


def load_config(path: str) -> ConfigDict:
  """The ConfigDict that get_config() of a Python file returns.

  Raises:
    UserError: there is no such file or function, or it fails; with the line.
  """
  return load_module(path)[1]


def load_module(path: str) -> tuple[ModuleType, ConfigDict]:
  """(module, ConfigDict) of a config file; UserError as of load_config."""
  name = f'--config={path}'
  if not os.path.isfile(path):
    file, _, more = path.rpartition(':')
    remedy = ''
    if os.path.isfile(file):
      remedy = (
        f'; get_config() takes no argument such as {more!r}: give '
        '--config.KEY=VALUE for what differs'
      )
    raise UserError(f'{name} is not a file{remedy}')
  module = execute(path, name)
  config = call(lambda: module.get_config(), path, name)
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'{name}: get_config() returns a {type(config).__name__}, '
      'not a ConfigDict'
    )
  return module, config


def execute(path: str, name: str) -> ModuleType:
  """The module of a Python file, executed at every call.

  Args:
    name: name of the file in errors.

  Raises:
    UserError: it is not Python, or fails; with the line.
  """
  spec = importlib.util.spec_from_file_location('config', path)
  if spec is None:
    raise UserError(f'{name} is not a Python file (.py)')
  module = importlib.util.module_from_spec(spec)

  def run():
    # exec_module would write a __pycache__ beside the config.
    code = spec.loader.source_to_code(spec.loader.get_data(path), path)
    exec(code, module.__dict__)

  call(run, path, name)
  return module


def plain(value: Any) -> Any:
  """A value of a config with Python's numbers and lists for those of NumPy."""
  if isinstance(value, Mapping):
    return {key: plain(entry) for key, entry in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(map(plain, value))
  # Numbers and arrays of NumPy and JAX, which are not imported for this.
  return value.tolist() if hasattr(value, 'tolist') else value


def call(function: Callable, path: str, name: str):
  """The result of a function of a file; UserError as of `execute`."""
  try:
    return function()
  except UserError:
    raise
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError):
      lines = [error.lineno]
    where = f' line {lines[-1]}' if lines else ''
    remedy = ''
    if isinstance(error, ModuleNotFoundError):
      remedy = '; its folder is searched if it is in PYTHONPATH'
    raise UserError(
      f'{name}{where}: {type(error).__name__}: {error}{remedy}'
    ) from error
