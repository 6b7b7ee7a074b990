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

attention    memory and time of the gradient of one attention call
encoders     one layer of each, as in Dive into Deep Learning, 11.6.2:
             operations, the longest path between two tokens, time and memory,
             with exponents fitted to them beside the theoretical O()
kernels      a causal attention call in bfloat16 by backend, PyTorch's SDPA and
             FlexAttention beside it
start        from the command to the first training step, predict of one text,
             and evaluate, against the imports of the libraries
step         a training step of the tutorial's classifier, of the default config
             and of a language model, against PyTorch and x-transformers
sweep        many trials as one sweep, against as many launches
"""

from __future__ import annotations

import json

from experiments import benchmarks
from experiments.benchmarks import attention, commands, encoders, kernels, step
from experiments.command import app, provenance
from experiments.command.command_line import define, numbers
from experiments.command.errors import one_of
from experiments.command.log import log
from experiments.sweeps.engines import ENGINES
from experiments.training import cpu_devices
from experiments.workdir.workdir import write_atomic
from selfattn.backends import BACKENDS
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS

SUITES = {
  'attention': attention.measure,
  'encoders': encoders.measure,
  'kernels': kernels.measure,
  'start': commands.start,
  'step': step.measure,
  'sweep': commands.sweep,
}


def _define(values) -> None:
  define(
    values,
    ('suite', None, 'What to measure.', tuple(SUITES)),
    ('repetitions', 20, 'Number of timed calls of each alternative.', 1),
    ('batch', 1, 'Batch size of suite attention.', 1),
    ('heads', 4, 'Number of heads of suite attention.', 1),
    ('head_dim', 32, 'Channels per head of suite attention.', 1),
    ('memory_gib', 6, 'Memory limit of an attention call, in GiB.', 1),
    ('output', None, 'File for the result, as JSON; none: standard output '
     'alone.'),
    ('engine', 'auto', 'Engine of suite sweep.', ('auto', *ENGINES)),
    ('positions', ['alibi'], 'Position methods of suite attention, a list, or '
     'all; none and alibi are those of suite kernels.'),
    ('normalisers', ['softmax'], 'Normalisers of suite attention, a list, or '
     'all; without positions.'),
    ('lengths', ['128', '1024', '8192'], 'Sequence lengths of suites attention '
     'and kernels, in tokens, a list.'),
    ('backends', ['chunked', 'xla'], 'Attention backends of suites attention '
     'and kernels, a list.'),
    ('pretrained', None, 'Folder of a published model, which suite start '
     'fine-tunes.'),
    ('trials', ['32'], 'Numbers of trials of suite sweep, a list.'),
  )  # fmt: skip


def main(values) -> None:
  """Runs a suite and prints its table."""
  suite = app.required(values, 'suite')
  cpu_devices.make(provenance.cores())
  for name in attention.names(values.positions, POSITIONS):
    one_of(name, POSITIONS, '--positions')
  for name in attention.names(values.normalisers, NORMALISERS):
    one_of(name, NORMALISERS, '--normalisers')
  for backend in values.backends:
    one_of(backend, BACKENDS, '--backends')
  for name in ('lengths', 'trials'):
    numbers(values, name)
  if values.output is not None:
    app.check_output(values.output)
  origin = benchmarks.origin()
  log(f'{origin["device"]}, jax {origin["jax"]}; {origin["machine"]}')
  rows = SUITES[suite](values)
  log(benchmarks.table(rows))
  result = {'suite': suite, **origin, 'rows': rows}
  if values.output is not None:
    write_atomic(values.output, json.dumps(result, indent=1) + '\n')
  app.print_result(result)


if __name__ == '__main__':
  app.run(main, _define, __doc__)
