"""What is compiled for a run, or for a group of runs that share it.

Runs whose settings differ in hyperparameters only (`key` is the same) share one
program. Trained as a group, their trees have a leading axis of trials; so have
batches of training, if each trial has its own order of examples.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from experiments.data.batches import Batch, Share
from experiments.data.vocabularies import Vocabulary
from experiments.learning import steps, tasks
from experiments.learning.hparams import HParams
from experiments.learning.steps import State
from experiments.learning.tasks import Task
from experiments.settings.settings import Settings
from experiments.training import build, sharding
from selfattn.kernels import platform_of


def key(settings: Settings) -> str:
  """The same text for settings that share a program, and its loop."""
  return json.dumps(HParams.program(settings), sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Program:
  """Compiled functions of a run, or of a group of runs.

  Attributes:
    settings: of the run, or of one of the group.
    task: of the settings.
    classifier: the model.
    size: trials of the group, or None for a run alone.
    mesh: the devices, axes `trial` and `data`.
    share: rows of a batch that this process computes.
    has_orders: whether batches of training have a leading axis of trials.
    template: shapes, dtypes and shardings of the State of one trial.
    state_sharding: tree of shardings of the State of the program.
    init: from hparams to the State before the first step of the run.
    train_step: as steps.make_train_step; donates its State.
    eval_step: as steps.make_eval_step; its results are replicated.
    is_finite: from a State to whether all of it is finite, for each trial.
  """

  settings: Settings
  task: Task
  classifier: object
  size: int | None
  mesh: Mesh
  share: Share
  has_orders: bool
  template: State
  state_sharding: State
  init: Callable
  train_step: Callable
  eval_step: Callable
  is_finite: Callable

  @property
  def num_parameters(self) -> int:
    """Number of scalars that are trained, of one trial."""
    return build.count_parameters(self.template.params)

  def attention_choice(self, length: int):
    """Encoder.attention_choice of a training batch of this length."""
    settings, devices = self.settings, self.mesh.devices
    rows = -(-settings.train.batch_size // self.mesh.shape['data'])
    return build.attention_choice(
      settings, self.classifier, (rows, length), platform_of(devices.flat[0])
    )

  def put(self, batch: Batch) -> Batch:
    """A batch on all devices, from the rows of it on this process."""
    if self.mesh.size == 1:
      return batch
    rows = sharding.of_batches(self.mesh)
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
        rows, x, (len(x) * self.share.count, *x.shape[1:])
      ),
      batch,
    )

  def put_train(self, batches: list[Batch]) -> Batch:
    """As `put`, the batch of a training step.

    Args:
      batches: that of each trial, of equal shapes, if the program has_orders;
        else the one that all trials read.
    """
    if not self.has_orders:
      return self.put(batches[0])
    batch = self._stacked(batches, np.stack)
    return jax.device_put(batch, sharding.of_batches(self.mesh, True))

  def join(self, trees: list[State]) -> State:
    """The State of the program, from those of all trials."""
    if self.size is None:
      return trees[0]
    return jax.device_put(self._stacked(trees), self.state_sharding)

  def hparams(self, settings: list[Settings]) -> HParams:
    """Hyperparameters of all trials."""
    found = [build.hparams(wanted) for wanted in settings]
    return found[0] if self.size is None else self._stacked(found)

  def _stacked(self, trees: list, stack: Callable = jnp.stack):
    """A tree with an axis of trials; the last one fills what is left."""
    trees = trees + trees[-1:] * (self.size - len(trees))
    return jax.tree.map(lambda *leaves: stack(leaves), *trees)

  def split(self, tree, count: int) -> list:
    """The trees of the first `count` trials; those of a group on the host."""
    if self.size is None:
      return [tree]
    tree = jax.device_get(tree)
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(count)]


class RunAhead:
  """Limits how many calls the host dispatches ahead of the devices.

  The CPU backend queues at most 32 programs with collectives; beyond that,
  devices of one process have been seen to deadlock.
  """

  _MOST = 16

  def __init__(self):
    self._results = collections.deque()

  def add(self, result) -> None:
    """Adds a result; waits for the oldest one if there are many."""
    self._results.append(result)
    if len(self._results) > self._MOST:
      jax.block_until_ready(self._results.popleft())


def make(
  settings: Settings,
  vocabulary: Vocabulary,
  num_classes: int,
  num_trials: int | None = None,
  devices: list[jax.Device] | None = None,
) -> Program:
  """The program of these settings; of a group if num_trials is given.

  Args:
    devices: default: all of the machine or the cluster.

  Raises:
    UserError: these devices do not support the backend of attention.
  """
  mesh = sharding.make_mesh(devices or jax.devices(), num_trials or 1)
  platform = platform_of(mesh.devices.flat[0])
  classifier = build.model(settings, vocabulary.size, num_classes, platform)
  task = tasks.make(settings.task, vocabulary.begins_word)

  def init(hparams):
    return build.init_state(settings, classifier, hparams)

  # Traced, too: as an array, the key of the seed would compile a program.
  template = jax.eval_shape(lambda: init(build.hparams(settings)))
  of_trial = () if num_trials is None else ('trial',)
  of_leaf = functools.partial(
    sharding.of_leaf, mesh, settings.train.fsdp_min_size
  )
  state_sharding = jax.tree.map(lambda x: of_leaf(x.shape, of_trial), template)
  size, over = None, _alone
  if num_trials is not None:
    size = -(-num_trials // mesh.shape['trial']) * mesh.shape['trial']
    # With the name of its axis, the vmap needs no collectives between trials.
    over = functools.partial(jax.vmap, spmd_axis_name='trial')

  alone = SingleDeviceSharding(mesh.devices.flat[0])
  each = NamedSharding(mesh, PartitionSpec(*of_trial))
  has_orders = num_trials is not None and settings.train.shuffle_by_seed
  jit_args = sharding.of_functions(state_sharding, each, has_orders)
  by_rows = mesh if mesh.size > 1 else None
  train_step = build.train_step(settings, classifier, task, platform, by_rows)
  eval_step = steps.make_eval_step(classifier, by_rows, task)
  return Program(
    settings=settings,
    task=task,
    classifier=classifier,
    size=size,
    mesh=mesh,
    share=Share(jax.process_index(), jax.process_count(), mesh.shape['data']),
    has_orders=has_orders,
    template=jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=alone if of_trial else of_leaf(x.shape)
      ),
      template,
    ),
    state_sharding=state_sharding,
    init=jax.jit(over(init), **jit_args['init']),
    train_step=jax.jit(
      over(train_step, in_axes=(0, 0 if has_orders else None, 0)),
      donate_argnums=0,
      **jit_args['train_step'],
    ),
    eval_step=jax.jit(
      over(eval_step, in_axes=(0, None)), **jit_args['eval_step']
    ),
    is_finite=jax.jit(over(_is_finite)),
  )


def _alone(function: Callable, in_axes=0) -> Callable:
  """Replaces jax.vmap for a run alone, which has no axis of trials."""
  del in_axes
  return function


def _is_finite(state: State) -> jax.Array:
  leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
  return jnp.stack(leaves).all()
