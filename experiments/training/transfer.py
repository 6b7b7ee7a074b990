"""Initial parameters of another run, config.train.init_from.

The only place that may load a checkpoint in part.
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

_DIFFERENCES = {'embed': 'another vocabulary', 'head': 'other labels'}


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


def start_from(
  state: State,
  classifier,
  source: str,
  workdir: str,
  num_members: int = 1,
) -> State:
  """An initial State with the parameters of `source` that match.

  A parameter matches if name, shape and dtype are the same, for embeddings and
  token_params of positions the vocabulary, and for heads the labels. Logs which
  are loaded and skipped.

  Args:
    state: of the new run.
    classifier: its model.
    source: workdir of a trained run; its best checkpoint is read. All members
      of an ensemble begin with the parameters of a single model.
    workdir: of the new run, with its vocabulary and labels.
    num_members: of the new run.

  Raises:
    UserError: there is no checkpoint, or none of its parameters matches.
  """
  with buckets.staged(source) as folder:
    return _start_from(state, classifier, source, folder, workdir, num_members)


def _start_from(
  state: State,
  classifier,
  source: str,
  folder: str,
  workdir: str,
  num_members: int,
) -> State:
  with checkpoints.reading(folder, *_read_keeping(source, folder)) as saved:
    found = saved.steps()
    if not found:
      raise UserError(f'config.train.init_from = {source!r} has no checkpoint')
    step = saved.best() or max(found)
    given = saved.restore_params(step)
  is_same = {
    'embed': _text(folder, 'tokenizer.json')
    == _text(workdir, 'tokenizer.json'),
    'head': loading.read_facts(folder)['labels']
    == loading.read_facts(workdir)['labels'],
  }

  of_tokens = _token_params(classifier)
  loaded, skipped, leaves = [], [], []
  wanted = checkpoints.leaves(state.params)
  for name, leaf in wanted.items():
    kinds, found = _kinds(name, of_tokens), given.get(name)
    if found is not None and num_members > 1 and found.shape == leaf.shape[1:]:
      found = np.broadcast_to(found, leaf.shape)
    reason = _mismatch(kinds, leaf, found, is_same)
    if reason:
      skipped.append(f'{name} ({reason})')
      leaves.append(leaf)
    else:
      loaded.append(name)
      leaves.append(_like(leaf, found))
  skipped += [
    f'{name} (not in this model)' for name in given if name not in wanted
  ]
  if not loaded:
    raise UserError(
      f'config.train.init_from = {source!r}: none of its parameters matches: '
      f'{"; ".join(skipped[:10])}'
    )
  log(f'loaded parameters from step {step} of {source}: {", ".join(loaded)}')
  log(f'skipped parameters: {", ".join(skipped) or "none"}')
  params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
  # The average, if there is one, begins with the first step.
  return state.replace(params=params)


def _text(folder: str, name: str) -> str:
  with open(os.path.join(folder, name)) as file:
    return file.read()


def _token_params(classifier) -> set[str]:
  """Names of the parameters that belong to a vocabulary."""
  position = getattr(classifier.encoder, 'position', None)
  return {
    '/'.join(filter(None, ('encoder/position', part, param)))
    for part, method in (() if position is None else position.parts)
    for param in method.token_params
  }


def _kinds(name: str, of_tokens: set[str]) -> tuple[str, ...]:
  """What has to be the same for a parameter."""
  part, *_ = name.split('/')
  if part.startswith('token_head_'):
    # Of the vocabulary, or of the labels.
    return 'embed', 'head'
  return ('embed',) if name in of_tokens else (part,)


def _mismatch(
  kinds: tuple[str, ...], leaf, given, is_same: dict[str, bool]
) -> str | None:
  if given is None:
    return 'not in that model'
  if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
    return f'{given.dtype}{list(given.shape)} there'
  for each in kinds:
    if not is_same.get(each, True):
      return _DIFFERENCES[each]
  return None


def _like(leaf, given):
  """`given` with the sharding of `leaf`, or on the host if that is there."""
  given = np.asarray(given)
  if isinstance(leaf, jax.Array):
    return jax.device_put(given, leaf.sharding)
  return given
