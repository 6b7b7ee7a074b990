"""Classes of one's own, named `module:Class` in a config.

A module is found in the working folder, beside the file of --config, where the
run that names it has found it, or on the path of Python. A file is executed
once for each version of it, so that a notebook may use several; modules beside
it that it imports are its own, too. Modules of a package are imported once in a
process, as by Python.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from experiments.command.errors import UserError, at, in_file, nearest
from experiments.command.provenance import ROOT

# How near a name has to be to one of the contract to be taken for it.
_ALIKE = 0.8
_PROJECT = ('selfattn', 'experiments')


class _Version(NamedTuple):
  """A module as it was executed.

  Attributes:
    module: itself.
    files: its file, and those of the modules beside it that it has imported, or
      of its package.
    digest: of the texts of these files.
  """

  module: ModuleType
  files: tuple[str, ...]
  digest: str


# Folders that are searched besides, files by name of module that come first,
# and versions by file; mutable, as sys.path is.
_folders: list[str] = []
_first: dict[str, str] = {}
_versions: dict[str, list[_Version]] = {}


def search(folder: str) -> None:
  """Adds a folder in which modules are searched."""
  path = os.path.abspath(folder)
  if path not in _folders:
    _folders.append(path)


@contextlib.contextmanager
def found_first(files: Mapping[str, str]) -> Iterator[None]:
  """A context in which modules are these files, by name, where these exist."""
  before = dict(_first)
  _first.update(files)
  try:
    yield
  finally:
    _first.clear()
    _first.update(before)


def named(name: str, base: type | None, place: str) -> Any:
  """The class, or another attribute, `module:NAME`, of the file as it is now.

  A UserError says that there is none, that it fails, or that it does not fulfil
  the contract of `base`, with the place where the name stands.
  """
  module_name, _, attribute = name.partition(':')
  with at(f'{place}: {name}'):
    module = _version(module_name).module
    if not hasattr(module, attribute):
      names = [n for n in vars(module) if not n.startswith('_')]
      raise UserError(
        f'{module.__file__} has no {attribute}{nearest(attribute, names)}'
      )
    entry = getattr(module, attribute)
    if base is not None:
      _check_class(entry, base)
  return entry


@contextlib.contextmanager
def user_errors_in(entry: Any, name: str) -> Iterator[None]:
  """A context in which errors of a class or a function are UserErrors.

  They have the line of its file, after the name of what is executed.
  """
  module = sys.modules.get(entry.__module__)
  path = getattr(module, '__file__', None) or ''
  with in_file(path, f'{name}: {path}'.removesuffix(': ')):
    yield


def is_found(name: str) -> bool:
  """Whether there is a file of the module of `module:NAME`."""
  return _file(name.partition(':')[0]) is not None


def source(name: str) -> tuple[str, str]:
  """(file, digest of its version) of the module of `module:NAME`.

  A UserError says that there is none, or that it fails.
  """
  version = _version(name.partition(':')[0])
  return version.files[0], version.digest


def _version(name: str) -> _Version:
  """The module as its files are now."""
  path = _file(name)
  if path is None:
    places = ', '.join(dict.fromkeys([os.getcwd(), *_folders]))
    raise UserError(
      f'there is no module {name} in {places}, or on the path of Python'
    )
  if not os.path.isfile(path):
    raise UserError(f'{path} is no file by itself; unpack what it is in')
  known = _versions.setdefault(path, [])
  is_of_package = '.' in name or os.path.basename(path) == '__init__.py'
  is_current = known and (
    is_of_package or _digest(known[-1].files) == known[-1].digest
  )
  if not is_current:
    module, files = (
      _imported(name, path)
      if is_of_package
      else _executed(name, path, len(known))
    )
    known.append(_Version(module, files, _digest(files)))
  return known[-1]


def _file(name: str) -> str | None:
  """The file of a module; None: there is none."""
  if os.path.exists(_first.get(name, '')):
    return _first[name]
  top, *rest = name.split('.')
  finder = importlib.machinery.PathFinder
  spec = finder.find_spec(top, [os.getcwd(), *_folders, *sys.path])
  if spec is None:
    # Those of packages that are installed to be edited.
    specs = (one.find_spec(top, None) for one in sys.meta_path)
    spec = next(filter(None, specs), None)
  for part in rest:
    places = spec.submodule_search_locations if spec else None
    spec = finder.find_spec(part, places or [])
  return spec.origin if spec and spec.has_location else None


def _digest(files: tuple[str, ...]) -> str:
  digest = hashlib.sha256()
  for path in files:
    with contextlib.suppress(FileNotFoundError), open(path, 'rb') as file:
      digest.update(hashlib.sha256(file.read()).digest())
  return digest.hexdigest()[:16]


def _imported(name: str, path: str) -> tuple[ModuleType, tuple[str, ...]]:
  """A module of a package, and its file with all others of the package."""
  folder = path.removesuffix('__init__.py').rstrip(os.sep)
  for _ in name.split('.'):
    folder = os.path.dirname(folder)
  with _on_path(folder), in_file(path, path):
    try:
      module = importlib.import_module(name)
    except ModuleNotFoundError as error:
      # It exists, so that its package is another one of this name.
      if not f'{name}.'.startswith(f'{error.name}.'):
        raise
      module = sys.modules[name.partition('.')[0]]
  imported = module.__file__ or ''
  if os.path.realpath(imported) != os.path.realpath(path):
    raise UserError(f'{path} is hidden by {imported}; rename one')
  if _holds_libraries(folder):
    return module, (path,)
  # Where an editable install has it, whatever the name of that folder.
  files = {
    file
    for package in sys.modules[name.partition('.')[0]].__path__
    for file in glob.glob(f'{glob.escape(package)}/**/*.py', recursive=True)
  }
  return module, (path, *sorted(files - {path}))


def _executed(
  name: str, path: str, number: int
) -> tuple[ModuleType, tuple[str, ...]]:
  """A new module, and its file with those of the modules beside it."""
  folder, before = os.path.dirname(path), set(sys.modules)
  try:
    with _on_path(folder), in_file(path, path):
      spec = importlib.util.spec_from_file_location(f'{name}@{number}', path)
      if spec is None or spec.loader is None:
        raise UserError(f'{path} is not a Python file (.py)')
      module = importlib.util.module_from_spec(spec)
      # Dataclasses look up the module of their annotations.
      sys.modules[spec.name] = module
      spec.loader.exec_module(module)
  finally:
    helpers = _without_helpers(folder, before)
  return module, (path, *helpers)


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
  """A context in which modules of a folder come first; later, they are last.

  None of them hides `experiments` or `configs`, which stay those of this code.
  """
  first = sys.path.index(ROOT) + 1 if ROOT in sys.path else 0
  sys.path.insert(first, folder)
  try:
    yield
  finally:
    sys.path.remove(folder)
    if folder not in sys.path:
      # For imports inside of functions.
      sys.path.append(folder)


def _holds_libraries(folder: str) -> bool:
  return folder in map(sysconfig.get_path, ('purelib', 'platlib'))


def _without_helpers(folder: str, before: set[str]) -> list[str]:
  """Files of new modules of a folder, which another version imports anew.

  Those of libraries are not one's own.
  """
  helpers: list[str] = []
  if _holds_libraries(folder):
    return []
  for name in sorted(set(sys.modules) - before):
    top = sys.modules.get(name.partition('.')[0])
    of_top = [*getattr(top, '__path__', ()), getattr(top, '__file__', None)]
    is_new = name.partition('.')[0] not in before and '@' not in name
    if is_new and os.path.dirname(of_top[0] or '') == folder:
      helpers.append(name)
  files = [getattr(sys.modules.pop(name), '__file__', None) for name in helpers]
  return [file for file in files if file]


def _check_class(entry: Any, base: type) -> None:
  """UserError unless it is a subclass that fulfils the contract of `base`."""
  is_class = isinstance(entry, type) and issubclass(entry, base)
  if not is_class or entry is base:
    raise UserError(
      f'it must be a subclass of {base.__module__}.{base.__name__}'
    )
  # Of Text, say, rather than of any data set.
  ours = (c for c in entry.__mro__ if c.__module__.startswith(_PROJECT))
  nearest = next(ours, base)
  contract = {
    name: getattr(nearest, name)
    for cls in nearest.__mro__
    if cls.__module__.startswith(_PROJECT)
    for name in vars(cls)
    if not name.startswith('_') or name == '__call__'
  }
  for cls in entry.__mro__[: entry.__mro__.index(nearest)]:
    fields = inspect.get_annotations(cls)
    for name in vars(cls):
      if name in contract:
        _check_signature(cls, name, contract[name])
      elif not name.startswith('_') and name not in fields:
        near = difflib.get_close_matches(name, contract, 1, _ALIKE)
        if near:
          raise UserError(
            f'{cls.__name__}.{name} is not in its contract; did you mean '
            f'{near[0]}? A helper needs another name'
          )
  for name, method in contract.items():
    # Flax wraps the methods of modules.
    code = getattr(inspect.unwrap(method), '__code__', None)
    is_required = code and 'NotImplementedError' in code.co_names
    if is_required and getattr(entry, name) is method:
      parameters = ', '.join(inspect.signature(method).parameters)
      raise UserError(f'{entry.__name__} needs {name}({parameters})')


def _check_signature(cls: type, name: str, required: Any) -> None:
  """UserError if a method cannot be called as that of the base class."""
  method = vars(cls)[name]
  if not inspect.isfunction(required) or not inspect.isfunction(method):
    return
  signature = inspect.signature(method)
  parameters = inspect.signature(required).parameters
  kinds = [(p.name, p.kind) for p in parameters.values()]
  arguments = [n for n, kind in kinds if kind.name == 'POSITIONAL_OR_KEYWORD']
  keywords = {n: None for n, kind in kinds if kind.name == 'KEYWORD_ONLY'}
  try:
    signature.bind(*arguments, **keywords)
  except TypeError as error:
    raise UserError(
      f'{cls.__name__}.{name}({", ".join(signature.parameters)}) must '
      f'take ({", ".join(parameters)}): {error}'
    ) from None
