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

from experiments.command import app
from experiments.command.log import log
from experiments.data import loading
from experiments.settings import extensions
from experiments.settings import settings as settings_lib
from experiments.training import tpu_slices


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
  extensions.add(values.config, values.config_path)
  settings = settings_lib.from_config(values.config)
  devices = tpu_slices.devices_of(topology)
  loaded = loading.load(settings.data, '')
  log(
    f'compiling for {len(devices)} x {devices[0].device_kind}: batch '
    f'{settings.train.batch_size}, {loaded.bucket_lengths[-1]} tokens'
  )
  found = tpu_slices.report(
    *tpu_slices.compile_step(
      settings, loaded, devices, values.num_trials, values.quick
    ),
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
