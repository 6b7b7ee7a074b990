"""Entries of tables that the file of --config registers.

    from selfattn.positions import POSITIONS
    POSITIONS['mine'] = Mine

A run keeps the file as WORKDIR/extension.py, and its digest as the key
`extension` of its config: a run with another file is another run. Whatever
reads the settings of the run executes its file first, once a process. The file
stands for itself: of what it imports, nothing is kept.
"""

from __future__ import annotations

import hashlib
import os

from experiments.command import config_files
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.parameter_groups import GROUPS
from experiments.learning.schedules import SCHEDULES
from experiments.learning.tasks import TASKS
from selfattn.classifier import POOLS
from selfattn.encoders import ENCODERS
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS

NAME = 'extension.py'
TABLES = {
  'POSITIONS': POSITIONS,
  'SAMPLINGS': SAMPLINGS,
  'ENCODERS': ENCODERS,
  'POOLS': POOLS,
  'NORMALISERS': NORMALISERS,
  'OPTIMIZERS': OPTIMIZERS,
  'GROUPS': GROUPS,
  'SCHEDULES': SCHEDULES,
  'TASKS': TASKS,
  'DATASETS': DATASETS,
  'VOCABULARIES': VOCABULARIES,
}


def _entries() -> dict[tuple[str, str], object]:
  return {
    (table, name): entry
    for table, entries in TABLES.items()
    for name, entry in entries.items()
  }


_BUILT_IN = _entries()
# What stands in the tables beside that: who registered it, by the digest of its
# file, and the texts of these files. Mutable, as the tables are.
_owners: dict[tuple[str, str], tuple[str, object]] = {}
_texts: dict[str, str] = {}


def add(config, path: str) -> None:
  """Notes in a config of a command that its file has registered something.

  Args:
    config: the ConfigDict that the file made, and flags may have changed.
    path: of the file.

  Raises:
    UserError: a name that stands in its table already.
  """
  before = _BUILT_IN | {place: entry for place, (_, entry) in _owners.items()}
  with open(path) as file:
    digest = _claim(file.read(), before, f'--config={path}')
  if digest in _texts:
    with config.unlocked():
      config.extension = digest


def load(folder: str, config: dict) -> None:
  """Registers what the run, or the sweep, in a folder needs.

  Args:
    config: nested, of the run.

  Raises:
    UserError: its file is gone, fails, or registers a name that stands in its
      table already.
  """
  wanted = config.get('extension')
  if wanted is None:
    return
  path = os.path.join(folder, NAME)
  if not os.path.exists(path):
    if wanted in _texts:  # a start that was killed before it was written
      return
    raise UserError(f'{path} does not exist, and the run needs it')
  with open(path) as file:
    text = file.read()
  if _digest(text) != wanted:
    log(f'WARNING: {path} is not what the run was trained with')
  if _digest(text) in _texts:
    return
  before = _entries()
  module = config_files.execute(path, path)
  at_import = _entries()
  try:
    config_files.call(module.get_config, path, path)
  except UserError as error:
    # Its config is not needed, and may be of an earlier version.
    if at_import == before:
      raise
    log(f'WARNING: {error}')
  _claim(text, before, path)
  _texts[_digest(text)] = _texts[wanted] = text


def file_of(config: dict) -> dict[str, str]:
  """Name and text of the file that a new workdir keeps; {} without one."""
  digest = config.get('extension')
  return {} if digest is None else {NAME: _texts[digest].rstrip('\n')}


def _claim(text: str, before: dict, source: str) -> str:
  """Notes what a file has registered since `before`; its digest."""
  digest = _digest(text)
  new = {k: v for k, v in _entries().items() if before.get(k) is not v}
  taken = [k for k in before if k in new and _owner(k) != digest]
  if taken:
    for table, name in new:
      del TABLES[table][name]
      if (table, name) in before:
        TABLES[table][name] = before[table, name]
    told = ', '.join(f'{table}[{name!r}]' for table, name in taken)
    raise UserError(
      f'{source} registers {told}, which is there already: built in, or of '
      'another file; choose another name, or look at one run at a time'
    )
  _owners.update({place: (digest, entry) for place, entry in new.items()})
  if new:
    _texts[digest] = text
  return digest


def _owner(place: tuple[str, str]) -> str | None:
  return _owners[place][0] if place in _owners else None


def _digest(text: str) -> str:
  return hashlib.sha256(text.rstrip().encode()).hexdigest()[:16]
