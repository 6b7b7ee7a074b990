"""The program: what is compiled for a run, or for runs that share it.

Runs whose settings differ in hyperparameters only (`key` is the same) share one
program. Trained as a group, their trees have a leading axis of trials; so have
batches of training, if each trial has its own order of examples.

A mesh of devices has two axes: `trial`, of which a run alone has one, and
`data`, over which the rows of every batch are spread. Parameters and optimizer
state are replicated, or, from config.train.fsdp_min_size elements on, sharded
along their largest axis over `data` (as ZeRO-3, Rajbhandari et al. 2020): a
device gathers them for the update, and keeps its shard of the result.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

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
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.learning import steps
from experiments.learning.hparams import HParams
from experiments.learning.steps import State
from experiments.learning.tasks import Task
from experiments.settings.settings import Settings
from experiments.training import build
from selfattn import choice
from selfattn.classifier import TextClassifier
from selfattn.kernels import platform_of


def key(settings: Settings) -> str:
  """A text that is equal for settings that share a program and its loop."""
  return json.dumps(HParams.program(settings), sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Program:
  """Compiled functions of a run, or of a group of runs.

  Attributes:
    settings: of the run, or of one of the group.
    task: of the settings.
    classifier: the model.
    mesh: the devices, axes `trial` and `data`.
    size: trials of the group, or None for a run alone.
    has_orders: whether batches of training have a leading axis of trials.
    template: shapes, dtypes and shardings of the State of one trial.
    state_sharding: tree of shardings of the State of the program.
    init: from hparams to the State before the first step of the run.
    train_step: as steps.make_train_step returns it; donates its State.
    eval_step: as steps.make_eval_step returns it; its results are replicated.
    is_finite: from a State to whether all of it is finite, for each trial.
  """

  settings: Settings
  task: Task
  classifier: TextClassifier
  mesh: Mesh
  size: int | None
  has_orders: bool
  template: State
  state_sharding: Any
  init: Callable
  train_step: Callable
  eval_step: Callable
  is_finite: Callable

  @property
  def share(self) -> Share:
    """Rows of a batch that this process computes."""
    parts = self.mesh.shape['data']
    return Share(jax.process_index(), jax.process_count(), parts)

  @property
  def num_parameters(self) -> int:
    """Number of scalars of the parameters of one trial."""
    return build.count_parameters(self.template.params)

  def microbatches(self, length: int) -> tuple[int, int]:
    """How many a device makes of its training batch, and the rows of each."""
    platform = platform_of(self.mesh.devices.flat[0])
    rows = -(-self.settings.train.batch_size // self.mesh.shape['data'])
    rows *= max(self.settings.data.num_apart, 1)
    count = build.num_microbatches(self.settings, (rows, length), platform)
    return count, rows // count

  def attention(self, length: int) -> str:
    """Backends of attention, and why, for a batch of this length; or ''."""
    model, encoder = self.settings.model, self.classifier.encoder
    _, rows = self.microbatches(length)
    shape = rows, length + self.classifier.has_cls, model.embed_dim
    drops = model.attention_dropout_rate > 0
    layers = encoder.attention_choices(shape, drops_weights=drops)
    return choice.by_layer(layers)

  def put(self, batch: Batch) -> Batch:
    """A batch on all devices, from the rows of it on this process."""
    if self.mesh.size == 1:
      return batch
    count = jax.process_count()
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
        batch_sharding(self.mesh), x, (len(x) * count, *x.shape[1:])
      ),
      batch,
    )

  def put_train(self, batches: list[Batch]) -> Batch:
    """The batch of a training step on all devices.

    Args:
      batches: that of each trial, of equal shapes, if the program has_orders;
        else the one that all trials read.
    """
    if not self.has_orders:
      return self.put(batches[0])
    batch = self._stacked(batches, np.stack)
    return jax.device_put(batch, batch_sharding(self.mesh, True))

  def join(self, trees: list, sharding) -> Any:
    """A State or its parameters of the program, from those of all trials.

    Args:
      sharding: state_sharding, or the part of it that is joined.
    """
    if self.size is None:
      return trees[0]
    return jax.device_put(self._stacked(trees), sharding)

  def hparams(self, settings: list[Settings]) -> HParams:
    """Hyperparameters of all trials."""
    of_trials = [HParams.of(trial) for trial in settings]
    return of_trials[0] if self.size is None else self._stacked(of_trials)

  def _stacked(self, trees: list, stack: Callable = jnp.stack):
    """A tree with an axis of trials; the last one fills what is left."""
    trees = trees + trees[-1:] * ((self.size or 1) - len(trees))
    return jax.tree.map(lambda *leaves: stack(leaves), *trees)

  def split(self, tree, count: int) -> list:
    """The trees of the first `count` trials; those of a group on the host."""
    if self.size is None:
      return [tree]
    tree = jax.device_get(tree)
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(count)]


def make(
  settings: Settings,
  vocabulary: Vocabulary,
  facts: LabelFacts,
  num_trials: int | None = None,
  devices: list | None = None,
) -> Program:
  """The program of a run, or of a group if num_trials is given.

  Args:
    facts: of the labels of the data.
    devices: default: all of the machine or the cluster.

  Raises:
    UserError: these devices do not support the backend of attention, or an
      option of the task names a label that the data does not have.
  """
  mesh = _mesh(devices or jax.devices(), num_trials or 1)
  platform = platform_of(mesh.devices.flat[0])
  ids = {token: index for index, token in enumerate(vocabulary.tokens)}
  label_ids = tuple(map(ids.get, facts.names))
  by_rows = mesh if mesh.size > 1 else None
  task = settings.task.make(
    facts=facts,
    label_ids=label_ids,
    vocabulary=vocabulary,
    axis=by_rows and 'data',
  )
  # Its options may name labels, which are known only now.
  with settings.task.checked():
    task.check()
  classifier = build.model(
    settings, vocabulary.size, len(facts.names), platform, task
  )
  init = functools.partial(build.init_state, settings, classifier)
  train_step = steps.make_train_step(
    classifier,
    functools.partial(build.optimizer, settings),
    clip_norm=settings.optimizer.clip_norm,
    freezes_tokens=settings.model.embeddings.make().freeze,
    log_every=settings.train.log_every,
    num_microbatches=functools.partial(
      build.num_microbatches, settings, platform=platform
    ),
    mesh=by_rows,
    task=task,
    measures=settings.train.trained_measures(),
  )
  steps.check_measures(classifier, settings.train.measures)
  measures = [call.make() for call in settings.train.measures]
  eval_step = steps.make_eval_step(classifier, by_rows, task, measures)
  at_once = mesh.shape['trial']
  size = num_trials and -(-num_trials // at_once) * at_once
  leading = () if size is None else ('trial',)
  has_orders = size is not None and settings.train.shuffle_by_seed
  # The seed is traced, too: its key as an array would compile a program.
  shapes = jax.eval_shape(lambda: init(HParams.of(settings)))
  template, state = _placed(shapes, mesh, settings.train.fsdp_min_size, leading)
  of_trial = NamedSharding(mesh, PartitionSpec(*leading))
  compiled = functools.partial(_compiled, mesh, size)
  return Program(
    settings=settings,
    task=task,
    classifier=classifier,
    mesh=mesh,
    size=size,
    has_orders=has_orders,
    template=template,
    state_sharding=state,
    init=compiled(init, (0,), (of_trial,), state),
    train_step=compiled(
      train_step,
      (0, 0 if has_orders else None, 0),
      (state, batch_sharding(mesh, has_orders), of_trial),
      (state, of_trial),
      donate_argnums=0,
    ),
    eval_step=compiled(
      eval_step, (0, None), (state.eval_params, batch_sharding(mesh)), of_trial
    ),
    is_finite=compiled(_is_finite, (0,), (state,), of_trial),
  )


def _compiled(
  mesh: Mesh, size: int | None, function, axes, takes, gives, **options
) -> Callable:
  """A function under jit, and under vmap for a group.

  Args:
    axes: of vmap, the axis of trials of each argument, or None.
    takes, gives: shardings of arguments and results.
    options: arguments of jax.jit.
  """
  if size is not None:
    # A named axis spares the vmap collectives between trials.
    function = jax.vmap(function, axes, spmd_axis_name='trial')
  if mesh.size > 1:
    options |= {'in_shardings': takes, 'out_shardings': gives}
  return jax.jit(function, **options)


def _is_finite(state: State) -> jax.Array:
  leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
  return jnp.stack(leaves).all()


def _mesh(devices: list, num_trials: int) -> Mesh:
  """The mesh of as many trials at once as divide the number of devices.

  Devices of one host are neighbours.
  """
  fitting = [n for n in range(1, num_trials + 1) if len(devices) % n == 0]
  ordered = sorted(devices, key=lambda d: (d.process_index, d.id))
  return Mesh(np.array(ordered).reshape(max(fitting), -1), ('trial', 'data'))


def _placed(
  shapes: State, mesh: Mesh, fsdp_min_size: int, leading: tuple[str, ...]
) -> tuple[State, Any]:
  """(template, state_sharding) of a Program, from shapes and dtypes.

  Args:
    fsdp_min_size: elements from which on an array is sharded; 0: none is.
    leading: axes of the mesh for leading array axes that `shapes` do not have.
  """
  parts = mesh.shape['data']

  def cut(leaf) -> list[str | None]:
    """Cuts the largest axis that the devices divide, if it is large enough."""
    axes: list[str | None] = [None] * leaf.ndim
    fitting = [
      axis for axis in range(leaf.ndim) if not leaf.shape[axis] % parts
    ]
    if fitting and parts > 1 and 0 < fsdp_min_size <= leaf.size:
      axes[max(fitting, key=lambda axis: leaf.shape[axis])] = 'data'
    return axes

  state = jax.tree.map(
    lambda leaf: NamedSharding(mesh, PartitionSpec(*leading, *cut(leaf))),
    shapes,
  )
  # Each trial of a group is read on one device, and then put where it belongs.
  device = SingleDeviceSharding(mesh.devices.flat[0])
  template = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=device if leading else sharding
    ),
    shapes,
    state,
  )
  return template, state


def batch_sharding(mesh: Mesh, has_orders: bool = False) -> NamedSharding:
  """How the arrays of a batch are spread over devices.

  Args:
    has_orders: whether they have a leading axis of trials.
  """
  axes = ('trial', 'data') if has_orders else ('data',)
  return NamedSharding(mesh, PartitionSpec(*axes))
