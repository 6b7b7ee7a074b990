"""The folder of one run: config, status, metrics, checkpoints.

config.json      the complete resolved config
modules.json     files and digests of modules of one's own
env.json         versions, devices and commit of each attempt
data.json        labels, counts and fingerprint of the data
begun_with.json  digests of the vectors, the run or the model that it began with
tokenizer.json   the vocabulary
log-P.txt        log of process P
metrics.jsonl    one JSON object per line, steps strictly increasing
tensorboard/     the same, for TensorBoard; wandb/ for Weights & Biases
checkpoints/N/   parameters and optimizer state after N steps
corrupt/N/       a checkpoint that could not be read
status.json      RUNNING, DONE, INTERRUPTED, DIVERGED or FAILED; step, attempt,
                 and the seconds of all attempts, of trials that trained at once
                 a share of them
lock             the process that writes into the folder, while it does
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import re
import secrets
import time
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from experiments.command import provenance, schema
from experiments.command.errors import Failed, UserError
from experiments.workdir import buckets, locks

T = TypeVar('T')
# What a start that was killed, or other processes of the same one, may leave
# before there is a config.json.
_TEMPORARY = re.compile(r'.+\.tmp-[0-9a-f]{16}')
_EARLY = re.compile(rf'{locks.NAME}|log-\d+\.txt|{_TEMPORARY.pattern}')


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
  """Which checkpoints are written and kept.

  Attributes:
    every_steps: steps between checkpoints; there is one at each evaluation,
      too.
    max_to_keep: newest checkpoints to keep; the best one is kept, too.
    best_metric: metric on validation that selects the best checkpoint, one of
      the task's; empty: the task's first.
  """

  every_steps: int = schema.field(500, schema.POSITIVE)
  max_to_keep: int = schema.field(2, schema.POSITIVE)
  best_metric: str = ''


# Types of what status.json holds, and which of it is always there.
_KINDS = {
  'status': str, 'step': int, 'attempt': int, 'seconds': int | float,
  'result': dict, 'parameters': int,
}  # fmt: skip
_NEEDED = {'status', 'step', 'attempt'}
# Types of what env.json holds of each attempt.
_OF_ATTEMPT = {
  'attempt': int, 'time': str, 'command': list[str], 'python': str,
  'packages': dict[str, str], 'devices': list[str], 'machine': str,
  'commit': str | None,
}  # fmt: skip


def write_atomic(path: str, content: str | bytes) -> None:
  """Writes or replaces a file atomically; it is unchanged after an OSError."""
  # Not named by process id: containers that share a disk have equal ids.
  temporary = f'{path}.tmp-{secrets.token_hex(8)}'
  try:
    with open(temporary, 'wb') as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise


def read_json(path: str, name: str, empty: T) -> T:
  """What a JSON file of a folder holds; without the file, `empty`.

  A UserError says that it is corrupt, or of another type than `empty`.
  """
  file_path = os.path.join(path, name)
  try:
    with open(file_path) as file:
      content = json.load(file)
  except FileNotFoundError:
    return empty
  except (ValueError, RecursionError) as error:
    raise UserError(f'{file_path} is not JSON: {error}') from error
  if type(content) is not type(empty):
    raise UserError(f'{file_path} is a JSON {type(content).__name__}')
  return content


def check_json(
  path: str,
  name: str,
  content: Mapping[str, Any],
  kinds: Mapping[str, Any],
  needed: Collection[str],
) -> None:
  """UserError if a JSON file of a folder is damaged.

  Args:
    content: values that the file holds.
    kinds: their types; a tuple is a list of so many elements.
    needed: names of values that must be there.
  """
  for key in kinds:
    if key not in content and key not in needed:
      continue
    if not _is_of(content.get(key), kinds[key]):
      raise UserError(
        f'{path}/{name} is damaged: {key} is {content.get(key)!r:.99}; '
        'restore it from a copy of the folder'
      )


def _is_of(value: Any, kind: Any) -> bool:
  """Whether a JSON value is of a type, as dict[str, list[int]]."""
  origin, inside = typing.get_origin(kind), typing.get_args(kind)
  if origin not in (list, dict, tuple):
    return isinstance(value, kind)
  # JSON has no tuples.
  if not isinstance(value, dict if origin is dict else list):
    return False
  if origin is tuple:
    return len(value) == len(inside) and all(map(_is_of, value, inside))
  elements = value.values() if isinstance(value, dict) else value
  return all(_is_of(element, inside[-1]) for element in elements)


@dataclasses.dataclass
class Workdir:
  """An opened workdir.

  Attributes:
    path: absolute.
    attempt: how many times a run was started in it, this time included.
    writes: whether this process writes; True on exactly one process.
    run: identity of the run that trains in it.
    shared_by: how many runs train at once in this process.
    status: content of status.json, as it was last read or set.
    started: when this attempt began, of time.monotonic().
  """

  path: str
  attempt: int
  writes: bool = True
  run: str | None = None
  shared_by: int = 1
  status: dict[str, Any] = dataclasses.field(default_factory=dict)
  started: float = dataclasses.field(default_factory=time.monotonic)

  def __post_init__(self):
    # Seconds of earlier attempts.
    self._seconds = self.status.get('seconds', 0.0)

  def file(self, name: str) -> str:
    """Path of the file `name` in the workdir."""
    return os.path.join(self.path, name)

  def set_status(
    self,
    status: str,
    step: int | None = None,
    uploads: bool = True,
    **more: Any,
  ) -> None:
    """Replaces status.json, after what it speaks of is in the bucket, if any.

    Without a step, it is that of before; `more` replaces further facts. Unless
    it `uploads`, a bucket has it later.
    """
    spent = (time.monotonic() - self.started) / self.shared_by
    facts = {
      'status': status,
      'step': self.status.get('step', 0) if step is None else step,
      'attempt': self.attempt,
      **more,
      'seconds': round(self._seconds + spent, 1),
    }
    # No other copy contains the status without the files that it speaks of.
    with buckets.copying if uploads else contextlib.nullcontext():
      if self.writes:
        _write_status(self.path, facts)
      self.status = facts
      if self.writes and uploads:
        buckets.upload(self.path)


def read_status(path: str) -> dict[str, Any]:
  """Content of status.json; {} if there is none.

  A UserError says that it is damaged.
  """
  status = read_json(path, 'status.json', {})
  if not status:
    return status
  is_done = status.get('status') == 'DONE'
  needed = _NEEDED | {'result'} if is_done else _NEEDED
  check_json(path, 'status.json', status, _KINDS, needed)
  if is_done:
    step = {'result.step': status['result'].get('step')}
    check_json(path, 'status.json', step, {'result.step': int}, step)
  return status


def read_attempts(path: str) -> list[dict[str, Any]]:
  """What env.json says of each time that a run was started; [] without it.

  Each has all of `attempt`, `time`, `command`, `python`, `packages`, versions
  by name, `devices`, the kind of each, `machine`, and `commit`, which may be
  None. A UserError says that the file is damaged.
  """
  attempts = read_json(path, 'env.json', [])
  of_file = {f'[{index}]': attempt for index, attempt in enumerate(attempts)}
  kinds = dict.fromkeys(of_file, dict)
  check_json(path, 'env.json', of_file, kinds, kinds)
  for attempt in attempts:
    check_json(path, 'env.json', attempt, _OF_ATTEMPT, _OF_ATTEMPT)
  return attempts


def is_new(path: str) -> bool:
  """Whether a folder is missing, empty, or left by a start that was killed.

  A UserError says that it is a file.
  """
  if not os.path.exists(path):
    return True
  if not os.path.isdir(path):
    raise UserError(f'--workdir={path} is a file')
  return all(map(_EARLY.fullmatch, os.listdir(path)))


def open_workdir(
  path: str,
  files: dict[str, str],
  run: str,
  writes: bool = True,
  shared_by: int = 1,
) -> Workdir:
  """Creates the folder if needed, and counts this attempt of a run.

  A process that writes must hold the lock of the folder. Files, content by
  name, are written unless they exist, and config.json in any case, since some
  keys may change. `shared_by` runs train at once in this process.
  """
  path = os.path.abspath(path)
  os.makedirs(path, exist_ok=True)
  status = read_status(path)
  attempt = status.get('attempt', 0) + 1
  workdir = Workdir(path, attempt, writes, run, shared_by, status)
  if not writes:
    return workdir
  for name in filter(_TEMPORARY.fullmatch, os.listdir(path)):
    os.remove(workdir.file(name))
  for name, text in files.items():
    if name == 'config.json' or not os.path.exists(workdir.file(name)):
      write_atomic(workdir.file(name), text + '\n')
  return workdir


def give_up(path: str, config: str, reason: str) -> None:
  """Marks a run as FAILED, unless it has ended otherwise.

  The caller must hold the lock of the folder. If the status cannot be written,
  it stays as it is. The text of config.json is written unless it exists.
  """
  with contextlib.suppress(OSError, Failed, UserError):
    status = read_status(path).get('status', 'RUNNING')
    # INTERRUPTED: it has failed before its training went on.
    if status in ('RUNNING', 'INTERRUPTED'):
      os.makedirs(path, exist_ok=True)
      if not os.path.exists(os.path.join(path, 'config.json')):
        write_atomic(os.path.join(path, 'config.json'), config)
      _mark(path, status='FAILED', reason=reason)


# Statuses of runs that ended without a result.
RETRIED = ('DIVERGED', 'FAILED')


def go_on(path: str) -> None:
  """Marks a run that is to have more steps as INTERRUPTED, not as DONE."""
  _mark(path, status='INTERRUPTED', reason=None)


def reopen(path: str) -> None:
  """Marks a run that is one of RETRIED as INTERRUPTED: it is resumed."""
  if read_status(path).get('status') in RETRIED:
    _mark(path, status='INTERRUPTED', reason=None)


def _mark(path: str, **changes: Any) -> None:
  facts = {'step': 0, 'attempt': 0} | read_status(path) | changes
  _write_status(path, facts)
  buckets.upload(path)


def _write_status(path: str, facts: dict[str, Any]) -> None:
  text = json.dumps(facts) + '\n'
  write_atomic(os.path.join(path, 'status.json'), text)


def record_environment(workdir: Workdir, devices) -> None:
  """Adds this attempt to env.json."""
  if not workdir.writes:
    return
  attempts = read_attempts(workdir.path)
  attempts.append(
    {
      'attempt': workdir.attempt,
      'time': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'command': provenance.command(),
      'python': platform.python_version(),
      'packages': provenance.versions(),
      'devices': [device.device_kind for device in devices],
      'machine': provenance.machine(),
      'commit': provenance.commit(),
    }
  )
  text = json.dumps(attempts, indent=2) + '\n'
  write_atomic(workdir.file('env.json'), text)
