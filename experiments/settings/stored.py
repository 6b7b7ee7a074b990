"""The settings of stored runs: reading and comparing them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from experiments.command import modules
from experiments.command.errors import UserError, at
from experiments.command.log import log
from experiments.settings.settings import (
  FREE,
  Settings,
  default_config,
  from_config,
)
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.workdir import Workdir

# The format that config.json names. It is raised when an earlier version could
# not read what this one writes.
FORMAT = 1
# Where the modules of one's own are, and digests of their texts, by
# `module:NAME`.
_MODULES = 'modules.json'


def complete(config: dict) -> dict:
  """A stored nested config, with the default of each key that it lacks.

  Raises:
    UserError: another version has written it.
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
  """Settings of the run in a workdir.

  Says which of one's own modules have changed since the run began.

  Raises:
    UserError: there is no run, or its config cannot be read.
  """
  sources = search_modules(path)
  files = {name.partition(':')[0]: file for name, (file, _) in sources.items()}
  changed, config = {}, _read_config(path)
  with modules.found_first(files):
    with at(f'{path}/config.json'):
      settings = from_config(complete(config))
    for name, (file, digest) in sources.items():
      now, digest_now = modules.source(name)
      if digest_now != digest:
        changed[now] = file
  for now, file in changed.items():
    log(
      f'WARNING: {now}, or a module beside it, is not as it was when the run '
      f'in {path} began with {file}'
    )
  return settings


def modules_of(settings: Iterable[Settings]) -> dict[str, str]:
  """Name and text of the file that notes one's own modules; {} without any."""
  names = dict.fromkeys(name for one in settings for name in one.own_names())
  sources = {name: modules.source(name) for name in names}
  return {_MODULES: json.dumps(sources, indent=2)} if sources else {}


def search_modules(path: str) -> dict[str, tuple[str, str]]:
  """Searches one's own modules where a run, or a sweep, has found them.

  Returns:
    (file, digest) that it has noted by `module:NAME`.
  """
  sources = _read_json(path, _MODULES, {})
  for file, _ in sources.values():
    modules.search(os.path.dirname(file))
  return sources


def _read_config(path: str) -> dict:
  """The nested config of a workdir, as it is stored."""
  if not os.path.exists(os.path.join(path, 'config.json')):
    raise UserError(f'--workdir: {path}/config.json does not exist')
  return _read_json(path, 'config.json', {})


def _read_json(path: str, name: str, default: dict) -> dict:
  file_path = os.path.join(path, name)
  try:
    with open(file_path) as file:
      content = json.load(file)
  except FileNotFoundError:
    return default
  except (ValueError, RecursionError) as error:
    raise UserError(f'{file_path} is not JSON: {error}') from error
  if not isinstance(content, dict):
    raise UserError(f'{file_path} holds no object')
  return content


def check(path: str, settings: Settings, config: dict | None = None) -> None:
  """UserError if the workdir belongs to a run with other settings.

  Args:
    config: nested, that the settings were read from: if it is that of the run,
      nothing is compared; None: unknown.
  """
  if not os.path.exists(os.path.join(path, 'config.json')):
    if not workdir_lib.is_new(path):
      raise UserError(
        f'--workdir={path} holds files but no run; choose another folder'
      )
    return
  if config is not None and _read_config(path) == with_format(config):
    return
  old, new = read_settings(path).flat(), settings.flat()
  differences = [
    f'config.{key} was {old[key]!r}, is {new[key]!r}'
    for key in sorted(new)
    if key not in FREE and old[key] != new[key]
  ]
  if differences:
    raise UserError(
      f'--workdir={path} belongs to a run with another config: '
      f'{"; ".join(differences)}; choose another --workdir'
    )


def open_run(
  path: str,
  config: dict,
  settings: Settings,
  files: dict[str, str],
  writes: bool = True,
  shared_by: int = 1,
) -> Workdir:
  """Opens the workdir of a run, new or existing.

  Args:
    config: nested; ignored for an existing run, which has its own.
    settings: those of `config`.
    files, writes, shared_by: as of workdir.open_workdir.
  """
  files = {'config.json': as_text(config)} | modules_of([settings]) | files
  run = settings.digest()
  return workdir_lib.open_workdir(path, files, run, writes, shared_by)


def with_format(config: dict) -> dict:
  """A nested config as it is stored."""
  return {'format': FORMAT} | config


def as_text(config: dict) -> str:
  """The text of config.json for a nested config."""
  return json.dumps(with_format(config), indent=2)
