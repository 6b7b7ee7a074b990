"""Compiles the training step of a config for a TPU slice, without a TPU.

    bash scripts/run.sh experiments.compile --config=configs/sst2.py \\
        --config.data.dir=PATH --topology=v5e:2x4

Prints the memory that each device needs and the collectives between devices.
Exit code 2 if it does not fit into memory. Needs the extra `tpu-compile`:
bash scripts/run.sh pip install 'jax[tpu]'
"""

from __future__ import annotations

import os

# Before jax is imported: libtpu must not look for a TPU on this machine, nor
# lock one that is there.
os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_MIN_LOG_LEVEL': '3',
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
}

from experiments.command import app
from experiments.command.command_line import define
from experiments.command.log import log
from experiments.data import loading
from experiments.settings import open_models, reference
from experiments.settings import settings as settings_lib
from experiments.training import sources, tpu_slices


def _define(values) -> None:
  define(
    values,
    ('topology', None, 'TPU slice to compile for, such as v5e:2x4 or '
     'v4:2x2x2.'),
    ('quick', False, 'Compile with fewer optimizations, in seconds: the same '
     'operations, often more memory.'),
  )  # fmt: skip


def main(values) -> None:
  """Compiles the training step and prints the report."""
  topology = app.required(values, 'topology')
  settings = settings_lib.from_config(open_models.of_flags(values))
  devices = tpu_slices.devices_of(topology)
  tokenizer, labels = sources.vocabulary(settings), settings.task.entry.labels
  loaded = loading.load(settings.data, '', tokenizer, labels)
  log(
    f'compiling for {len(devices)} x {devices[0].device_kind}: batch '
    f'{settings.train.batch_size}, {loaded.bucket_lengths[-1]} tokens'
  )
  compiled, program = tpu_slices.compile_step(
    settings, loaded, devices, values.quick
  )
  report = tpu_slices.report(compiled, program, loaded.bucket_lengths[-1])
  if report['attention']:
    log(f'attention: {report["attention"]}')
  log(
    f'memory per device: {report["memory_bytes"] / 2**20:,.1f} MiB of '
    f'{report["memory_available_bytes"] / 2**30:.2f} GiB'
  )
  for kind, count in report['collectives'].items():
    log(f'{kind}: {count} calls')
  app.print_result({'topology': topology, **report})


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
