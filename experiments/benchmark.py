"""Measures alternatives side by side, in one run.

    bash scripts/run.sh experiments.benchmark --suite=step
    bash scripts/run.sh experiments.benchmark --suite=attention \\
        --lengths=1024 --positions=none,shaw --backends=reference,chunked

Machines are shared and noisy, so alternatives take turns, and what counts is
their ratio. The last line is one JSON object.

attention  memory and time of the gradient of one attention call
dropout    the hash beside nn.Dropout
epoch      steps on SST-2, by how batches are made; needs --data_dir
models     a step of three sizes of classifier in bfloat16, for accelerators
startup    from the command to the first update
step       a training step of the tutorial's classifier, beside PyTorch's and
           that of flax's own layers
sweep      32 trials as a sweep, and as 32 launches
"""

from __future__ import annotations

import jax

from experiments.benchmarks import (
  attention,
  dropout,
  epoch,
  models,
  startup,
  step,
  sweep,
  table,
)
from experiments.command import app
from experiments.command.errors import UserError, one_of
from experiments.command.log import log
from experiments.sweeps.running import ENGINES
from selfattn.backends import BACKENDS
from selfattn.positions import POSITIONS

SUITES = {
  module.__name__.rpartition('.')[2]: module.measure
  for module in (attention, dropout, epoch, models, startup, step, sweep)
}


def _define(values) -> None:
  flags = app.flags
  flags.DEFINE_enum(
    'suite',
    None,
    sorted(SUITES),
    'What is measured.',
    flag_values=values,
  )
  for name, default, text in (
    ('repetitions', 20, 'Timed calls of each alternative.'),
    ('batch', 1, 'B of suite attention.'),
    ('heads', 4, 'H of suite attention.'),
    ('head_dim', 32, 'K of suite attention.'),
    ('memory_gib', 6, 'What a row of suite attention may need.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)
  flags.DEFINE_string(
    'data_dir', None, 'Folder of SST-2, for suite epoch.', flag_values=values
  )
  for name, default, text in (
    ('positions', ['alibi'], 'Position methods of suite attention.'),
    ('lengths', ['128', '1024', '8192'], 'L of suite attention, tokens.'),
    ('backends', ['chunked', 'xla'], 'Of suites attention and models.'),
    ('models', list(models.SIZES), 'Sizes of suite models.'),
    ('engines', ['auto'], 'Engines of suite sweep.'),
  ):
    flags.DEFINE_list(name, default, text, flag_values=values)


def main(values) -> None:
  """Measures, prints."""
  suite = app.required(values, 'suite')
  for name in values.positions:
    one_of(name, POSITIONS, '--positions')
  for backend in values.backends:
    one_of(backend, BACKENDS, '--backends')
  for model in values.models:
    one_of(model, models.SIZES, '--models')
  for engine in values.engines:
    one_of(engine, ['auto', *ENGINES], '--engines')
  for length in values.lengths:
    if not length.isdecimal() or length == '0':
      raise UserError(f'--lengths = {length!r} is not a number of tokens')
  device = jax.devices()[0]
  log(
    f'backend {jax.default_backend()}, {device.device_kind}, '
    f'jax {jax.__version__}, {values.repetitions} repetitions'
  )
  rows = SUITES[suite](values)
  log(table(rows))
  app.print_result(
    {
      'suite': suite,
      'device': device.device_kind,
      'jax': jax.__version__,
      'rows': rows,
    }
  )


if __name__ == '__main__':
  app.run(main, _define, __doc__)
