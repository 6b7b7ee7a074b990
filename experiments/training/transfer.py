"""Starting from the parameters of another run, and saying which fitted.

The only place where a checkpoint may be taken in part, because it was asked
for: `config.train.init_from`, or the flag --init_from.
"""

from __future__ import annotations

import os

import jax
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import loading
from experiments.learning.steps import State
from experiments.settings import stored
from experiments.workdir import buckets, checkpoints


def check(source: str) -> None:
  """UserError if a run on this machine cannot be initialised from."""
  if source.startswith(buckets.SCHEMES):
    return
  if not os.path.isfile(os.path.join(source, 'config.json')):
    raise UserError(
      f'config.train.init_from = {source!r} must be the workdir of a run, or '
      'empty'
    )
  _read_keeping(source, source)


def _read_keeping(source: str, folder: str):
  try:
    return stored.read_keeping(folder)
  except UserError as error:
    raise UserError(f'config.train.init_from = {source!r}: {error}') from error


def start_from(state: State, source: str, workdir: str) -> State:
  """A fresh state, with those parameters of `source` that fit.

  One fits if it has the same name, shape and type, and means the same: rows of
  embeddings belong to a vocabulary, columns of the head to labels.

  Args:
    state: of the new run.
    source: workdir of a trained run; its best checkpoint is read.
    workdir: of the new run, with its vocabulary and labels.

  Raises:
    UserError: there is no such checkpoint, or nothing of it fits.
  """
  with buckets.staged(source) as folder:
    return _start_from(state, source, folder, workdir)


def _start_from(state: State, source: str, folder: str, workdir: str) -> State:
  with checkpoints.reading(folder, *_read_keeping(source, folder)) as saved:
    found = saved.steps()
    if not found:
      raise UserError(f'config.train.init_from = {source!r} has no checkpoint')
    step = saved.best() or max(found)
    given = saved.restore_params(step)
  meanings = {
    'embed': _text(folder, 'tokenizer.json')
    == _text(workdir, 'tokenizer.json'),
    'head': loading.read_facts(folder)['labels']
    == loading.read_facts(workdir)['labels'],
  }

  taken, left, leaves = [], [], []
  wanted = checkpoints.leaves(state.params)
  for name, leaf in wanted.items():
    reason = _why_not(name, leaf, given.get(name), meanings)
    if reason:
      left.append(f'{name} ({reason})')
      leaves.append(leaf)
    else:
      taken.append(name)
      leaves.append(_like(leaf, given[name]))
  left += [
    f'{name} (not in this model)' for name in given if name not in wanted
  ]
  if not taken:
    raise UserError(
      f'config.train.init_from = {source!r}: none of its parameters fits: '
      f'{"; ".join(left[:10])}'
    )
  log(f'taken from step {step} of {source}: {", ".join(taken)}')
  log(f'not taken: {", ".join(left) or "none"}')
  params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
  # Its average, if it has one, begins with the first update.
  return state.replace(params=params)


def _text(folder: str, name: str) -> str:
  with open(os.path.join(folder, name)) as file:
    return file.read()


def _why_not(name: str, leaf, given, meanings: dict[str, bool]) -> str | None:
  if given is None:
    return 'not in that model'
  if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
    return f'{given.dtype}{list(given.shape)} there'
  part = name.partition('/')[0]
  # What the numbers of another head mean, its task alone knows.
  asked = ('embed', 'head') if part.startswith('token_head_') else (part,)
  for each in asked:
    if not meanings.get(each, True):
      return {'embed': 'another vocabulary', 'head': 'other labels'}[each]
  return None


def _like(leaf, given):
  """`given`, where `leaf` is: on the host, or spread over devices."""
  given = np.asarray(given)
  if isinstance(leaf, jax.Array):
    return jax.device_put(given, leaf.sharding)
  return given
