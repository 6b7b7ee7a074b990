"""Initial parameters of another run, config.train.init_from.

The only place that may load a checkpoint in part.
"""

from __future__ import annotations

import jax
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, loading
from experiments.learning.steps import State
from experiments.settings.settings import Settings
from experiments.training import sources
from experiments.workdir import buckets, checkpoints


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
  with sources.opened(settings) as folder:
    return _start_from(state, settings, folder, workdir)


def _start_from(
  state: State, settings: Settings, folder: str, workdir: str
) -> State:
  source = settings.train.init_from
  begun = sources.read_settings(folder, settings)
  with checkpoints.reading(folder, begun.checkpoint, begun.best) as saved:
    found = saved.steps()
    if not found:
      raise UserError(f'config.train.init_from = {source!r} has no checkpoint')
    step = saved.best() or max(found)
    given = saved.restore_params(step)
  # The new run has taken it, unless the other one was replaced since then.
  tokenizers = [encoding.read_tokenizer(each) for each in (folder, workdir)]
  if tokenizers[0].to_str() != tokenizers[1].to_str():
    raise UserError(
      f'config.train.init_from = {source!r} has another vocabulary than '
      f'{workdir}; choose another --workdir'
    )
  labels = [loading.read_facts(each)['labels'] for each in (folder, workdir)]
  has_same_labels = labels[0] == labels[1]

  loaded, skipped, leaves = [], [], []
  wanted = checkpoints.leaves(state.params)
  for name, leaf in wanted.items():
    found = given.get(name)
    reason = _mismatch(leaf, found, has_same_labels or not _is_head(name))
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
  log(
    f'loaded parameters from step {step} of {buckets.origin(folder)}: '
    f'{", ".join(loaded)}'
  )
  log(f'skipped parameters: {", ".join(skipped) or "none"}')
  params = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
  # The average, if there is one, begins with the first step.
  return state.replace(params=params)


def _is_head(name: str) -> bool:
  """Whether a parameter may belong to the labels."""
  part, *_ = name.split('/')
  return part == 'head' or part.startswith('token_head_')


def _mismatch(leaf, given, has_same_labels: bool) -> str | None:
  if given is None:
    return 'not in that model'
  if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
    return f'{given.dtype}{list(given.shape)} there'
  return None if has_same_labels else 'other labels'


def _like(leaf, given):
  """`given` with the sharding of `leaf`, or on the host if that is there."""
  given = np.asarray(given)
  if isinstance(leaf, jax.Array):
    return jax.device_put(given, leaf.sharding)
  return given
