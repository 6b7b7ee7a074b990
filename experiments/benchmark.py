"""Benchmarks alternatives side by side, in one process.

    bash scripts/run.sh experiments.benchmark --suite=step
    bash scripts/run.sh experiments.benchmark --suite=attention \\
        --lengths=1024 --positions=none,shaw --backends=reference,chunked
    bash scripts/run.sh experiments.benchmark --suite=attention \\
        --positions=all --normalisers=all --backends=chunked \\
        --lengths=128,512,2048 --output=docs/results/attention.json

Machines are shared and noisy, so repetitions of the alternatives are
interleaved; compare their ratios. The last line is one JSON object, which
--output writes to a file.

attention  memory and time of the gradient of one attention call
data       from the start of a process to the first batch of a file of --rows
           texts, read for the first time, again, and by two processes
           at once; with --against, also by another checkout
dropout    selfattn.dropout, by hashing, against nn.Dropout
epoch      training steps on SST-2, by how batches are made; needs --data_dir
models     a training step of classifiers of three sizes, in bfloat16; for
           accelerators
operations where a training step of the default config spends its time, on a CPU
predict    experiments.predict of one text, of --rows and of ten times as many,
           and the first answer of a pipe; with --against, also by another
           checkout
startup    from the command to the first training step, and peak memory, and
           predict of one text and evaluate; with --against, the first step
           alone, against that of another checkout
step       a training step of the tutorial's classifier and of the default
           config, against PyTorch and the layers of Flax
sweep      32 trials as one sweep, against 32 launches
trials     plans of one trial and of a thousand, and a sweep of a thousand that
           has ended; with --against, also by another checkout
"""

from __future__ import annotations

import json

import jax

from experiments.benchmarks import (
  attention,
  data,
  dropout,
  epoch,
  models,
  operations,
  predict,
  startup,
  step,
  sweep,
  table,
  trials,
)
from experiments.command import app, invocation, provenance
from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from experiments.sweeps.running import ENGINES
from experiments.workdir.workdir import write_atomic
from selfattn.backends import BACKENDS
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS

SUITES = {
  module.__name__.rpartition('.')[2]: module.measure
  for module in (
    attention,
    data,
    dropout,
    epoch,
    models,
    operations,
    predict,
    startup,
    step,
    sweep,
    trials,
  )
}


def _define(values) -> None:
  flags = app.flags
  flags.DEFINE_enum(
    'suite',
    None,
    sorted(SUITES),
    'What to measure; the suites are listed above.',
    flag_values=values,
  )
  for name, default, text in (
    ('repetitions', 20, 'Number of timed calls of each alternative.'),
    ('batch', 1, 'Batch size of suite attention.'),
    ('heads', 4, 'Number of heads of suite attention.'),
    ('head_dim', 32, 'Channels per head of suite attention.'),
    ('rows', 1_000_000, 'Number of texts of suites data and predict.'),
    ('memory_gib', 6, 'Memory limit of a row of suite attention, in GiB.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)
  for name, text in (
    ('data_dir', 'Folder of SST-2 (see configs/sst2.py), for suite epoch.'),
    (
      'against',
      'Root of another checkout, for suites data, predict, startup and trials.',
    ),
    ('output', 'File for the result, as JSON; none: standard output alone.'),
  ):
    flags.DEFINE_string(name, None, text, flag_values=values)
  for name, default, text in (
    (
      'positions',
      ['alibi'],
      'Position methods of suite attention, a list, or all.',
    ),
    (
      'normalisers',
      ['softmax'],
      'Normalisers of suite attention, a list, or all; without positions.',
    ),
    (
      'lengths',
      ['128', '1024', '8192'],
      'Sequence lengths of suite attention, in tokens, a list.',
    ),
    (
      'backends',
      ['chunked', 'xla'],
      'Attention backends of suites attention and models, a list.',
    ),
    ('models', list(models.SIZES), 'Sizes of suite models, a list.'),
    ('engines', ['auto'], 'Sweep engines of suite sweep, a list.'),
  ):
    flags.DEFINE_list(name, default, text, flag_values=values)


def main(values) -> None:
  """Runs a suite and prints its table."""
  suite = app.required(values, 'suite')
  for name in attention.names(values.positions, POSITIONS):
    one_of(name, POSITIONS, '--positions')
  for name in attention.names(values.normalisers, NORMALISERS):
    one_of(name, NORMALISERS, '--normalisers')
  for backend in values.backends:
    one_of(backend, BACKENDS, '--backends')
  for model in values.models:
    one_of(model, models.SIZES, '--models')
  for engine in values.engines:
    one_of(engine, ['auto', *ENGINES], '--engines')
  for length in values.lengths:
    if not length.isdecimal() or length == '0':
      raise UserError(f'--lengths={length} must be a positive number of tokens')
  if values.output is not None:
    app.check_output(values.output)
  device = jax.devices()[0]
  log(
    f'backend {jax.default_backend()}, {device.device_kind}, '
    f'jax {jax.__version__}, {values.repetitions} repetitions'
  )
  # Before measuring, which may take long enough for files to change.
  commit = provenance.commit()
  rows = SUITES[suite](values)
  log(table(rows))
  result = {
    'suite': suite,
    'command': invocation.without_paths(invocation.command()),
    'commit': commit,
    'machine': provenance.machine(),
    'device': device.device_kind,
    'jax': jax.__version__,
    'rows': rows,
  }
  if values.output is not None:
    write_atomic(values.output, json.dumps(result, indent=1) + '\n')
  app.print_result(result)


if __name__ == '__main__':
  app.run(main, _define, __doc__)
