"""Compiles the training step of a config for a TPU slice, without a TPU.

    bash scripts/run.sh experiments.compile --config=configs/sst2.py \\
        --config.data.dir=PATH --topology=v5e:2x4

Says what a device needs of its memory, how long an update takes at least, and
what devices send to each other. Exit code 2 where it does not fit. Needs the
extra `tpu-compile`: bash scripts/run.sh pip install 'jax[tpu]'
"""

from __future__ import annotations

import os

# Before jax is imported: nothing here may look for a TPU, which this machine
# need not have, or take the lock of one that it has.
os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_MIN_LOG_LEVEL': '3',
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
}

import math
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from experiments.command import app
from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from experiments.data import loading
from experiments.data.batches import Batch
from experiments.settings import settings as settings_lib
from experiments.training import compiled as compiled_lib
from experiments.training.devices import CHIPS

GENERATIONS = ('v4', 'v5e', 'v5p', 'v6e')
# What the compiler calls the least effort for the time a program takes.
_QUICK = {'exec_time_optimization_effort': -1.0}
_SENDING = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
_KNOBS = (
  'lower config.train.batch_size; raise config.train.accumulate; '
  'set config.model.encoder.attention.remat=True; set config.train.shard_from '
  'to cut parameters over devices; use config.model.dtype=bfloat16 or '
  'config.model.encoder.attention.backend=chunked; or choose a larger slice'
)


def devices_of(topology: str) -> list:
  """The devices of a slice, such as v5e:2x4 or v4:2x2x2.

  Raises:
    UserError: there is no such slice, or no TPU compiler.
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
  if math.prod(sides) < 4:
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


def compile_step(
  settings,
  loaded: loading.Data,
  devices,
  num_trials: int | None = None,
  quick: bool = False,
):
  """(compiled update on the longest batch, its model FLOPs, the program).

  Args:
    num_trials: of a group; None: of a run alone.
    quick: with less effort of the compiler.

  Raises:
    UserError: it does not fit into the memory of a device.
  """
  program = compiled_lib.make(
    settings, loaded.vocab_size, len(loaded.labels), num_trials, devices
  )
  mesh = program.mesh
  parts = mesh.shape['data']
  rows = -(-settings.train.batch_size // parts) * parts
  rows *= settings.model.num_members
  shape = (rows, loaded.bucket_lengths[-1])
  of_rows = NamedSharding(mesh, PartitionSpec('data'))
  tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=of_rows)
  integers = jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=of_rows)
  weights = jax.ShapeDtypeStruct(shape[:1], jnp.float32, sharding=of_rows)
  batch = Batch(tokens, integers, integers, weights)
  numbers = program.hypers([settings])
  each = PartitionSpec()
  state = program.template
  if program.size is not None:
    each = PartitionSpec('trial')
    state = _repeated(state, program.size)
  place = NamedSharding(mesh, each)
  hyper = _placed(numbers, jax.tree.map(lambda _: place, numbers))
  state = _placed(state, program.state_sharding)
  flops = program.model_flops(shape)
  lowered = program.train_step.lower(state, batch, hyper)
  try:
    compiled = lowered.compile(compiler_options=_QUICK if quick else None)
    return compiled, flops * (program.size or 1), program
  except jax.errors.JaxRuntimeError as error:
    found = re.search(
      r'\(([\d.]+[KMGT])\) exceeds available HBM \(([\d.]+[KMGT])\)'
      r'|Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm',
      str(error),
    )
    if found is None:
      raise
    needed, available = [group for group in found.groups() if group]
    raise UserError(
      f'an update needs {needed} of the {available} that a '
      f'{devices[0].device_kind} has: {_KNOBS}'
    ) from error


def _repeated(tree, count: int):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), tree
  )


def _placed(tree, shardings):
  def place(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(place, tree, shardings)


def sent(text: str) -> dict[str, dict[str, int]]:
  """Count and bytes a device of what a compiled program sends, by kind."""
  found: dict[str, dict[str, int]] = {}
  kinds = '|'.join(_SENDING)
  pattern = rf'= (.*?) ({kinds})(?:-start)?\('
  for shapes, kind in re.findall(pattern, text):
    entry = found.setdefault(kind, {'count': 0, 'bytes': 0})
    entry['count'] += 1
    entry['bytes'] += sum(
      _item_bytes(dtype) * math.prod(int(n) for n in sides.split(',') if n)
      for dtype, sides in re.findall(r'(\w+)\[([\d,]*)\]', shapes)
    )
  return found


def _item_bytes(dtype: str) -> int:
  bits = re.sub(r'\D', '', dtype.partition('e')[0])
  return max(1, int(bits or 8) // 8)


def report(compiled, flops: int, program, topology: str) -> dict[str, object]:
  """What the compiled update needs of each device; times in seconds."""
  devices = program.mesh.devices
  chip = CHIPS[devices.flat[0].device_kind]
  memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
  accessed = cost.get('bytes accessed', 0.0)
  computing = flops / devices.size / chip.flops
  reading = accessed / chip.bandwidth
  hosts = len({device.process_index for device in devices.flat})
  return {
    'topology': topology,
    'devices': devices.size,
    'hosts': hosts,
    'mesh': dict(program.mesh.shape),
    'fits': memory.peak_memory_in_bytes <= chip.memory,
    'memory_bytes': memory.peak_memory_in_bytes,
    'memory_available_bytes': int(chip.memory),
    'argument_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
    'model_flops': flops,
    'program_flops_per_device': cost.get('flops', 0.0),
    'bytes_accessed_per_device': accessed,
    'seconds_computing': computing,
    'seconds_reading': reading,
    'seconds_at_least': max(computing, reading),
    'sent_per_device': sent(compiled.as_text()),
  }


def _define(values) -> None:
  flags = app.flags
  flags.DEFINE_string(
    'topology', None, 'A TPU slice: v5e:2x4, v4:2x2x2.', flag_values=values
  )
  flags.DEFINE_integer(
    'num_trials',
    None,
    'Trials of a vectorized sweep, instead of a run.',
    1,
    flag_values=values,
  )
  flags.DEFINE_bool(
    'quick',
    False,
    'Compile with little effort, in seconds: the same operations, and often '
    'more memory than in earnest.',
    flag_values=values,
  )


def main(values) -> None:
  """Compiles as the flags say, and prints what was found."""
  topology = app.required(values, 'topology')
  settings = settings_lib.from_config(values.config)
  devices = devices_of(topology)
  loaded = loading.load(settings.data, '')
  log(
    f'compiling for {len(devices)} x {devices[0].device_kind}: batch '
    f'{settings.train.batch_size}, {loaded.bucket_lengths[-1]} tokens'
  )
  found = report(
    *compile_step(settings, loaded, devices, values.num_trials, values.quick),
    topology,
  )
  available = found['memory_available_bytes']
  log(
    f'memory of a device: {found["memory_bytes"] / 2**20:,.1f} MiB of '
    f'{available / 2**30:.2f} GiB ({found["memory_bytes"] / available:.1%})'
  )
  log(
    f'an update: {found["model_flops"]:.3g} FLOPs of the model, '
    f'{found["bytes_accessed_per_device"]:.3g} bytes read and written a device'
  )
  log(
    f'at least {1e3 * found["seconds_at_least"]:.3g} ms: computing '
    f'{1e3 * found["seconds_computing"]:.3g} ms, memory '
    f'{1e3 * found["seconds_reading"]:.3g} ms (loops counted once), sending '
    'not counted'
  )
  for kind, entry in found['sent_per_device'].items():
    log(f'sends {kind}: {entry["count"]} times, {entry["bytes"]:,} bytes')
  app.print_result(found)


if __name__ == '__main__':
  app.run(main, _define, __doc__, takes_config=True)
