"""The folder of one run: what it is, how far it came, what it measured.

config.json      the whole config, resolved
extension.py     the config file, where it registered entries of tables
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
import io
import json
import os
import platform
import re
import secrets
import subprocess
from importlib import metadata
from typing import Any

from experiments.command import app
from experiments.command.errors import Failed, UserError, writing
from experiments.workdir import buckets, locks

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
    with writing(path), open(temporary, mode) as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
      os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise


def write_figure(path: str, figure, **options) -> None:
  """A picture of the kind that the path ends in; whole or not at all.

  Args:
    options: of Figure.savefig.
  """
  drawn = io.BytesIO()
  _, _, kind = path.rpartition('.')
  figure.savefig(drawn, format=kind, **options)
  write_whole(path, drawn.getvalue())


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
    buckets.push(self.path)


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


def open_workdir(
  path: str, files: dict[str, str], run: str, writes: bool = True
) -> Workdir:
  """Makes the folder if need be, and counts this attempt.

  A process that writes holds the lock of the folder.

  Args:
    files: name and text of what is written where it is not there yet.
    run: identity of the run that trains in it.

  Raises:
    Failed: the folder, or a file in it, cannot be written.
  """
  path = os.path.abspath(path)
  with writing(path):
    os.makedirs(path, exist_ok=True)
  attempt = read_status(path).get('attempt', 0) + 1
  workdir = Workdir(path, attempt, writes, run)
  if not writes:
    return workdir
  for name in filter(_LEFTOVER.fullmatch, os.listdir(path)):
    os.remove(workdir.file(name))
  for name, text in files.items():
    if not os.path.exists(workdir.file(name)):
      write_whole(workdir.file(name), text + '\n')
  return workdir


def give_up(path: str, config: str, reason: str) -> None:
  """Marks a run as FAILED, wherever it came to, if it has not ended.

  Whoever calls it holds the lock of the folder. Where it cannot be written
  down, the run stays what it was.

  Args:
    config: text of config.json, where there is none yet.
  """
  with contextlib.suppress(OSError, Failed, UserError):
    _give_up(path, config, reason)


def _give_up(path: str, config: str, reason: str) -> None:
  status = read_status(path)
  if status.get('status', 'RUNNING') == 'RUNNING':
    os.makedirs(path, exist_ok=True)
    if not os.path.exists(os.path.join(path, 'config.json')):
      write_whole(os.path.join(path, 'config.json'), config)
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
      'command': app.command(),
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
