"""Initial parameters that are not drawn: of another run, and statistics.

config.train.init_from; the only place that may load a checkpoint in part.
"""

from __future__ import annotations

import os
import warnings

import jax
import numpy as np

from experiments.command import processes
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import loading
from experiments.data.batches import eval_batches
from experiments.learning import tasks
from experiments.learning.steps import State
from experiments.settings import stored
from experiments.workdir import buckets, checkpoints

# Texts that a head counts at once.
_TEXTS = 256
_DIFFERENCES = {
  'embed': 'another vocabulary',
  'head': 'other labels',
  'parts': 'beside other parameters of the head',
}


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
  token_params the vocabulary, and for heads the labels. The token_params of a
  head are meant for one another, so that all are loaded or none; other
  frozen_params are not loaded. Logs which are loaded and skipped.

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
  is_same['parts'] = _of_head(given) == _of_head(wanted)
  for name, leaf in wanted.items():
    kinds, found = _kinds(name, of_tokens), given.get(name)
    if found is not None and num_members > 1 and found.shape == leaf.shape[1:]:
      found = np.broadcast_to(found, leaf.shape)
    reason = _mismatch(kinds, leaf, found, is_same)
    if name in classifier.frozen_params - of_tokens:
      reason = 'fitted to the texts of train'
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


def with_statistics(state: State, classifier, data: loading.Data) -> State:
  """An initial State with what the head counts in the texts of train.

  Args:
    state: of a run, or of a group or an ensemble with leading axes; of a task
      without this head, as it is.
    classifier: its model.
    data: its texts.

  Raises:
    ValueError: the head has no parameter of this name, shape and kind, or of
      one of its frozen_params, or a value is not finite.
  """
  if 'head' not in state.params:
    return state
  of_head = type(classifier.head).__name__
  leaves = checkpoints.leaves(state.params['head'])
  for name in classifier.head.frozen_params:
    if name not in leaves:
      raise ValueError(
        f'{of_head}.frozen_params has {name!r}, and the parameters of the head '
        f'are named {", ".join(leaves)}'
      )
  found = _counted(classifier.head, data)
  if not found:
    return state
  tokens, mask = (
    jax.ShapeDtypeStruct((1, 1), kind) for kind in (np.int32, bool)
  )
  drawn = jax.eval_shape(classifier.init, jax.random.key(0), tokens, mask)
  drawn = checkpoints.leaves(drawn['params']['head'])
  for name, array in found.items():
    wanted = drawn.get(name)
    if (
      wanted is None
      or array.shape != wanted.shape
      or not _fits(array, wanted.dtype)
    ):
      shapes = {name: f'{x.dtype}{[*x.shape]}' for name, x in drawn.items()}
      raise ValueError(
        f'{of_head}.statistics: {name!r}, {array.dtype}{[*array.shape]}, must '
        f'be finite, and one of the parameters of the head, which are {shapes}'
      )
  log(f'set from the texts of train: head/{", head/".join(sorted(found))}')
  for name, array in found.items():
    leaf = leaves[name]
    # Other processors may have rounded what they fitted in another way.
    array = processes.of_first(array.astype(leaf.dtype))
    # Of members and trials, on leading axes.
    array = np.broadcast_to(array, leaf.shape)
    leaves[name] = _like(leaf, array)
  head = jax.tree.unflatten(
    jax.tree.structure(state.params['head']), leaves.values()
  )
  # The average, if there is one, begins with the first step.
  return state.replace(params=state.params | {'head': head})


def _counted(head, data: loading.Data) -> dict[str, np.ndarray]:
  """Its statistics, as arrays; logs what it warns of."""
  with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter('always', UserWarning)
    found = head.statistics(_TrainTexts(data), len(data.labels))
  for each in told:
    if issubclass(each.category, UserWarning):
      log(f'WARNING: config.model.head: {each.message}')
    else:
      warnings.warn_explicit(
        each.message, each.category, each.filename, each.lineno
      )
  return {name: np.asarray(array) for name, array in found.items()}


def _fits(array: np.ndarray, dtype) -> bool:
  """Whether its numbers are finite, and those of an integer type unchanged."""
  if not np.can_cast(array.dtype, np.float32, 'same_kind'):
    return False
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(dtype)
  if jax.numpy.issubdtype(dtype, np.inexact):
    return bool(np.isfinite(cast.astype(np.float32)).all())
  return bool((cast == array).all())


class _TrainTexts:
  """The texts of train, as of Head.statistics."""

  def __init__(self, data: loading.Data):
    self._data = data

  def __iter__(self):
    split, lengths = self._data.splits['train'], self._data.bucket_lengths
    for rows, batch in eval_batches(split, _TEXTS, lengths):
      # Not the rows that fill the last batch.
      arrays = batch.tokens, tasks.padding_mask(batch), batch.labels
      yield tuple(array[: len(rows)] for array in arrays)


def _text(folder: str, name: str) -> str:
  with open(os.path.join(folder, name)) as file:
    return file.read()


def _token_params(classifier) -> set[str]:
  """Names of the parameters that belong to a vocabulary."""
  position = getattr(classifier.encoder, 'position', None)
  return {f'head/{param}' for param in classifier.head.token_params} | {
    '/'.join(filter(None, ('encoder/position', part, param)))
    for part, method in (() if position is None else position.parts)
    for param in method.token_params
  }


def _of_head(names) -> set[str]:
  return {name for name in names if name.startswith('head/')}


def _kinds(name: str, of_tokens: set[str]) -> tuple[str, ...]:
  """What has to be the same for a parameter."""
  part, *_ = name.split('/')
  if part.startswith('token_head_'):
    # Of the vocabulary, or of the labels.
    return 'embed', 'head'
  if name in of_tokens:
    return ('embed', 'head', 'parts') if part == 'head' else ('embed',)
  return (part,)


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
