"""The settings of stored runs: reading and comparing them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator

from experiments.command import modules
from experiments.command.errors import UserError, at
from experiments.command.log import log
from experiments.settings.settings import (
  FREE,
  Settings,
  default_config,
  from_config,
)
from experiments.workdir.workdir import check_json, is_new, read_json

# The format that config.json names. It is raised when an earlier version could
# not read what this one writes.
FORMAT = 1
# Where the modules of one's own are, and digests of their texts, by
# `module:NAME`.
_MODULES = 'modules.json'


def complete(config: dict) -> dict:
  """A stored nested config, with the default of each key that it lacks.

  A UserError says that another version has written it.
  """
  config = dict(config)
  version = config.pop('format', None)
  if version != FORMAT:
    raise UserError(
      f'the config has format {version!r}, and this version reads format '
      f'{FORMAT}; use the version that wrote it'
    )
  return _with_defaults(config, default_config())


def _with_defaults(values: dict, defaults: dict) -> dict:
  merged = defaults | values
  for name, default in defaults.items():
    if isinstance(default, dict) and isinstance(merged[name], dict):
      merged[name] = _with_defaults(merged[name], default)
  return merged


def read_settings(path: str) -> Settings:
  """Settings of the run in a workdir, or a UserError.

  Says which of one's own modules have changed since the run began.
  """
  with _modules_as_noted(path):
    settings = _read(path)
    say_changed(path)
  return settings


def _read(path: str) -> Settings:
  if not os.path.exists(os.path.join(path, 'config.json')):
    is_sweep = os.path.exists(os.path.join(path, 'sweep.json'))
    remedy = f'; a sweep has its runs in {path}/trials' * is_sweep
    raise UserError(f'{path}/config.json does not exist{remedy}')
  config = read_json(path, 'config.json', {})
  with at(f'{path}/config.json'):
    return from_config(complete(config))


def _noted(path: str) -> dict[str, tuple[str, str]]:
  """(file, digest) of each class of one's own, as a run or a sweep noted it."""
  noted = read_json(path, _MODULES, {})
  check_json(path, _MODULES, noted, dict.fromkeys(noted, tuple[str, str]), ())
  return {name: (file, digest) for name, (file, digest) in noted.items()}


@contextlib.contextmanager
def _modules_as_noted(path: str) -> Iterator[None]:
  """A context in which modules are the files that a run has noted."""
  search_modules(path)
  noted = _noted(path)
  files = {name.partition(':')[0]: file for name, (file, _) in noted.items()}
  with modules.found_first(files):
    yield


def say_changed(path: str) -> list[str]:
  """Says, once, which modules have changed since a run, or a sweep, noted them.

  Returns their classes, as the config names them.
  """
  changed = []
  for name, (file, digest) in _noted(path).items():
    now, digest_now = modules.source(name)
    if digest_now != digest:
      changed.append(name)
      _warn(
        f'{now}, or a module beside it, is not as it was when {path} began '
        f'with {file}'
      )
  return changed


@functools.cache
def _warn(text: str) -> None:
  """Logs a warning, once: a command reads the settings of a run in parts."""
  log(f'WARNING: {text}')


def modules_of(settings: Iterable[Settings], path: str = '') -> dict[str, str]:
  """Name and text of the file that notes one's own modules; {} without any.

  Those that a run or a sweep in a folder has noted stay as they were.
  """
  names = dict.fromkeys(name for one in settings for name in one.own_names())
  sources = {name: modules.source(name) for name in names}
  sources |= _noted(path)
  return {_MODULES: json.dumps(sources, indent=2)} if sources else {}


def search_modules(path: str) -> None:
  """Searches one's own modules where a run, or a sweep, has noted them.

  A UserError says which one is gone.
  """
  for name, (file, _) in _noted(path).items():
    modules.search(os.path.dirname(file))
    if not modules.is_found(name):
      raise UserError(
        f'{path} has {name} of {file}, which is gone; put it back, or into the '
        'working folder'
      )


def check(path: str, settings: Settings) -> int | None:
  """UserError if the workdir belongs to a run with other settings.

  A run may go on with more steps: then, the number that it had is returned.
  """
  if not os.path.exists(os.path.join(path, 'config.json')):
    if not is_new(path):
      raise UserError(
        f'--workdir={path} holds files but no run; choose another folder'
      )
    return None
  with _modules_as_noted(path):
    before = _read(path)
  steps = before.train.steps
  has_more = steps < settings.train.steps
  if has_more:
    train = dataclasses.replace(before.train, steps=settings.train.steps)
    before = dataclasses.replace(before, train=train)
    was, now = (s.optimizer.warmup_steps for s in (before, settings))
    if was != now:
      raise UserError(
        f'config.train.steps = {settings.train.steps} goes on from {steps} '
        f'with the same warm-up: config.optimizer.warmup_steps was {was} '
        f'steps, and is {now} now; write {was}'
      )
  check_equal(before, settings, f'--workdir={path} belongs to a run')
  say_changed(path)
  return steps if has_more else None


def check_equal(before: Settings, now: Settings, what: str) -> None:
  """UserError with `what`, which has settings, if they are not those now."""
  old, new = before.flat(), now.flat()
  differences = [
    f'config.{key} was {old[key]!r}, is {new[key]!r}'
    for key in sorted(new)
    if key not in FREE and old[key] != new[key]
  ]
  if differences:
    raise UserError(
      f'{what} with another config: {"; ".join(differences)}; choose another '
      '--workdir'
    )


def as_text(config: dict) -> str:
  """The text of config.json for a nested config."""
  return json.dumps(with_format(config), indent=2)


def with_format(config: dict) -> dict:
  """A nested config as it is stored."""
  return {'format': FORMAT} | config
