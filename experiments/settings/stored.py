"""The settings of stored runs: reading, comparing and identifying them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

from experiments.command.errors import UserError
from experiments.command.values import flat_keys
from experiments.learning.tasks import TASKS
from experiments.settings import extensions, registry
from experiments.settings.keys import join
from experiments.settings.settings import (
  SECTIONS,
  Settings,
  default_config,
  from_config,
)
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.keeping import CheckpointSettings
from experiments.workdir.workdir import Workdir

# The format that config.json names. It is raised when an earlier version could
# not read what this one writes.
FORMAT = 1
# Keys that do not change what is computed, so that a resumed run may change
# them. The folder of the data is one of them, since its content is checked.
FREE = (
  'data.dir',
  'train.log_every',
  'train.fsdp_min_size',
  'checkpoint.max_to_keep',
)
# Keys that a message about another config names.
_MOST_DIFFERENCES = 10


def complete(config: dict) -> dict:
  """A stored nested config, with the default of each key that it lacks.

  Raises:
    UserError: another version has written it, or a section is none.
  """
  config = dict(config)
  version = config.pop('format', None)
  if version != FORMAT:
    raise UserError(
      f'the config has format {version!r}, and this version reads format '
      f'{FORMAT}; use the version that wrote it'
    )
  return _with_defaults(config, default_config())


def _with_defaults(values: dict, defaults: dict, path: str = '') -> dict:
  merged = defaults | values
  for name, default in defaults.items():
    value, key = merged[name], join(path, name)
    if isinstance(default, dict) != isinstance(value, dict):
      raise UserError(
        f'config.{key} = {value!r} is '
        + ('no section' if isinstance(default, dict) else 'a section')
      )
    if isinstance(default, dict):
      merged[name] = _with_defaults(value, default, key)
  return merged


def read_settings(path: str) -> Settings:
  """Settings of the run in a workdir.

  Raises:
    UserError: there is no run, or its config cannot be read.
  """
  config = _read_config(path)
  extensions.load(path, config)
  try:
    return from_config(complete(config))
  except UserError as error:
    raise UserError(f'{path}/config.json: {error}') from error


def read_keeping(path: str) -> tuple[CheckpointSettings, Callable]:
  """The checkpoint settings of a stored run, and max or min of its metric.

  Raises:
    UserError: as of read_settings, but its extension is not executed, so that
      it may be another version of the file of --config; or no task here has
      its metric.
  """
  values = read_config(path)['checkpoint']
  registry.check_keys(values, SECTIONS['checkpoint'], 'checkpoint')
  keeping = CheckpointSettings(**values)
  known = {k: v for task in TASKS.values() for k, v in task.metrics.items()}
  if keeping.best_metric not in known:
    raise UserError(
      f'its config.checkpoint.best_metric = {keeping.best_metric!r} is '
      'not a metric of any task here; register its task in the file of '
      f'--config, as its {extensions.NAME} does'
    )
  return keeping, known[keeping.best_metric]


def read_config(path: str) -> dict:
  """The complete nested config of a run; its extension is not executed.

  Raises:
    UserError: there is no run, or its config cannot be read.
  """
  return complete(_read_config(path))


def _read_config(path: str) -> dict:
  """The nested config of a workdir, as it is stored."""
  config_path = os.path.join(path, 'config.json')
  if not os.path.exists(config_path):
    raise UserError(f'--workdir={path}: {config_path} does not exist')
  try:
    with open(config_path) as file:
      config = json.load(file)
  except (ValueError, RecursionError) as error:
    raise UserError(f'{config_path} is not JSON: {error}') from error
  if not isinstance(config, dict):
    raise UserError(f'{config_path} holds no config')
  return config


def identity(config: dict) -> str:
  """Sixteen hexadecimal digits, the same for runs that compute the same.

  Args:
    config: nested, as it is stored. Only its own keys count, so that a new key
      does not change it.
  """
  flat = from_config(complete(config)).flat()
  own = {
    key: flat[key]
    for key in flat_keys(config)
    if key in flat and key not in FREE
  }
  text = json.dumps(own, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


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
  known = _read_config(path)
  if config is not None and known == with_format(config):
    return
  extension = extensions.digest_of(known)
  if extension != settings.extension:
    place = os.path.join(path, extensions.NAME)
    raise UserError(
      f'--workdir={path} belongs to a run whose --config '
      + (
        f'is {place}, which registers other entries of tables; give that, or '
        if extension
        else 'registers no entry of a table; '
      )
      + 'choose another --workdir'
    )
  old, new = read_settings(path).flat(), settings.flat()
  differences = [
    f'config.{key} was {old.get(key)!r}, is {new.get(key)!r}'
    for key in sorted(old.keys() | new.keys())
    if key not in FREE and old.get(key) != new.get(key)
  ]
  if differences:
    more = len(differences) - _MOST_DIFFERENCES
    shown = '; '.join(differences[:_MOST_DIFFERENCES])
    raise UserError(
      f'--workdir={path} belongs to a run with another config: {shown}'
      + (f'; and {more} more keys' if more > 0 else '')
      + '; choose another --workdir'
    )


def open_run(
  path: str,
  config: dict,
  files: dict[str, str],
  writes: bool = True,
  shared_by: int = 1,
) -> Workdir:
  """Opens the workdir of a run, new or existing.

  Args:
    config: nested; ignored for an existing run, which has its own.
    files, writes, shared_by: as of workdir.open_workdir.
  """
  is_resumed = os.path.exists(os.path.join(path, 'config.json'))
  run = identity(_read_config(path) if is_resumed else with_format(config))
  files = {'config.json': as_text(config)} | extensions.file_of(config) | files
  return workdir_lib.open_workdir(path, files, run, writes, shared_by)


def with_format(config: dict) -> dict:
  """A nested config as it is stored."""
  return {'format': FORMAT} | config


def as_text(config: dict) -> str:
  """The text of config.json for a nested config."""
  return json.dumps(with_format(config), indent=2)
