"""The folder of a sweep: sweep.json, with config and overrides of each trial.

Beside it are trials/, with one workdir each, and the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence

from experiments.command.errors import UserError
from experiments.settings import stored
from experiments.settings.settings import incomplete
from experiments.sweeps import plan
from experiments.sweeps.plan import Spec
from experiments.workdir import buckets, locks
from experiments.workdir import workdir as workdir_lib

_FILE = 'sweep.json'
# Types of what it holds.
_KINDS = {'config': dict, 'trials': dict[str, dict]}


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
  is_kept = os.path.exists(path) and not os.access(workdir, os.W_OK)
  lock = locks.held(workdir, queues=True)
  with contextlib.nullcontext() if is_kept else lock:
    trials = {spec.name: spec.overrides for spec in specs}
    if os.path.exists(path):
      before = _read(workdir)
      place = f'--workdir={buckets.origin(workdir)} is a sweep'
      # Without what the trials override, they may be no settings of a run.
      old, new = incomplete(before['config']), incomplete(base)
      stored.check_equal(old, new, place)
      # Those that are there keep their ids.
      trials = before['trials'] | trials
    stored.say_changed(workdir)
    if is_kept and trials.keys() == before['trials'].keys():
      return
    content = {'config': stored.with_format(base), 'trials': trials}
    workdir_lib.write_atomic(path, json.dumps(content, indent=2) + '\n')
    settings = [spec.settings for spec in specs]
    for name, text in stored.modules_of(settings, workdir).items():
      workdir_lib.write_atomic(os.path.join(workdir, name), text + '\n')
  buckets.upload(workdir, '*')


def numbered(workdir: str, specs: list[Spec]) -> list[Spec]:
  """The specs with their ids in the sweep in `workdir`, if there is one."""
  is_there = os.path.exists(os.path.join(workdir, _FILE))
  known = _read(workdir)['trials'] if is_there else {}
  names = dict.fromkeys([*known, *(spec.name for spec in specs)])
  ids = {name: index for index, name in enumerate(names)}
  return [dataclasses.replace(spec, index=ids[spec.name]) for spec in specs]


def with_others(workdir: str, specs: list[Spec]) -> list[Spec]:
  """The specs that the sweep in `workdir` has once these are added to it."""
  if not os.path.exists(os.path.join(workdir, _FILE)):
    return specs
  planned = {spec.name: spec for spec in specs}
  known = [planned.pop(spec.name, spec) for spec in read(workdir, specs)]
  return [*known, *planned.values()]


def read(workdir: str, planned: Sequence[Spec] = ()) -> list[Spec]:
  """The specs of the sweep in `workdir`.

  Args:
    planned: specs in this folder, which are returned if they are all.

  Raises:
    UserError: there is none.
  """
  stored.search_modules(workdir)
  known = _read(workdir)
  trials = known['trials']
  if list(trials) == [spec.name for spec in planned]:
    return list(planned)
  return plan.make(known['config'], trials.values(), workdir, trials)


def _read(workdir: str) -> dict:
  """The complete config, and the overrides of each trial by name."""
  known = workdir_lib.read_json(workdir, _FILE, {})
  if not known:
    raise UserError(
      f'{buckets.origin(workdir)}/{_FILE} does not exist; is --workdir the '
      'folder of a sweep?'
    )
  if not isinstance(known.get('trials'), dict) or 'config' not in known:
    raise UserError(
      f'{buckets.origin(workdir)}/{_FILE} has no config, or no trials by name; '
      'use the version that wrote it'
    )
  workdir_lib.check_json(workdir, _FILE, known, _KINDS, _KINDS)
  config = stored.complete(known['config'])
  # JSON has no tuples.
  trials = {
    name: {k: tuple(v) if isinstance(v, list) else v for k, v in of.items()}
    for name, of in known['trials'].items()
  }
  return {'config': config, 'trials': trials}
