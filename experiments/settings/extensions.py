"""Entries of tables that the file of --config registers.

    from selfattn.positions import POSITIONS
    POSITIONS['mine'] = Mine

A run keeps the file as WORKDIR/extension.py, and its digest as the key
`extension` of its config: a run with another file is another run. A command
that reads the settings of the run executes its file first, once per process.
Modules that the file imports are not kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from experiments.command import config_files
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data.algorithmic import ALGORITHMS
from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.parameter_groups import GROUPS
from experiments.learning.schedules import SCHEDULES
from experiments.learning.tasks import TASKS
from selfattn.encoders import ENCODERS
from selfattn.heads import HEADS
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS

NAME = 'extension.py'
TABLES = {
  'POSITIONS': POSITIONS,
  'SAMPLINGS': SAMPLINGS,
  'ENCODERS': ENCODERS,
  'POOLS': POOLS,
  'HEADS': HEADS,
  'NORMALISERS': NORMALISERS,
  'OPTIMIZERS': OPTIMIZERS,
  'GROUPS': GROUPS,
  'SCHEDULES': SCHEDULES,
  'TASKS': TASKS,
  'DATASETS': DATASETS,
  'ALGORITHMS': ALGORITHMS,
  'VOCABULARIES': VOCABULARIES,
}
# (table, name) of an entry.
_Key = tuple[str, str]


def _entries() -> dict[_Key, object]:
  return {
    (table, name): entry
    for table, entries in TABLES.items()
    for name, entry in entries.items()
  }


_BUILT_IN = _entries()
# Registered entries with the digest of the file that registers them, the texts
# of these files, and the digests of the runs that were read ('': a run without
# a file). Mutable, as the tables are.
_registered: dict[_Key, tuple[str, object]] = {}
_texts: dict[str, str] = {}
_runs: set[str] = set()


def digest_of(config: Mapping) -> str:
  """The digest that a nested config has; '' if its file registers nothing."""
  return config.get('extension', '')


def add(config, path: str) -> None:
  """Sets `extension` in the config of a command if its file registers entries.

  Args:
    config: the ConfigDict that the file returned, after overrides by flags.
    path: the file. An extension.py that a run keeps may replace built-in
      entries, which a later version has added; any other file may not.

  Raises:
    UserError: it registers a name that its table has already.
  """
  before = _BUILT_IN | {key: entry for key, (_, entry) in _registered.items()}
  is_kept = os.path.basename(path) == NAME
  with open(path) as file:
    digest = _register(file.read(), before, f'--config={path}', is_kept)
  if digest in _texts:
    with config.unlocked():
      config.extension = digest


def load(folder: str, config: dict) -> None:
  """Registers the entries that the run, or the sweep, in a folder needs.

  Where a later version has a built-in entry of the same name, that of the run
  replaces it: the run was trained with its own. Then no other run can be read
  in this process.

  Args:
    config: nested, of the run.

  Raises:
    UserError: its file does not exist, fails, or registers a name that another
      file has registered; or an entry that other runs need was replaced.
  """
  wanted = digest_of(config)
  replaced = [
    key
    for key, (digest, _) in _registered.items()
    if key in _BUILT_IN and digest != wanted
  ]
  if replaced:
    raise UserError(
      f'{folder}: another run has replaced the built-in {_names(replaced)} in '
      'this process; read one run per process'
    )
  if wanted:
    _load(os.path.join(folder, NAME), wanted)
  _runs.add(wanted)


def _load(path: str, wanted: str) -> None:
  if not os.path.exists(path):
    if wanted in _texts:  # a start that was killed before it was written
      return
    raise UserError(f'{path} does not exist, and the run needs it')
  with open(path) as file:
    text = file.read()
  if _digest(text) != wanted:
    log(f'WARNING: {path} has changed since the run was created')
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
  _register(text, before, path, not _runs - {wanted})
  _texts[_digest(text)] = _texts[wanted] = text


def file_of(config: dict) -> dict[str, str]:
  """Name and text of the file that a new workdir keeps; {} without one."""
  digest = digest_of(config)
  return {NAME: _texts[digest].rstrip('\n')} if digest else {}


def _register(text: str, before: dict, source: str, replaces: bool) -> str:
  """Records the entries that a file has added since `before`; its digest.

  Args:
    replaces: whether they may replace built-in entries.
  """
  digest = _digest(text)
  new = {k: v for k, v in _entries().items() if before.get(k) is not v}
  known = [k for k in before if k in new]
  built_in = [k for k in known if k not in _registered]
  conflicts = [] if replaces else built_in
  conflicts += [
    k for k in known if k in _registered and _registered[k][0] != digest
  ]
  if conflicts:
    for table, name in new:
      del TABLES[table][name]
      if (table, name) in before:
        TABLES[table][name] = before[table, name]
    raise UserError(
      f'{source} registers {_names(conflicts)}, which is built in or '
      'registered by another file; choose another name, or read one run per '
      'process'
    )
  if built_in:
    log(f'WARNING: {source} replaces the built-in {_names(built_in)}')
  _registered.update({key: (digest, entry) for key, entry in new.items()})
  if new:
    _texts[digest] = text
  return digest


def _names(keys: list[_Key]) -> str:
  return ', '.join(f'{table}[{name!r}]' for table, name in keys)


def _digest(text: str) -> str:
  return hashlib.sha256(text.rstrip().encode()).hexdigest()[:16]
