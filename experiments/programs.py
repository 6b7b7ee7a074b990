"""What is compiled for a run, or for a group of runs that share it.

Runs whose settings differ in numbers only (`key` is the same) share one
program. Trained as a group, their trees have a leading axis of trials, which
is spread over all devices; the batches are the same for all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from experiments import build, steps
from experiments.data import Data
from experiments.settings import Settings

# Keys that change no program, by how; a rate of 0 leaves dropout out of it.
_NUMBERS = (
  'seed',
  'optimizer.learning_rate',
  'optimizer.weight_decay',
  'optimizer.warmup_steps',
  'optimizer.label_smoothing',
)
_RATES = (
  'model.dropout_rate',
  'model.attention_dropout_rate',
  'model.word_dropout_rate',
)


def key(settings: Settings) -> str:
  """The same text for settings that share a program, and its loop."""
  flat = {k: v for k, v in settings.flat().items() if k not in _NUMBERS}
  flat |= {name: flat[name] > 0 for name in _RATES}
  return json.dumps(flat, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Program:
  """Compiled functions; of a group, where `size` is not None.

  Attributes:
    classifier: what is trained.
    size: trials of the group, or None for a run alone.
    init: from hyper to a fresh State.
    train_step: as steps.make_train_step; gives its state away.
    eval_step: as steps.make_eval_step.
    put: spreads a tree of stacked leaves over the devices.
  """

  classifier: object
  size: int | None
  init: Callable
  train_step: Callable
  eval_step: Callable
  put: Callable

  def join(self, trees: list):
    """One tree of the trees of all trials."""
    if self.size is None:
      return self.put(trees[0])
    trees = trees + trees[-1:] * (self.size - len(trees))
    return self.put(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees))

  def split(self, tree, count: int) -> list:
    """The trees of the first `count` trials, on the host if a group's."""
    if self.size is None:
      return [tree]
    tree = jax.device_get(tree)
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(count)]


def make(
  settings: Settings, loaded: Data, num_trials: int | None = None
) -> Program:
  """The program of these settings; of a group if num_trials is given.

  Raises:
    UserError: the backend of attention cannot serve on this machine.
  """
  classifier = build.model(settings, loaded.vocab_size, len(loaded.labels))

  def init(hyper):
    return build.init_state(settings, classifier, hyper)

  train_step = build.train_step(settings, classifier)
  eval_step = steps.make_eval_step(classifier)
  if num_trials is None:
    return Program(
      classifier,
      None,
      jax.jit(init),
      jax.jit(train_step, donate_argnums=0),
      jax.jit(eval_step),
      jax.device_put,
    )

  # Every device trains its own trials, so none ever waits for another: what
  # shard_map maps has no communication unless it asks for it.
  devices = jax.devices()[: min(num_trials, len(jax.devices()))]
  mesh = jax.sharding.Mesh(np.array(devices), ('trial',))
  each, same = PartitionSpec('trial'), PartitionSpec()

  def grouped(function, in_axes):
    return jax.shard_map(
      jax.vmap(function, in_axes=in_axes),
      mesh=mesh,
      in_specs=tuple(same if axis is None else each for axis in in_axes),
      out_specs=each,
      # Nothing crosses devices, so there is nothing to check.
      check_vma=False,
    )

  sharding = NamedSharding(mesh, each)
  return Program(
    classifier,
    -(-num_trials // len(devices)) * len(devices),
    jax.jit(grouped(init, (0,))),
    jax.jit(grouped(train_step, (0, None, 0)), donate_argnums=0),
    jax.jit(grouped(eval_step, (0, None))),
    lambda tree: jax.device_put(tree, sharding),
  )
