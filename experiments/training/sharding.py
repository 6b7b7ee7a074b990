"""Meshes of devices, and how arrays are sharded over them.

A mesh has two axes: `trial`, of which a run alone has one, and `data`, over
which the rows of every batch are spread. Parameters and optimizer state are
replicated, or, from settings.train.fsdp_min_size elements on, sharded along
their largest axis over `data` (as ZeRO-3, Rajbhandari et al. 2020): a device
gathers them for the update, and keeps its shard of the result.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.learning.steps import State


def make_mesh(devices: list[jax.Device], num_trials: int) -> Mesh:
  """The mesh of as many trials at once as divide the number of devices.

  Devices of one host are neighbours.
  """
  fitting = [n for n in range(1, num_trials + 1) if len(devices) % n == 0]
  ordered = sorted(devices, key=lambda d: (d.process_index, d.id))
  return Mesh(np.array(ordered).reshape(max(fitting), -1), ('trial', 'data'))


def of_leaf(
  mesh: Mesh, fsdp_min_size: int, shape: tuple[int, ...], leading: tuple = ()
) -> NamedSharding:
  """Along the largest axis that the devices divide, if it is large enough.

  Args:
    fsdp_min_size: elements from which on an array is sharded; 0: none is.
    leading: mesh axes of leading array axes that `shape` does not have.
  """
  parts = mesh.shape['data']
  axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
  spec = [None] * len(shape)
  if fsdp_min_size and math.prod(shape) >= fsdp_min_size and axes and parts > 1:
    spec[max(axes, key=lambda axis: shape[axis])] = 'data'
  return NamedSharding(mesh, PartitionSpec(*leading, *spec))


def of_batches(mesh: Mesh, has_orders: bool = False) -> NamedSharding:
  """Of the arrays of a batch.

  Args:
    has_orders: whether they have a leading axis of trials.
  """
  axes = ('trial', 'data') if has_orders else ('data',)
  return NamedSharding(mesh, PartitionSpec(*axes))


def of_functions(
  state: State, each: NamedSharding, has_orders: bool = False
) -> dict[str, dict]:
  """Keyword arguments of jax.jit for the functions of a Program, by name.

  Args:
    state: sharding of each of its leaves.
    each: sharding of hyperparameters and metrics.
    has_orders: as of Program.
  """
  if each.mesh.size == 1:
    return {'init': {}, 'train_step': {}, 'eval_step': {}}
  batches = of_batches(each.mesh, has_orders)
  return {
    'init': {'in_shardings': each, 'out_shardings': state},
    'train_step': {
      'in_shardings': (state, batches, each),
      'out_shardings': (state, each),
    },
    'eval_step': {
      'in_shardings': (state.eval_params, of_batches(each.mesh)),
      'out_shardings': each,
    },
  }
