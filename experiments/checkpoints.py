"""Checkpoints: Orbax behind a handful of functions.

A step's name is the number of updates applied. One item, `state`, holds the
leaves of a steps.State as a plain nested dict, so a checkpoint can be read
without this code. The newest few and the best one are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments.checks import BEST_METRICS
from experiments.choices import UserError
from experiments.settings import CheckpointSettings
from experiments.steps import State


def open_manager(
  workdir: str, settings: CheckpointSettings
) -> ocp.CheckpointManager:
  """The manager of `workdir`/checkpoints; close it on every way out."""
  policies = ocp.checkpoint_managers
  is_max = BEST_METRICS[settings.best_metric] is max

  def score(metrics):
    return metrics[settings.best_metric]

  keep = policies.AnyPreservationPolicy(
    [
      policies.LatestN(settings.keep),
      policies.BestN(
        get_metric_fn=score,
        reverse=not is_max,
        n=1,
        keep_checkpoints_without_metrics=False,
      ),
    ]
  )
  return ocp.CheckpointManager(
    os.path.join(os.path.abspath(workdir), 'checkpoints'),
    item_handlers={'state': ocp.StandardCheckpointHandler()},
    options=ocp.CheckpointManagerOptions(
      preservation_policy=keep,
      best_fn=score,
      best_mode='max' if is_max else 'min',
      cleanup_tmp_directories=True,
    ),
  )


def save(
  manager: ocp.CheckpointManager,
  state: State,
  metrics: Mapping[str, float] | None = None,
) -> None:
  """Starts saving `state` under its step; metrics if it was evaluated."""
  # A copy, since the next update is free to reuse the buffers of this one
  # while the save goes on in the background.
  leaves = {name: np.array(leaf) for name, leaf in _leaves(state).items()}
  manager.save(
    int(state.step),
    args=ocp.args.Composite(state=ocp.args.StandardSave(_nest(leaves))),
    metrics=metrics,
    force=True,
  )


def restore(
  manager: ocp.CheckpointManager, step: int, template: State
) -> State:
  """The state saved at `step`, in the form of `template`.

  Raises:
    UserError: the checkpoint's paths, shapes or types are not the template's.
  """
  wanted = {
    name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    for name, leaf in _leaves(template).items()
  }
  found = _leaves(manager.item_metadata(step)['state'])
  differences = _differences(found, wanted)
  if differences:
    raise UserError(
      f'checkpoint {manager.directory}/{step} does not fit this model, in '
      f'{len(differences)} places: {"; ".join(differences[:10])}'
    )
  args = ocp.args.Composite(state=ocp.args.StandardRestore(_nest(wanted)))
  saved = _leaves(manager.restore(step, args=args)['state'])
  _, structure = jax.tree.flatten(template)
  return jax.tree.unflatten(structure, [saved[name] for name in wanted])


def best_step(
  manager: ocp.CheckpointManager, settings: CheckpointSettings
) -> int | None:
  """The step with the best metric, the latest of equals; None if no metric."""
  scores = {}
  for step in manager.all_steps():
    metrics = manager.metrics(step)
    if metrics:
      scores[step] = metrics[settings.best_metric]
  if not scores:
    return None
  best = BEST_METRICS[settings.best_metric](scores.values())
  return max(step for step, score in scores.items() if score == best)


def _leaves(tree) -> dict[str, object]:
  paths, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in paths
  }


def _nest(leaves: Mapping[str, object]) -> dict:
  nested: dict = {}
  for name, leaf in leaves.items():
    *parents, last = name.split('/')
    node = nested
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return nested


def _differences(found, wanted) -> list[str]:
  differences = [f'{name} is missing' for name in wanted if name not in found]
  differences += [f'{name} is extra' for name in found if name not in wanted]
  for name in wanted:
    if name in found:
      here = (tuple(found[name].shape), np.dtype(found[name].dtype))
      there = (tuple(wanted[name].shape), np.dtype(wanted[name].dtype))
      if here != there:
        differences.append(
          f'{name} is {here[1]}{list(here[0])}, not {there[1]}{list(there[0])}'
        )
  return differences
