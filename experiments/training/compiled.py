"""What is compiled for a run, or for a group of runs that share it.

Runs whose settings differ in numbers only (`key` is the same) share one
program. Trained as a group, their trees have a leading axis of trials; the
batches are the same for all.

All devices form one mesh with two axes: `trial`, of which a run alone has one,
and `data`, over which the rows of every batch are spread. Parameters and
optimizer state are replicated, or, from settings.train.fsdp_min_size elements
on, sharded along their largest axis over `data` (as ZeRO-3, Rajbhandari et al.
2020): a device gathers them for the update, and keeps its shard of the result.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
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
from experiments.learning import tasks
from experiments.learning.hparams import HParams
from experiments.learning.steps import State
from experiments.learning.tasks import Task
from experiments.settings.settings import Phase, Settings
from experiments.training import build


def key(settings: Settings) -> str:
  """The same text for settings that share a program, and its loop."""
  # What is of a phase stands in its own settings, as those of any other.
  found = [
    {
      name: value
      for name, value in HParams.program(phase.settings.flat()).items()
      if not name.startswith('pretrain.')
    }
    for phase in settings.phases()
  ]
  return json.dumps(found, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Program:
  """Compiled functions; of a group, where `size` is not None.

  Of a run with several phases it is the program of the last one, which knows
  the others; they share the state, and what is of the state.

  Attributes:
    phase: what of the run it trains.
    task: what that is.
    earlier: programs of earlier phases, the first one first.
    classifier: what is trained, or one member of it.
    size: trials of the group, or None for a run alone.
    mesh: the devices, axes `trial` and `data`.
    share: rows of a batch that this process computes.
    template: shapes, types and places of the state of one trial.
    state_sharding: tree of places of the state of the program.
    init: from hparams to a fresh State, of the first phase.
    restart: from the State at the end of the phase before and hparams to that
      which this one begins with; gives the former away.
    train_step: as steps.make_train_step; gives its state away.
    eval_step: as steps.make_eval_step; its results are whole everywhere.
    is_finite: from a state to whether all of it is finite, for each trial.
    model_flops: from the shape of its tokens to what an update of one trial
      needs at least.
  """

  phase: Phase
  task: Task
  earlier: tuple[Program, ...]
  classifier: object
  size: int | None
  mesh: Mesh
  share: Share
  template: State
  state_sharding: State
  init: Callable
  restart: Callable
  train_step: Callable
  eval_step: Callable
  is_finite: Callable
  model_flops: Callable[[tuple[int, int]], int]

  @property
  def phases(self) -> tuple[Program, ...]:
    """Programs of all phases, in their order."""
    return (*self.earlier, self)

  def put(self, batch: Batch) -> Batch:
    """This process's rows of a batch, as part of the whole on all devices."""
    if self.mesh.size == 1:
      return batch
    rows = NamedSharding(self.mesh, PartitionSpec('data'))
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
        rows, x, (len(x) * self.share.count, *x.shape[1:])
      ),
      batch,
    )

  def join(self, trees: list[State]) -> State:
    """One state of the states of all trials."""
    if self.size is None:
      return trees[0]
    trees = trees + trees[-1:] * (self.size - len(trees))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    return jax.device_put(stacked, self.state_sharding)

  def hparams(self, settings: list[Settings]) -> HParams:
    """The numbers of all trials in this phase."""
    index = len(self.earlier)
    numbers = [
      build.hparams(wanted.phases()[index].settings) for wanted in settings
    ]
    if self.size is None:
      return numbers[0]
    numbers += numbers[-1:] * (self.size - len(numbers))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers)

  def split(self, tree, count: int) -> list:
    """The trees of the first `count` trials, on the host if a group's."""
    if self.size is None:
      return [tree]
    tree = jax.device_get(tree)
    return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(count)]


class RunAhead:
  """Lets the host be some calls ahead of the devices, and no more.

  Of programs that send, a CPU keeps 32 in its queue; with more, devices of one
  process have been seen to wait for each other forever.
  """

  _MOST = 16

  def __init__(self):
    self._results = collections.deque()

  def add(self, result) -> None:
    """Waits for the oldest of many results."""
    self._results.append(result)
    if len(self._results) > self._MOST:
      jax.block_until_ready(self._results.popleft())


def make(
  settings: Settings,
  vocab_size: int,
  num_classes: int,
  num_trials: int | None = None,
  devices: list[jax.Device] | None = None,
) -> Program:
  """The program of these settings; of a group if num_trials is given.

  Args:
    devices: all of this machine's or cluster's, if not given.

  Raises:
    UserError: these devices do not support the backend of attention.
  """
  mesh = _mesh(devices or jax.devices(), num_trials or 1)
  platform = mesh.devices.flat[0].platform
  models = build.models(settings, vocab_size, num_classes, platform)
  first, last = settings.phases()[0].settings, settings.phases()[-1].settings

  def init(hparams):
    return build.init_state(first, models[-1], hparams, models[:-1])

  template = jax.eval_shape(init, build.hparams(settings))
  of_trial = () if num_trials is None else ('trial',)
  place = functools.partial(_sharding, mesh, settings.train.fsdp_min_size)
  state_sharding = jax.tree.map(lambda x: place(x.shape, of_trial), template)
  size, over = None, _alone
  if num_trials is not None:
    size = -(-num_trials // mesh.shape['trial']) * mesh.shape['trial']
    # The trials are spread by name, so that no device waits for another's.
    over = functools.partial(jax.vmap, spmd_axis_name='trial')

  alone = SingleDeviceSharding(mesh.devices.flat[0])
  each = NamedSharding(mesh, PartitionSpec(*of_trial))
  places = _places(state_sharding, each) if mesh.size > 1 else _NOWHERE
  restart = jax.jit(
    over(build.restart(last)), donate_argnums=0, **places['restart']
  )
  shared = {
    'size': size,
    'mesh': mesh,
    'share': Share(
      jax.process_index(), jax.process_count(), mesh.shape['data']
    ),
    'template': jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=alone if of_trial else place(x.shape)
      ),
      template,
    ),
    'state_sharding': state_sharding,
    'init': jax.jit(over(init), **places['init']),
    'restart': restart,
    'is_finite': jax.jit(over(_is_finite)),
  }
  program, earlier = None, ()
  for phase, model in zip(settings.phases(), models, strict=True):
    # With one phase, there is nothing that it could leave alone.
    trained = build.top_level(model) if len(models) > 1 else None
    own = _of_phase(phase, model, mesh, trained, over, places, template)
    program = Program(phase=phase, earlier=earlier, **own, **shared)
    earlier = (*earlier, program)
  return program


def _of_phase(
  phase: Phase, classifier, mesh, trained, over: Callable, places, template
) -> dict[str, Any]:
  """What a Program holds of one phase alone."""
  settings, platform = phase.settings, mesh.devices.flat[0].platform
  by_rows = mesh if mesh.size > 1 else None
  train_step = build.train_step(
    settings, classifier, platform, by_rows, phase.start, trained
  )
  eval_step = build.eval_step(settings, classifier, by_rows)
  return {
    'task': tasks.make(settings.task),
    'classifier': classifier,
    'train_step': jax.jit(
      over(train_step, in_axes=(0, None, 0)),
      donate_argnums=0,
      **places['train_step'],
    ),
    'eval_step': jax.jit(
      over(eval_step, in_axes=(0, None)), **places['eval_step']
    ),
    'model_flops': functools.partial(
      build.model_flops, settings, classifier, template.params
    ),
  }


def _alone(function: Callable, in_axes=0) -> Callable:
  """What stands in the place of vmap where there are no trials."""
  del in_axes
  return function


def _is_finite(state: State) -> jax.Array:
  leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]
  return jnp.stack(leaves).all()


_NOWHERE = {'init': {}, 'restart': {}, 'train_step': {}, 'eval_step': {}}


def _places(state: State, each: NamedSharding) -> dict[str, dict]:
  """Arguments of jax.jit for what a Program holds.

  Args:
    state: places of its leaves.
    each: place of what every trial has of its own.
  """
  rows = NamedSharding(each.mesh, PartitionSpec('data'))
  return {
    'init': {'in_shardings': each, 'out_shardings': state},
    'restart': {'in_shardings': (state, each), 'out_shardings': state},
    'train_step': {
      'in_shardings': (state, rows, each),
      'out_shardings': (state, each),
    },
    'eval_step': {
      'in_shardings': (state.eval_params, rows),
      'out_shardings': each,
    },
  }


def _mesh(devices: list[jax.Device], num_trials: int) -> Mesh:
  """As many trials at once as divide the devices; those of a host together."""
  fitting = [n for n in range(1, num_trials + 1) if len(devices) % n == 0]
  ordered = sorted(devices, key=lambda d: (d.process_index, d.id))
  return Mesh(np.array(ordered).reshape(max(fitting), -1), ('trial', 'data'))


def _sharding(
  mesh: Mesh, fsdp_min_size: int, shape: tuple[int, ...], before: tuple = ()
) -> NamedSharding:
  """Of a leaf: cut along its largest axis that divides, if large enough."""
  parts = mesh.shape['data']
  axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
  spec = [None] * len(shape)
  if fsdp_min_size and math.prod(shape) >= fsdp_min_size and axes and parts > 1:
    spec[max(axes, key=lambda axis: shape[axis])] = 'data'
  return NamedSharding(mesh, PartitionSpec(*before, *spec))
