"""The folder of a sweep: sweep.json, with config and overrides of each trial.

Beside it are trials/, with one workdir each, and the results.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.command.errors import UserError
from experiments.settings import stored
from experiments.settings.settings import FREE, from_config
from experiments.sweeps import plan
from experiments.sweeps.plan import Spec
from experiments.workdir import buckets, locks
from experiments.workdir import workdir as workdir_lib

_FILE = 'sweep.json'


def write(workdir: str, base: dict, specs: list[Spec]) -> None:
  """Adds the specs to the sweep in `workdir`.

  Raises:
    UserError: the folder holds something else, or a sweep of another config.
    OSError: it cannot be written.
  """
  # Of a bucket: others may have added trials.
  buckets.download(workdir, trials=())
  path = os.path.join(workdir, _FILE)
  if not workdir_lib.is_new(workdir) and not os.path.exists(path):
    raise UserError(
      f'--workdir={buckets.origin(workdir)} holds files but no sweep'
    )
  # Tasks of a job array share the folder, and each may add trials.
  with locks.held(workdir, queues=True):
    _add(path, workdir, base, [dict(spec.overrides) for spec in specs])
    settings = [spec.settings for spec in specs]
    for name, text in stored.modules_of(settings).items():
      workdir_lib.write_atomic(os.path.join(workdir, name), text + '\n')
  buckets.upload(workdir, '*')


def _add(path: str, workdir: str, base: dict, trials: list[dict]) -> None:
  if os.path.exists(path):
    known = _read(path)
    old, new = _flat(known['config']), _flat(base)
    keys = [key for key in new if old[key] != new[key]]
    if keys:
      raise UserError(
        f'--workdir={buckets.origin(workdir)} is a sweep of another config: it '
        f'differs in {", ".join(f"config.{key}" for key in keys)}'
      )
    # Those that are there keep their ids.
    names = set(map(_name, known['trials']))
    new = [trial for trial in trials if _name(trial) not in names]
    trials = known['trials'] + new
  content = {'config': stored.with_format(base), 'trials': trials}
  workdir_lib.write_atomic(path, json.dumps(content, indent=2) + '\n')


def _name(trial: Mapping[str, Any]) -> str:
  return plan.identity(trial, plan.MORE_DIGITS)


def numbered(workdir: str, specs: list[Spec]) -> list[Spec]:
  """The specs with their ids in the sweep in `workdir`, if there is one."""
  path = os.path.join(workdir, _FILE)
  known = _read(path)['trials'] if os.path.exists(path) else []
  names = [*map(_name, known), *(_name(spec.overrides) for spec in specs)]
  ids = {name: index for index, name in enumerate(dict.fromkeys(names))}
  return [
    dataclasses.replace(spec, index=ids[_name(spec.overrides)])
    for spec in specs
  ]


def _flat(config: dict) -> dict:
  """Values that all commands of one sweep must agree on, by dotted key."""
  flat = from_config(config).flat()
  return {key: value for key, value in flat.items() if key not in FREE}


def read(workdir: str, planned: Sequence[Spec] = ()) -> list[Spec]:
  """The specs of the sweep in `workdir`.

  Args:
    planned: specs in this folder, which are returned if they are all.

  Raises:
    UserError: there is none.
  """
  stored.search_modules(workdir)
  known = _read(os.path.join(workdir, _FILE))
  if known['trials'] == [spec.overrides for spec in planned]:
    return list(planned)
  return plan.make(known['config'], known['trials'], workdir)


def _read(path: str) -> dict:
  """The complete config, and overrides of each trial."""
  try:
    with open(path) as file:
      known = json.load(file)
    # JSON has no tuples.
    trials = [
      {k: tuple(v) if isinstance(v, list) else v for k, v in trial.items()}
      for trial in known['trials']
    ]
    return {'config': stored.complete(known['config']), 'trials': trials}
  except FileNotFoundError as error:
    raise UserError(
      f'{buckets.origin(path)} does not exist; is --workdir the folder of a '
      'sweep?'
    ) from error
  except json.JSONDecodeError as error:
    raise UserError(f'{buckets.origin(path)} is not JSON: {error}') from error
