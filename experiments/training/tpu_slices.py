"""Compiles training steps for TPU slices without having them."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from experiments.command.errors import UserError, one_of
from experiments.data import loading
from experiments.data.batches import Batch
from experiments.training import compiled as compiled_lib

GENERATIONS = ('v4', 'v5e', 'v5p', 'v6e')
# Bytes that a program may use on a device, as the compiler reports them.
_MEMORY = {
  'TPU v4': 30.75 * 2**30,
  'TPU v5 lite': 15.75 * 2**30,
  'TPU v5': 95.74 * 2**30,
  'TPU v6 lite': 31.25 * 2**30,
}
# The least effort of the compiler for the run time of a program: -1 for older
# versions of jax, and O0 for newer ones.
_QUICK = (
  {'exec_time_optimization_effort': -1.0}
  if hasattr(jax.config, 'jax_exec_time_optimization_effort')
  else {'optimization_level': 9}
)
_COLLECTIVES = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
_KNOBS = (
  'lower config.train.batch_size; raise config.train.grad_accum_steps; '
  'set config.model.encoder=attention(remat=True); config.train.fsdp_min_size '
  'to shard parameters; use config.model.dtype=bfloat16 or '
  'backend=chunked; or choose a larger slice'
)


def devices_of(topology: str) -> list:
  """The devices of a slice, such as v5e:2x4 or v4:2x2x2.

  Raises:
    UserError: there is no such slice, or no TPU compiler is installed.
  """
  name, _, layout = topology.partition(':')
  one_of(name, GENERATIONS, '--topology, before the colon,')
  if not re.fullmatch(r'\d+x\d+(x\d+)?', layout):
    raise UserError(
      f'--topology={topology} must end in chips a side, such as {name}:2x2'
    )
  options = {}
  if name == 'v4':
    options['chip_config_name'] = 'megacore'  # two cores are one device
  sides = [int(side) for side in layout.split('x')]
  # Hosts of v5e and v6e have four chips or, of this slice, all eight.
  is_of_eight = name in ('v5e', 'v6e') and sides == [2, 4]
  if math.prod(sides) < 4 or is_of_eight:
    options['chips_per_host_bounds'] = (*sides, 1)[:3]
  try:
    return topologies.get_topology_desc(
      platform='tpu', topology_name=topology, **options
    ).devices
  except RuntimeError as error:
    reason = str(error).splitlines()[0]
    if 'not installed' in reason:
      reason = (
        'there is no TPU compiler here; install the extra tpu-compile: '
        "bash scripts/run.sh pip install 'jax[tpu]'"
      )
    raise UserError(f'--topology={topology}: {reason}') from error


def compile_step(settings, loaded: loading.Data, devices, quick: bool):
  """(compiled update on the longest batch, the program).

  Args:
    quick: with the least effort of the compiler.

  Raises:
    UserError: it does not fit into the memory of a device.
  """
  program = compiled_lib.make(
    settings, loaded.vocabulary, loaded.label_facts, devices=devices
  )
  mesh = program.mesh
  parts = mesh.shape['data']
  rows = -(-settings.train.batch_size // parts) * parts
  of_rows = compiled_lib.batch_sharding(mesh)

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=of_rows)

  labels = loaded.splits['train'].labels
  arrays: Any = (
    array(jnp.int32, rows, loaded.bucket_lengths[-1]),
    array(jnp.int32, rows),
    array(labels.dtype, rows, *labels.shape[1:]),
    array(jnp.float32, rows),
  )
  batch = Batch(*arrays)
  # Shapes alone: arrays would be on a device of this machine.
  hparams = jax.eval_shape(lambda: program.hparams([settings]))
  lowered = program.train_step.lower(program.template, batch, hparams)
  try:
    return lowered.compile(compiler_options=_QUICK if quick else None), program
  except jax.errors.JaxRuntimeError as error:
    amounts = re.search(
      r'\(([\d.]+[KMGT])\) exceeds available HBM \(([\d.]+[KMGT])\)'
      r'|Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm',
      str(error),
    )
    if amounts is None:
      raise
    needed, available = filter(None, amounts.groups())
    raise UserError(
      f'an update needs {needed} of the {available} that a '
      f'{devices[0].device_kind} has: {_KNOBS}'
    ) from error


def collectives(text: str) -> dict[str, int]:
  """How many collectives of each kind a compiled program has, from its text."""
  kinds = '|'.join(_COLLECTIVES)
  return dict(Counter(re.findall(rf'= .*? ({kinds})(?:-start)?\(', text)))


def report(compiled, program, length: int) -> dict[str, Any]:
  """Memory and collectives of a step of compile_step, per device.

  Args:
    length: of its batch, in tokens.
  """
  devices, attention = program.mesh.devices, program.attention(length)
  memory = compiled.memory_analysis()
  available = int(_MEMORY[devices.flat[0].device_kind])
  return {
    'devices': devices.size,
    'hosts': len({device.process_index for device in devices.flat}),
    'mesh': dict(program.mesh.shape),
    'attention': attention or None,
    'fits': memory.peak_memory_in_bytes <= available,
    'memory_bytes': memory.peak_memory_in_bytes,
    'memory_available_bytes': available,
    'argument_bytes': memory.argument_size_in_bytes,
    'collectives': collectives(compiled.as_text()),
  }
