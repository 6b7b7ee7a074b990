"""Classes of one's own, named `module:Class` in a config.

A module is found in the working folder, beside the file of --config, where the
run that names it has found it, or on the path of Python. It is executed once
for each version of its file, so that a notebook may use several; modules beside
it that it imports are its own, too.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from experiments.command.errors import UserError, nearest

# How near a name has to be to that of a method to be taken for it.
_ALIKE = 0.8
# Folders that are searched besides; mutable, as sys.path is.
_folders: list[str] = []
# Modules by file and digest.
_loaded: dict[tuple[str, str], ModuleType] = {}


def search(folder: str) -> None:
  """Adds a folder in which modules are searched."""
  path = os.path.abspath(folder)
  if path not in _folders:
    _folders.append(path)


def named(name: str, base: type | None, place: str) -> Any:
  """The class, or function, `module:NAME`.

  Args:
    base: what a class has to be a subclass of; None: anything.
    place: where the name stands, such as `config.model.position`, for messages.

  Raises:
    UserError: there is no such module or class, it fails, or it is not what
      `base` describes.
  """
  module_name, _, attribute = name.partition(':')
  given = f'{place}: {name}'
  module = _module(module_name, given)
  if not hasattr(module, attribute):
    names = [n for n in vars(module) if not n.startswith('_')]
    raise UserError(
      f'{given}: {module.__file__} has no {attribute}'
      f'{nearest(attribute, names)}'
    )
  entry = getattr(module, attribute)
  if base is not None:
    _check_class(entry, base, given)
  return entry


def source(name: str) -> tuple[str, str]:
  """(file, digest of its text) of the module of `module:NAME`.

  Raises:
    UserError: there is no such module.
  """
  module_name, _, _ = name.partition(':')
  path = _found(module_name)
  if path is None:
    raise UserError(_missing(module_name))
  with open(path, 'rb') as file:
    return path, hashlib.sha256(file.read()).hexdigest()[:16]


def _module(name: str, given: str) -> ModuleType:
  path = _found(name)
  if path is None:
    raise UserError(f'{given}: {_missing(name)}')
  if '.' in name:
    return importlib.import_module(name)
  _, digest = source(name)
  if (path, digest) not in _loaded:
    _loaded[path, digest] = _executed(name, path, digest, given)
  return _loaded[path, digest]


def _found(name: str) -> str | None:
  """The file of a module; None: there is none."""
  if '.' in name:
    try:
      spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
      spec = None
  else:
    places = [os.getcwd(), *_folders, *sys.path]
    spec = importlib.machinery.PathFinder.find_spec(name, places)
  return spec.origin if spec and spec.has_location else None


def _missing(name: str) -> str:
  places = ', '.join(dict.fromkeys([os.getcwd(), *_folders]))
  return f'there is no module {name} in {places}, or on the path of Python'


def _executed(name: str, path: str, digest: str, given: str) -> ModuleType:
  """A new module of this version of the file."""
  spec = importlib.util.spec_from_file_location(f'{name}@{digest}', path)
  if spec is None or spec.loader is None:
    raise UserError(f'{given}: {path} is not a Python file (.py)')
  module = importlib.util.module_from_spec(spec)
  folder, before = os.path.dirname(path), set(sys.modules)
  sys.path.insert(0, folder)
  # Dataclasses look up the module of their annotations.
  sys.modules[spec.name] = module
  try:
    spec.loader.exec_module(module)
  except UserError:
    raise
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    where = f' line {lines[-1]}' if lines else ''
    raise UserError(
      f'{given}: {path}{where}: {type(error).__name__}: {error}'
    ) from error
  finally:
    sys.path.remove(folder)
    _forget_helpers(folder, before)
  return module


def _forget_helpers(folder: str, before: set[str]) -> None:
  """Another version of a module imports the modules beside it anew."""
  for name in set(sys.modules) - before:
    file = getattr(sys.modules[name], '__file__', None)
    if file and '@' not in name and os.path.dirname(file) == folder:
      del sys.modules[name]


def _check_class(entry: Any, base: type, given: str) -> None:
  """UserError unless it is a subclass, with the methods of `base`."""
  if not (isinstance(entry, type) and issubclass(entry, base)):
    raise UserError(
      f'{given} must be a subclass of {base.__module__}.{base.__name__}'
    )
  known = [name for name in dir(base) if not name.startswith('_')]
  for cls in entry.__mro__[: entry.__mro__.index(base)]:
    for name, method in vars(cls).items():
      if not inspect.isfunction(method) or name.startswith('_'):
        continue
      if name in known:
        _check_signature(cls, name, getattr(base, name), given)
        continue
      near = difflib.get_close_matches(name, known, 1, _ALIKE)
      if near:
        raise UserError(
          f'{given}: {cls.__name__}.{name} is no method of {base.__name__}; '
          f'did you mean {near[0]}? A helper needs another name'
        )


def _check_signature(cls: type, name: str, wanted: Any, given: str) -> None:
  """UserError if a method cannot be called as that of the base class."""
  if not inspect.isfunction(wanted):
    return
  signature = inspect.signature(vars(cls)[name])
  parameters = inspect.signature(wanted).parameters
  arguments, keywords = [], {}
  for parameter in parameters.values():
    if parameter.kind is parameter.KEYWORD_ONLY:
      keywords[parameter.name] = None
    elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
      arguments.append(None)
  try:
    signature.bind(*arguments, **keywords)
  except TypeError as error:
    raise UserError(
      f'{given}: {cls.__name__}.{name}({", ".join(signature.parameters)}) must '
      f'take ({", ".join(parameters)}): {error}'
    ) from None
