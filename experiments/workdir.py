"""The folder of one run: what it is, how far it came, what it measured.

config.json      the whole config, resolved
env.json         versions, devices and commit of each attempt
data.json        labels, counts and fingerprint of the data
tokenizer.json   the vocabulary
log-P.txt        what process P said
metrics.jsonl    one object a line, steps strictly increasing
tensorboard/     the same, for TensorBoard
checkpoints/N/   parameters and optimizer state after N updates
torn/N/          such a folder that could not be read
status.json      RUNNING, DONE, INTERRUPTED, DIVERGED or FAILED; in a sweep that
                 drops trials also PAUSED and DROPPED; step, attempt
lock             who writes into the folder, while a process does
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import re
import secrets
import subprocess
from importlib import metadata
from typing import Any

from experiments import formats, launch, locks, remote
from experiments.choices import UserError
from experiments.settings import Settings

# Keys that change nothing of what is computed, so a resumed run may change
# them. The data's place is free to move, since its content is checked.
FREE = ('data.dir', 'train.log_every', 'train.shard_from', 'checkpoint.keep')
# What a start leaves in a new folder if it ends before config.json is there.
_LEFTOVER = re.compile(
  r'(config|data|env|metrics|status|sweep|tokenizer)\.jsonl?\.tmp-.*'
  r'|\.shared-.*'
)
# What another process of the same start may have opened by then.
_OTHERS = re.compile(r'log-\d+\.txt')
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def write_whole(path: str, content: str | bytes) -> None:
  """Writes a file that is either the old one or the new one, never torn.

  Raises:
    Failed: it cannot be written; the old one is as it was.
  """
  # Not by process: containers that share a disk have the same numbers.
  temporary = f'{path}.tmp-{secrets.token_hex(8)}'
  mode = 'w' if isinstance(content, str) else 'wb'
  try:
    with launch.writing(path), open(temporary, mode) as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
      os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise


@dataclasses.dataclass(frozen=True)
class Workdir:
  """An absolute path, and the count of times a run was started in it.

  Attributes:
    writes: whether this process does; of several, one.
    run: identity of the run that trains in it.
  """

  path: str
  attempt: int
  writes: bool = True
  run: str | None = None

  def file(self, name: str) -> str:
    """Path of a file in it."""
    return os.path.join(self.path, name)

  def set_status(self, status: str, step: int, **more: Any) -> None:
    """Replaces status.json."""
    if not self.writes:
      return
    facts = {'status': status, 'step': step, 'attempt': self.attempt} | more
    write_whole(self.file('status.json'), json.dumps(facts) + '\n')
    remote.push(self.path)


def read_status(path: str) -> dict[str, Any]:
  """Content of status.json; {} where nothing has run."""
  place = os.path.join(path, 'status.json')
  try:
    with open(place) as file:
      return json.load(file)
  except FileNotFoundError:
    return {}
  except ValueError as error:
    raise UserError(
      f'{place} is not JSON: {error}; without it, the run goes on from its '
      'newest checkpoint'
    ) from error


def read_settings(path: str) -> Settings:
  """Settings of the run in a workdir.

  Raises:
    UserError: there is no run, or its config is not one that can be read.
  """
  config = _read_config(path)
  try:
    return formats.read(config)
  except UserError as error:
    raise UserError(f'{path}/config.json: {error}') from error


def _read_config(path: str) -> dict:
  """The nested config of a workdir, of whichever format."""
  config_path = os.path.join(path, 'config.json')
  if not os.path.exists(config_path):
    raise UserError(f'--workdir={path}: {config_path} does not exist')
  try:
    with open(config_path) as file:
      config = json.load(file)
  except ValueError as error:
    raise UserError(f'{config_path} is not JSON: {error}') from error
  if not isinstance(config, dict):
    raise UserError(f'{config_path} holds no config')
  return config


def identity(config: dict) -> str:
  """Sixteen hexadecimal digits, the same for runs that compute the same.

  Args:
    config: nested, of any format. Only its own keys count: those that a later
      version adds do not make it another run.
  """
  created = launch.flat_keys(config)
  flat = {
    name: value
    for key, value in formats.read(config).flat().items()
    for name in formats.former(key)
    if key not in FREE and name in created
  }
  text = json.dumps(flat, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_new(path: str) -> bool:
  """Whether a folder is not there, empty, or left by a start that was killed.

  Raises:
    UserError: it is a file.
  """
  if not os.path.exists(path):
    return True
  if not os.path.isdir(path):
    raise UserError(f'--workdir={path} is a file')
  return all(
    name == locks.NAME or _LEFTOVER.fullmatch(name) or _OTHERS.fullmatch(name)
    for name in os.listdir(path)
  )


def check(path: str, settings: Settings) -> None:
  """UserError if the workdir belongs to a run with other settings."""
  if not os.path.exists(os.path.join(path, 'config.json')):
    if not is_new(path):
      raise UserError(
        f'--workdir={path} holds files but no run; choose another folder'
      )
    return
  old, new = read_settings(path).flat(), settings.flat()
  differences = [
    f'config.{key} was {old.get(key)!r}, is {new.get(key)!r}'
    for key in sorted(old.keys() | new.keys())
    if key not in FREE and old.get(key) != new.get(key)
  ]
  if differences:
    raise UserError(
      f'--workdir={path} belongs to a run with another config: '
      f'{"; ".join(differences)}; choose another --workdir'
    )


def open_workdir(
  path: str, config: dict, files: dict[str, str], writes: bool = True
) -> Workdir:
  """Makes the folder if need be, and counts this attempt.

  A process that writes holds the lock of the folder.

  Raises:
    Failed: the folder, or a file in it, cannot be written.
  """
  path = os.path.abspath(path)
  with launch.writing(path):
    os.makedirs(path, exist_ok=True)
  is_resumed = os.path.exists(os.path.join(path, 'config.json'))
  workdir = Workdir(
    path,
    read_status(path).get('attempt', 0) + 1,
    writes,
    identity(_read_config(path) if is_resumed else config),
  )
  if not writes:
    return workdir
  for name in filter(_LEFTOVER.fullmatch, os.listdir(path)):
    os.remove(workdir.file(name))
  for name, text in ({'config.json': _as_text(config)} | files).items():
    if not os.path.exists(workdir.file(name)):
      write_whole(workdir.file(name), text + '\n')
  return workdir


def _as_text(config: dict) -> str:
  return json.dumps({'format': formats.FORMAT} | config, indent=2)


def give_up(path: str, config: dict, reason: str) -> None:
  """Marks a run as FAILED, wherever it came to, if it has not ended.

  Whoever calls it holds the lock of the folder. Where it cannot be written
  down, the run stays what it was.
  """
  with contextlib.suppress(OSError, launch.Failed, UserError):
    _give_up(path, config, reason)


def _give_up(path: str, config: dict, reason: str) -> None:
  status = read_status(path)
  if status.get('status', 'RUNNING') == 'RUNNING':
    os.makedirs(path, exist_ok=True)
    if not os.path.exists(os.path.join(path, 'config.json')):
      write_whole(os.path.join(path, 'config.json'), _as_text(config))
    workdir = Workdir(path, status.get('attempt', 0))
    workdir.set_status('FAILED', status.get('step', 0), reason=reason)


def drop(path: str, step: int) -> None:
  """Marks a run that a sweep goes on without, if it is one that paused."""
  status = read_status(path)
  if status.get('status') == 'PAUSED':
    Workdir(path, status['attempt']).set_status('DROPPED', step)


def forget_failure(path: str) -> None:
  """Marks a run that failed as one that was interrupted."""
  status = read_status(path)
  if status.get('status') == 'FAILED':
    workdir = Workdir(path, status['attempt'])
    workdir.set_status('INTERRUPTED', status['step'])


def record_environment(workdir: Workdir, devices) -> None:
  """Adds this attempt to env.json."""
  if not workdir.writes:
    return
  path = workdir.file('env.json')
  attempts = []
  if os.path.exists(path):
    with open(path) as file:
      attempts = json.load(file)
  attempts.append(
    {
      'attempt': workdir.attempt,
      'time': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'command': launch.command(),
      'python': platform.python_version(),
      'packages': {name: metadata.version(name) for name in _PACKAGES},
      'devices': [str(device) for device in devices],
      'commit': _commit(),
    }
  )
  write_whole(path, json.dumps(attempts, indent=2) + '\n')


def _commit() -> str | None:
  """The commit of this code, '+' for local changes; None outside of git."""
  command = ['git', 'describe', '--always', '--dirty=+', '--abbrev=40']
  try:
    found = subprocess.run(
      [*command, '--exclude=*'],
      cwd=os.path.dirname(__file__),
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return found.stdout.strip()
