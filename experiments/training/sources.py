"""The run that config.train.init_from names: its vocabulary and parameters.

The only place that may load a checkpoint in part.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, loading
from experiments.data.vocabularies import UNK, add_separator
from experiments.learning.steps import TOKEN_TABLE, State
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import token_vectors
from experiments.workdir import buckets, checkpoints
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.named_leaves import leaves

_TABLE = f'{TOKEN_TABLE}/embedding'
_MOST = 10  # differences that a message names
# What the model begins with, and how it reads pairs of texts.
_FREE = ('model.embeddings', 'model.pair_positions')
# If the same files were split in another way, the first run may have trained
# on test texts of the second.
_FILES = ('data.source', 'data.text.train')
_SPLITS = (
  'data.seed',
  'data.validation_fraction',
  'data.test_fraction',
  'data.num_folds',
  'data.fold',
  'data.split_by',
)


def _refused(settings: Settings, reason: str) -> UserError:
  return UserError(
    f'config.train.init_from = {settings.train.init_from!r}{reason}'
  )


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[str]:
  """The folder of the run to begin with, or a local copy of a bucket's.

  In a sweep, it is the trial with the same settings of the model, and the same
  seed and data where the trials differ in them.

  Raises:
    UserError: there is no such run.
  """
  key = 'config.train.init_from'
  with buckets.staged(settings.train.init_from, name=key) as folder:
    yield _run_in(folder, settings)


def vocabulary(settings: Settings, path: str = ''):
  """The tokenizer of the run to begin with; None if there is no such run.

  Checks before that the file of config.model.embeddings is there.

  A run that has begun does not need the other one any more: its own tokenizer
  is the same.

  Args:
    path: workdir of the new run; '' for none.

  Raises:
    UserError: the run is not done, or has another kind of vocabulary or other
      splits of the same files; or a file is missing.
  """
  has_begun = path and workdir_lib.read_status(path).get('step')
  if not has_begun:
    token_vectors.check_file(settings)
  if not settings.train.init_from:
    return None
  if has_begun:
    return encoding.read_tokenizer(path)
  with opened(settings) as folder:
    _check(folder, settings)
    return _tokenizer(folder, settings)


def _read_settings(folder: str, settings: Settings) -> Settings:
  """The settings of the run to begin with; UserError if they are unreadable."""
  try:
    return stored.read_settings(folder)
  except UserError as error:
    raise _refused(settings, f': {error}') from error


def _run_in(folder: str, settings: Settings) -> str:
  """The folder of a run: `folder` itself, or that of a trial in it."""
  if os.path.isfile(os.path.join(folder, 'config.json')):
    return folder
  pattern = os.path.join(glob.escape(folder), 'trials', '*', 'config.json')
  trials = [os.path.dirname(path) for path in sorted(glob.glob(pattern))]
  if not trials:
    raise _refused(
      settings, ' must be the workdir of a run or of a sweep, or empty'
    )
  there = {trial: _read_settings(trial, settings).flat() for trial in trials}
  here = settings.flat()
  swept = _different(there.values())
  keys = [key for key in here if _is_of_model(key) or _pairs(key, swept)]
  differences = {
    trial: [key for key in keys if here[key] != config[key]]
    for trial, config in there.items()
  }
  nearest = min(trials, key=lambda trial: len(differences[trial]))
  count = sum(not keys for keys in differences.values())
  if count != 1:
    told = _told(differences[nearest], there[nearest], here)
    raise _refused(
      settings,
      f': {count} of its {len(trials)} trials have the settings of this model; '
      f'give the folder of one, such as {os.path.basename(nearest)}'
      f'{told and f", which has {told}"}',
    )
  return nearest


def _is_of_model(key: str) -> bool:
  """Whether parameters of runs that differ in this key do not fit."""
  return key.startswith('model.') and key not in _FREE


def _pairs(key: str, swept: list[str]) -> bool:
  """Whether a key outside of the model must be equal in both runs."""
  return key in swept and (key == 'seed' or key.startswith('data.'))


def _different(configs: Iterable[dict]) -> list[str]:
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
    raise _refused(settings, f' has the status {status}; finish that run first')
  there, here = _read_settings(folder, settings).flat(), settings.flat()
  keys = ['data.vocabulary']
  if all(there[key] == here[key] for key in _FILES):
    keys += _SPLITS
  if different := [key for key in keys if there[key] != here[key]]:
    raise _refused(settings, f' has {_told(different, there, here)}')


def _told(keys: list[str], there: dict, here: dict) -> str:
  return '; '.join(
    f'config.{key} = {there[key]!r}, which is {here[key]!r} here'
    for key in keys[:_MOST]
  )


def start_from(state: State, settings: Settings, workdir: str) -> State:
  """An initial State with the parameters that match of the run to begin with.

  A parameter matches if name, shape and dtype are the same, and for heads the
  labels. Logs which are loaded and skipped.

  Args:
    state: of the new run.
    settings: of the new run. The best checkpoint of config.train.init_from is
      read.
    workdir: of the new run, with its vocabulary and labels.

  Raises:
    UserError: there is no checkpoint, it has another vocabulary, or none of its
      parameters matches.
  """
  with opened(settings) as folder:
    step, source = _read_parameters(folder, settings)
    place = buckets.origin(folder)
    # The new run has taken it, unless the other one was replaced since then.
    here, other = _tokenizer(workdir, settings), _tokenizer(folder, settings)
    if other.to_str() != here.to_str():
      raise _refused(
        settings,
        f' has another vocabulary than {workdir}; choose another --workdir',
      )
    has_same_labels = (
      loading.read_facts(folder)['labels']
      == loading.read_facts(workdir)['labels']
    )
  if settings.data.pair_length:
    table = leaves(state.params)[_TABLE]
    source |= {_TABLE: _with_separator(source[_TABLE], table)}
  params, taken, skipped = _merged(state.params, source, has_same_labels)
  if not taken:
    some = '; '.join(skipped[:_MOST])
    raise _refused(settings, f': none of its parameters matches: {some}')
  log(f'loaded parameters from step {step} of {place}: {", ".join(taken)}')
  log(f'skipped parameters: {", ".join(skipped) or "none"}')
  # The average, if there is one, begins with the first step.
  return state.replace(params=params)


def _merged(params, source: dict, has_same_labels: bool):
  """(parameters with those of a source that match, their names, all others).

  Args:
    has_same_labels: whether heads match, too.
  """
  taken, skipped, merged = [], [], []
  names = leaves(params)
  for name, leaf in names.items():
    fits_labels = has_same_labels or not _is_head(name)
    if reason := _mismatch(leaf, source.get(name), fits_labels):
      skipped.append(f'{name} ({reason})')
      merged.append(leaf)
    else:
      taken.append(name)
      merged.append(_like(leaf, source[name]))
  skipped += [
    f'{name} (not in this model)' for name in source if name not in names
  ]
  tree = jax.tree.unflatten(jax.tree.structure(params), merged)
  return tree, taken, skipped


def _read_parameters(folder: str, settings: Settings) -> tuple[int, dict]:
  """(best step, its parameters by name) of the run to begin with."""
  there = _read_settings(folder, settings)
  with checkpoints.reading(folder, there.checkpoint, there.best) as saved:
    steps = saved.steps()
    if not steps:
      raise _refused(settings, ' has no checkpoint')
    step = saved.best() or max(steps)
    return step, saved.restore_params(step)


def _tokenizer(path: str, settings: Settings):
  """The tokenizer of a workdir, with [SEP] if the new run has pairs."""
  tokenizer = encoding.read_tokenizer(path)
  if settings.data.pair_length:
    add_separator(tokenizer)
  return tokenizer


def _with_separator(table, leaf):
  """A table of token embeddings with a row of [SEP], as long as `leaf` is.

  [SEP], which a run without pairs does not have, begins as [UNK].
  """
  rows = np.repeat(table[UNK : UNK + 1], len(leaf) - len(table), axis=0)
  return jnp.concatenate([table, rows])


def _is_head(name: str) -> bool:
  """Whether a parameter may belong to the labels."""
  part, *_ = name.split('/')
  return part == 'head' or part.startswith('token_head_')


def _mismatch(leaf, other, fits_labels: bool) -> str | None:
  """Why a parameter of the other run cannot take the place of `leaf`."""
  if other is None:
    return 'not in that model'
  if (other.shape, other.dtype) != (leaf.shape, leaf.dtype):
    return f'{other.dtype}{list(other.shape)} there'
  return None if fits_labels else 'other labels'


def _like(leaf, value):
  """A value with the sharding of `leaf`, or on the host if that is there."""
  value = np.asarray(value)
  if isinstance(leaf, jax.Array):
    return jax.device_put(value, leaf.sharding)
  return value
