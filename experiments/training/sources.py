"""What a new run begins with: the parameters of another run, or vectors.

config.train.init_from names a run, whose vocabulary the new run has. This is
the only place that may load a checkpoint in part. config.model.pretrained names
a published model, and config.model.embeddings gives the vectors of words.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError, at
from experiments.command.log import log
from experiments.data import encoding, loading, store
from experiments.data.vectors import Vectors
from experiments.data.vocabularies import (
  UNK,
  add_separator,
)
from experiments.learning.steps import TOKEN_TABLE
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import published_params, taken
from experiments.workdir import buckets, checkpoints
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import leaves

_TABLE = f'{TOKEN_TABLE}/embedding'
# In a workdir: digests of what the run began with.
_FILE = 'begun_with.json'
# What is read of a published model, beside its tensors.
_PUBLISHED = (
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'modules.json',
  '1_Pooling/config.json',
)
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


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[str]:
  """The folder of the run to begin with, or a local copy of a bucket's.

  In a sweep, it is the trial with the same value of each key that differs
  between the trials.

  Raises:
    UserError: there is no such run. Those of the block begin with the key, too.
  """
  key, name = 'config.train.init_from', settings.train.init_from
  with buckets.staged(name, name=key) as folder, at(f'{key} = {name!r}'):
    yield _run_in(folder, settings)


def _run_in(folder: str, settings: Settings) -> str:
  """The folder of a run: `folder` itself, or that of a trial in it."""
  if os.path.isfile(os.path.join(folder, 'config.json')):
    return folder
  pattern = os.path.join(glob.escape(folder), 'trials', '*', 'config.json')
  there = {
    os.path.dirname(path): stored.read_settings(os.path.dirname(path))
    for path in sorted(glob.glob(pattern))
  }
  if not there:
    raise UserError('it must be the workdir of a run or of a sweep, or empty')
  here, configs = settings.flat(), [one.flat() for one in there.values()]
  swept = [
    key for key in here if any(c[key] != configs[0][key] for c in configs)
  ]
  fitting = [
    trial
    for trial, config in zip(there, configs, strict=True)
    if all(config[key] == here[key] for key in swept)
  ]
  if len(fitting) != 1:
    wanted = ', '.join(f'config.{key} = {here[key]!r}' for key in swept)
    raise UserError(
      f'{len(fitting)} of its {len(there)} trials have {wanted}; give the '
      f'folder of one, such as {os.path.basename(next(iter(there)))}'
    )
  return fitting[0]


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
  file = settings.model.embeddings.make().file
  if file and not has_begun and not os.path.isfile(file):
    raise UserError(
      f'config.model.embeddings = {settings.model.embeddings}: there is no '
      f'file {file}'
    )
  if not settings.train.init_from:
    return None
  if has_begun:
    return encoding.read_tokenizer(path)
  with opened(settings) as folder:
    _check(folder, settings)
    tokenizer = encoding.read_tokenizer(folder)
  if settings.data.pair_length:
    add_separator(tokenizer)
  return tokenizer


def _check(folder: str, settings: Settings) -> None:
  """UserError unless a run is done and goes with the new one."""
  status = workdir_lib.read_status(folder).get('status', 'PENDING')
  if status != 'DONE':
    raise UserError(f'it has the status {status}; finish that run first')
  there, here = stored.read_settings(folder).flat(), settings.flat()
  keys = ['data.vocabulary']
  if _are_same_files(there, here):
    keys += _SPLITS
  different = [
    f'config.{key} = {there[key]!r}, which is {here[key]!r} here'
    for key in keys
    if there[key] != here[key]
  ]
  if different:
    raise UserError(f'it has {"; ".join(different)}')


def _are_same_files(there: dict, here: dict) -> bool:
  """Whether configs read the same files; a folder that is gone has moved."""
  folders = there['data.dir'], here['data.dir']
  if all(map(os.path.isdir, folders)) and not os.path.samefile(*folders):
    return False
  return all(there[key] == here[key] for key in _FILES)


def write_digests(settings: Settings, workdir: str) -> None:
  """Writes into a workdir what a run begins with, if it is in local files.

  That is begun_with.json: by key of the config, the digest of each file.
  """
  read = {
    f'config.{key}': {os.path.abspath(name): store.digest(name) for name in of}
    for key, of in _read_files(settings).items()
  }
  path = os.path.join(workdir, _FILE)
  if read:
    workdir_lib.write_atomic(path, json.dumps(read, indent=2) + '\n')
  elif os.path.exists(path):
    os.remove(path)


def _read_files(settings: Settings) -> dict[str, list[str]]:
  """Local files that a new run begins with, by key of its config."""
  found = {}
  if file := settings.model.embeddings.make().file:
    found['model.embeddings'] = [file]
  folder = settings.model.pretrained
  if folder and os.path.isdir(folder):
    names = [os.path.join(folder, *name.split('/')) for name in _PUBLISHED]
    names += glob.glob(os.path.join(glob.escape(folder), '*.safetensors'))
    found['model.pretrained'] = [*filter(os.path.isfile, names)]
  name = settings.train.init_from
  if name and not name.startswith(buckets.SCHEMES):
    with opened(settings) as run:
      # Another training has other scores, in all their digits.
      found['train.init_from'] = [os.path.join(run, 'metrics.jsonl')]
  return found


def check_unchanged(workdirs: Iterable[str]) -> None:
  """UserError for a run that began with other files than there are now.

  Says if they are gone. A run without a step begins anew, with those there are.
  """
  now: dict[str, str | None] = {}
  for workdir in workdirs:
    status = workdir_lib.read_status(workdir)
    if status.get('status') == 'DONE' or status.get('step'):
      _check_unchanged(workdir, now)


def _check_unchanged(workdir: str, now: dict[str, str | None]) -> None:
  """Compares what one run began with.

  Args:
    now: digests by path that are known; None of a file that is gone.
  """
  of_keys = workdir_lib.read_json(workdir, _FILE, {})
  workdir_lib.check_json(
    workdir, _FILE, of_keys, dict.fromkeys(of_keys, dict), ()
  )
  for key, then in of_keys.items():
    for file, digest in then.items():
      if file not in now:
        now[file] = store.digest(file) if os.path.isfile(file) else None
        if now[file] is None:
          log(
            f'WARNING: nobody knows whether {file} of {key} has changed, since '
            'it is gone'
          )
      if now[file] not in (None, digest):
        raise UserError(
          f'{file} of {key} has changed since {workdir} began with it; restore '
          'it, or choose another --workdir'
        )


def first_params(
  params, settings: Settings, workdir: str, vectors: Vectors | None
):
  """The parameters that a run begins with, from those that are drawn.

  Those of config.train.init_from replace those of config.model.pretrained.

  Args:
    workdir: of the run, with its vocabulary and labels.
    vectors: that `vectors_of` returns.

  Raises:
    UserError: the run to begin with has no checkpoint, or no parameter that
      matches.
  """
  if settings.train.init_from:
    return _of_run(params, settings, workdir)
  if settings.model.pretrained:
    return published_params.of_published(params, settings.model, workdir)
  if vectors is None:
    return params
  table = jnp.asarray(leaves(params)[_TABLE])
  return _with(params, {_TABLE: table.at[vectors.ids].set(vectors.values)})


def _of_run(params, settings: Settings, workdir: str):
  """Parameters, with those of the run of config.train.init_from that match.

  A parameter matches if name, shape and dtype are the same, and for heads the
  labels. Logs which are loaded and skipped. The best checkpoint is read.
  """
  with opened(settings) as folder:
    there = stored.read_settings(folder)
    with checkpoints.reading(folder, there.checkpoint, there.best) as saved:
      if not saved.steps():
        raise UserError('it has no checkpoint')
      step = saved.best() or max(saved.steps())
      source = saved.restore_params(step)
    place = buckets.origin(folder)
    labels, ours = (loading.read_facts(p)['labels'] for p in (folder, workdir))
    names = leaves(params)
    if settings.data.pair_length:
      source[_TABLE] = _with_separator(source[_TABLE], names[_TABLE])
    matching, skipped = {}, []
    for name in names | source:
      reason = _mismatch(name, names, source, labels == ours)
      if reason:
        skipped.append(f'{name} ({reason})')
      else:
        matching[name] = source[name]
    if not matching:
      some = '; '.join(skipped[:10])
      raise UserError(f'none of its parameters matches: {some}')
  taken.say(f'step {step} of {place}', list(matching), skipped)
  return _with(params, matching)


def _with_separator(table, leaf):
  """A table of token embeddings with a row of [SEP], as long as `leaf` is.

  [SEP], which a run without pairs does not have, begins as [UNK].
  """
  rows = np.repeat(table[UNK : UNK + 1], len(leaf) - len(table), axis=0)
  return jnp.concatenate([table, rows])


def _mismatch(name: str, ours, theirs, has_same_labels: bool) -> str | None:
  """Why a parameter is not taken from the other run; None if it is."""
  if name not in ours:
    return 'not in this model'
  if name not in theirs:
    return 'not in that model'
  here, there = ours[name], theirs[name]
  if (there.shape, there.dtype) != (here.shape, here.dtype):
    return f'{there.dtype}{list(there.shape)} there'
  part, *_ = name.split('/')
  is_head = part == 'head' or part.startswith('token_head_')
  return 'other labels' if is_head and not has_same_labels else None


def _with(params, values: dict[str, Any]):
  """Parameters with other values by name, each where it was."""
  put = taken.placed_as(leaves(params))
  placed = {name: put(name, np.asarray(x)) for name, x in values.items()}
  return taken.replaced(params, placed)


def vectors_of(settings: Settings, workdir: str) -> Vectors | None:
  """The vectors of config.model.embeddings for words; None: all are drawn.

  Says how many words of the vocabulary in the workdir they cover. A UserError
  says that they cannot be read, or are of none of the words.
  """
  call = settings.model.embeddings
  ids = encoding.words(encoding.read_tokenizer(workdir))
  with call.checked():
    vectors = call.make().read(ids, settings.model.embed_dim)
  if vectors is not None:
    count = len(vectors.ids)
    log(
      f'config.model.embeddings = {call} has {count} of the {len(ids)} words '
      f'of the vocabulary ({count / len(ids):.0%}); the others are drawn'
    )
  return vectors
