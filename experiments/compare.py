"""Compares encoders: operations, path lengths, time, memory.

    bash scripts/run.sh experiments.compare --output=runs/compare

measures the table of Dive into Deep Learning, section 11.6.2, on one layer of
each encoder: operations, the longest path between two tokens, time and memory,
with exponents fitted to them next to the theoretical O(); then the tutorial's
comparison of two classifiers, with an LSTM and with self-attention, at its
sizes. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os

import numpy as np

from experiments import benchmarks
from experiments.benchmarks import encoders
from experiments.benchmarks.encoders import LAYERS, THEORETICAL, slope
from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.workdir.workdir import write_atomic, write_figure
from selfattn import plots

# Lengths at which operations are counted, long enough for the term with the
# highest power of n to dominate.
_LONG = (32_768, 65_536, 131_072)
_PATH = 65


def _define(values) -> None:
  flags = app.flags
  flags.DEFINE_string(
    'output',
    None,
    'Folder for compare.png and compare.json; none: no files.',
    flag_values=values,
  )
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
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)


def main(values) -> None:
  """Compares the encoders and prints the tables."""
  lengths, d, k = _sizes(values)
  if values.output is not None:
    app.make_folder(values.output, 'output')
  origin = benchmarks.origin()
  log(f'one layer, width {d}, kernel {k}, on {origin["device"]}')
  speed = encoders.speed(lengths, d, k, values.repetitions)
  layers = [_layer(name, d, k, speed) for name in LAYERS]
  classifiers = encoders.classifiers(values.repetitions)
  for rows in (layers, speed, classifiers):
    log(benchmarks.table(rows))
  result = {**origin, 'rows': layers, 'speed': speed}
  result |= {'classifiers': classifiers}
  if values.output is not None:
    reach = encoders.reach(_PATH, k, depth=4)
    path = os.path.join(values.output, 'compare')
    write_figure(f'{path}.png', _figure(speed, reach), dpi=plots.DPI)
    result['reach'] = {name: norms.tolist() for name, norms in reach.items()}
    write_atomic(f'{path}.json', json.dumps(result, indent=1) + '\n')
  app.print_result(result)


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


def _layer(name: str, d: int, k: int, speed: list[dict]) -> dict:
  """Theoretical O() and measured exponents of a layer."""
  theory, n = THEORETICAL[name], _LONG[-1]
  widths, kernels = [d, 2 * d, 4 * d], [k, 2 * k + 1, 4 * k + 3]
  counts = {
    'n': (_LONG, [encoders.operations(name, m, d, k) for m in _LONG]),
    'd': (widths, [encoders.operations(name, n, w, k) for w in widths]),
    'k': (kernels, [encoders.operations(name, n, d, w) for w in kernels]),
  }
  timed = [row for row in speed if row['layer'] == name]
  lengths = [row['n'] for row in timed]
  return {
    'layer': name,
    'operations': f'O({theory["operations"]})',
    # + 0.0 turns -0.0 into 0.0.
    **{
      f'operations ~ {of}^': round(slope(*counts[of]), 2) + 0.0 for of in counts
    },
    'sequential': f'O({theory["sequential"]})',
    'path': f'O({theory["path"]})',
    f'path of {_PATH} tokens': encoders.path_length(name, _PATH, k),
    'time ~ n^': round(slope(lengths, [r['median_ms'] for r in timed]), 2),
    'memory ~ n^': round(
      slope(lengths, [r['temporary_kib'] for r in timed]), 2
    ),
  }


def _figure(speed: list[dict], reach):
  """Operations and time over length, and gradients over distance."""
  lengths = np.unique([row['n'] for row in speed])

  def curves(column):
    return {
      name: [row[column] for row in speed if row['layer'] == name]
      for name in LAYERS
    }

  return plots.panels(
    [
      ('tokens', 'operations', 'log', lengths, curves('operations')),
      ('tokens', 'milliseconds, forward', 'log', lengths, curves('median_ms')),
      (
        'distance of the input (tokens)',
        'gradient at the last output',
        'linear',
        np.arange(_PATH),
        {name: norms[::-1] for name, norms in reach.items()},
      ),
    ],
  )


if __name__ == '__main__':
  app.run(main, _define, __doc__)
