"""The run that config.train.init_from names, and its vocabulary."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator

from experiments.command.errors import UserError
from experiments.data import encoding
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib

# Differences that a message names.
_MOST = 10
# Where the same files are split in another way, texts of test may have been
# trained on before.
_FILES = ('data.source', 'data.text.train')
_SPLITS = (
  'data.seed',
  'data.validation_fraction',
  'data.test_fraction',
  'data.num_folds',
  'data.fold',
  'data.split_by',
)


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[str]:
  """The folder of the run to begin with; of one in a bucket, a local copy.

  Of a sweep, the trial that has the settings of the model, and those of the
  seed and the data in which its trials differ.

  Raises:
    UserError: there is no such run.
  """
  with buckets.staged(settings.train.init_from) as folder:
    yield _run_in(folder, settings)


def vocabulary(settings: Settings, path: str = ''):
  """The tokenizer of the run to begin with; None if there is no such run.

  A run that has begun does not need the other one any more: its own tokenizer
  is the same.

  Args:
    path: workdir of the new run; '' for none.

  Raises:
    UserError: the run is not done, or has another kind of vocabulary or other
      splits of the same files.
  """
  if not settings.train.init_from:
    return None
  if path and workdir_lib.read_status(path).get('step'):
    return encoding.read_tokenizer(path)
  with opened(settings) as folder:
    _check(folder, settings)
    return encoding.read_tokenizer(folder)


def read_settings(folder: str, settings: Settings) -> Settings:
  """The settings of the run to begin with.

  Raises:
    UserError: they cannot be read; with the key.
  """
  try:
    return stored.read_settings(folder)
  except UserError as error:
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r}: {error}'
    ) from error


def _run_in(folder: str, settings: Settings) -> str:
  """The folder of a run: `folder` itself, or that of a trial in it."""
  if os.path.isfile(os.path.join(folder, 'config.json')):
    return folder
  pattern = os.path.join(glob.escape(folder), 'trials', '*', 'config.json')
  trials = [os.path.dirname(path) for path in sorted(glob.glob(pattern))]
  if not trials:
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r} must be the '
      'workdir of a run or of a sweep, or empty'
    )
  there = {trial: read_settings(trial, settings).flat() for trial in trials}
  here = settings.flat()
  swept = _different(there.values())
  keys = [key for key in here if key.startswith('model.') or _pairs(key, swept)]
  differences = {
    trial: [key for key in keys if here[key] != config[key]]
    for trial, config in there.items()
  }
  fitting = [trial for trial, found in differences.items() if not found]
  if not fitting:
    nearest = min(trials, key=lambda trial: len(differences[trial]))
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r}: none of its '
      f'{len(trials)} trials has the settings of this model; the nearest one, '
      f'{os.path.basename(nearest)}, has '
      f'{_told(differences[nearest], there[nearest], here)}'
    )
  if len(fitting) > 1:
    keys = _different([there[trial] for trial in fitting])
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r}: {len(fitting)} '
      'of its trials have the settings of this model, and differ in '
      f'{", ".join(f"config.{key}" for key in keys[:_MOST])}; give the folder '
      'of one of them'
    )
  return fitting[0]


def _pairs(key: str, swept: list[str]) -> bool:
  """Whether a key, of no model, must be equal in both runs."""
  return key in swept and (key == 'seed' or key.startswith('data.'))


def _different(configs) -> list[str]:
  """Keys whose values are not the same in all configs, by dotted key."""
  first, *others = configs
  return [
    key
    for key, value in first.items()
    if any(other[key] != value for other in others)
  ]


def _check(folder: str, settings: Settings) -> None:
  """UserError unless a run is done and goes with the new one."""
  status = workdir_lib.read_status(folder).get('status')
  if status != 'DONE':
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r} has the status '
      f'{status}; finish that run first'
    )
  there, here = read_settings(folder, settings).flat(), settings.flat()
  keys = ['data.vocabulary']
  if all(there[key] == here[key] for key in _FILES):
    keys += _SPLITS
  if different := [key for key in keys if there[key] != here[key]]:
    raise UserError(
      f'config.train.init_from = {settings.train.init_from!r} has '
      f'{_told(different, there, here)}'
    )


def _told(keys: list[str], there: dict, here: dict) -> str:
  return '; '.join(
    f'config.{key} = {there[key]!r}, which is {here[key]!r} here'
    for key in keys[:_MOST]
  )
