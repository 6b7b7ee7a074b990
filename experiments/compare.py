"""Compares encoders: operations, path lengths, time, memory, accuracy.

    bash scripts/run.sh experiments.compare --output=runs/compare
    bash scripts/run.sh experiments.compare --workdir=runs/encoders

measures the table of Dive into Deep Learning, section 11.6.2, on one layer of
each encoder: operations, sequential operations, the longest path between two
tokens, time and memory, with exponents fitted to them next to the theoretical
O(); then the tutorial's comparison of two classifiers, with an LSTM and with
self-attention, at its sizes. With --workdir, every encoder is also trained on
--config, as a sweep in that folder, for accuracy. The last line is one JSON
object.
"""

from __future__ import annotations

import os

import jax

from experiments.benchmarks import encoder_comparison, encoders, table
from experiments.benchmarks.encoders import LAYERS, slope
from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.settings import extensions, reference
from experiments.sweeps import comparison, engines, folder, grids, plan, results
from selfattn.encoders import ENCODERS


def _define(values) -> None:
  flags = app.flags
  for name, text in (
    ('output', 'Folder for a figure and its data; none: no figure.'),
    ('workdir', 'Folder of a sweep over encoders; none: nothing is trained.'),
  ):
    flags.DEFINE_string(name, None, text, flag_values=values)
  flags.DEFINE_list(
    'lengths',
    ['256', '512', '1024', '2048', '4096'],
    'Sequence lengths n at which time and memory are measured, in tokens.',
    flag_values=values,
  )
  for name, default, text in (
    ('width', 64, 'Width d of a layer, a multiple of 4.'),
    ('kernel_size', 3, 'Kernel size k of the CNN, odd, at least 3.'),
    ('repetitions', 10, 'Number of timed calls of each layer.'),
    ('num_seeds', 3, 'Number of seeds of the sweep in --workdir.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)


def main(values) -> None:
  """Compares the encoders and prints the tables."""
  lengths, d, k = _sizes(values)
  if not values.workdir and app.has_config(values):
    raise UserError('--config needs --workdir; without it nothing is trained')
  if values.output is not None:
    app.make_folder(values.output, 'output')
  specs = _specs(values) if values.workdir else []
  device = jax.devices()[0].device_kind
  log(f'one layer, width {d}, kernel {k}, on {device}')
  speed = encoders.speed(lengths, d, k, values.repetitions)
  counted = [encoder_comparison.counted(name, d, k) for name in LAYERS]
  for row in counted:
    timed = [r for r in speed if r['layer'] == row['layer']]
    for name, column in (('time', 'median_ms'), ('memory', 'temporary_kib')):
      row[f'{name}_slope_n'] = round(
        slope(lengths, [r[column] for r in timed]), 2
      )
  log(table([encoder_comparison.shown(row) for row in counted]))
  log(table(speed))
  classifiers = encoder_comparison.classifiers(values.repetitions)
  log(table(classifiers))
  result = {'layers': counted, 'speed': speed, 'classifiers': classifiers}
  if values.output is not None:
    result['files'] = encoder_comparison.draw(values.output, d, k, speed)
  if specs:
    result['accuracy'] = _train(values, specs)
  app.print_result(result | {'device': device})


def _sizes(values) -> tuple[list[int], int, int]:
  for text in values.lengths:
    if not text.isdecimal() or int(text) < 2:
      raise UserError(f'--lengths={text} must be 2 tokens or more')
  lengths = [int(text) for text in values.lengths]
  if len(set(lengths)) < 2:
    raise UserError('--lengths needs at least two values, to fit exponents')
  if values.width % encoders.NUM_HEADS:
    raise UserError(
      f'--width={values.width} must be a multiple of {encoders.NUM_HEADS}'
    )
  if values.kernel_size % 2 == 0 or values.kernel_size == 1:
    raise UserError(
      f'--kernel_size={values.kernel_size} must be odd and at least 3'
    )
  return lengths, values.width, values.kernel_size


def _specs(values) -> list[plan.Spec]:
  """Trials for each encoder and seed, validated and written to --workdir."""
  seeds = [{'seed': seed} for seed in range(values.num_seeds)]
  sweeps = [[{'model.encoder.name': name} for name in ENCODERS], seeds]
  extensions.add(values.config, values.config_path)
  base, workdir = values.config.to_dict(), os.path.abspath(values.workdir)
  specs = plan.make(base, grids.product(sweeps), workdir)
  plan.check_data_and_shapes(
    [s for s in specs if engines.is_unfinished(s, None)]
  )
  folder.write(workdir, base, specs)
  return specs


def _train(values, specs) -> list[dict]:
  workdir = os.path.abspath(values.workdir)
  signals = Signals()
  signals.install()
  options = engines.Options(workdir, None, 1, 1, '', {})
  engines.serial(specs, options, signals)
  rows = results.collect(specs)
  found = comparison.compare(rows, specs, 'accuracy', ['seed'], '')
  results.write(workdir, rows, found)
  counts = {row['model.encoder.name']: row['parameters'] for row in rows}
  shown = [
    {
      'encoder': entry['model.encoder.name'],
      'parameters': counts[entry['model.encoder.name']],
      **{name: entry.get('test', {}).get(name) for name in ('mean', 'std')},
      'n': entry['n'],
    }
    for entry in found.table
  ]
  log(table(shown))
  return shown


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
