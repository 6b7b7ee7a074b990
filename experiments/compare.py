"""Compares encoders: what they compute, how far apart tokens are, how fast.

    bash scripts/run.sh experiments.compare --output=runs/compare
    bash scripts/run.sh experiments.compare --workdir=runs/encoders

measures the table of Dive into Deep Learning, section 11.6.2, on one layer of
each: operations, products that wait for each other, the longest path between
two tokens, time and memory, with slopes fitted to them beside the O() that the
table states; then the tutorial's comparison, a classifier with an LSTM beside
one with self-attention, at its sizes. With --workdir, every encoder is trained
on --config as well, as a sweep in that folder, for accuracy. The last line is
one JSON object.
"""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark import table
from experiments.benchmarks import alternate, encoders, summary, tutorial
from experiments.benchmarks.encoders import LAYERS, STATED, slope
from experiments.command import app
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.inspection import figures
from experiments.sweeps import comparison, engines, folder, plan, results
from experiments.training import build
from selfattn import plots
from selfattn.baselines import RecurrentEncoder
from selfattn.classifier import TextClassifier
from selfattn.encoders import ENCODERS

# Where operations are counted, which takes no time however long a text is.
_LONG = (4096, 8192, 16384)
_PATHS = (9, 17, 33, 65)
# The tutorial's "Performance Comparison with RNN".
_BATCH, _LENGTH, _VOCAB_SIZE, _WIDTH = 32, 100, 10_000, 256


def _define(values) -> None:
  flags = app.flags
  for name, text in (
    ('output', 'Folder of a picture and its numbers.'),
    ('workdir', 'Of a sweep over encoders; none: nothing is trained.'),
  ):
    flags.DEFINE_string(name, None, text, flag_values=values)
  flags.DEFINE_list(
    'lengths',
    ['256', '512', '1024', '2048', '4096'],
    'n that time and memory are measured at.',
    flag_values=values,
  )
  for name, default, text in (
    ('width', 64, 'd of a layer, a multiple of 4.'),
    ('kernel_size', 3, 'k of the CNN, odd.'),
    ('repetitions', 10, 'Timed calls of each.'),
    ('num_seeds', 3, 'Of --workdir.'),
  ):
    flags.DEFINE_integer(name, default, text, 1, flag_values=values)


def main(values) -> None:
  """Counts, measures, trains, prints."""
  lengths, d, k = _sizes(values)
  if not values.workdir and app.has_config(values):
    raise UserError('--config needs --workdir; without it nothing is trained')
  if values.output is not None:
    app.make_folder(values.output, 'output')
  specs = _specs(values) if values.workdir else []
  device = jax.devices()[0].device_kind
  log(f'one layer, width {d}, kernel {k}, on {device}')
  speed = encoders.speed(lengths, d, k, values.repetitions)
  counted = [_counted(name, d, k) for name in LAYERS]
  for row in counted:
    mine = [r for r in speed if r['layer'] == row['layer']]
    for name, column in (('time', 'median_ms'), ('memory', 'temporary_kib')):
      row[f'{name}_slope_n'] = round(
        slope(lengths, [r[column] for r in mine]), 2
      )
  log(table([_shown(row) for row in counted]))
  log(table(speed))
  classifiers = _classifiers(values.repetitions)
  log(table(classifiers))
  result = {'layers': counted, 'speed': speed, 'classifiers': classifiers}
  if values.output is not None:
    result['files'] = _draw(values.output, d, k, speed)
  if specs:
    result['accuracy'] = _train(values, specs)
  app.print_result(result | {'device': device})


def _sizes(values) -> tuple[list[int], int, int]:
  for text in values.lengths:
    if not text.isdecimal() or int(text) < 2:
      raise UserError(f'--lengths={text} is not a number of tokens, 2 at least')
  lengths = [int(text) for text in values.lengths]
  if len(set(lengths)) < 2:
    raise UserError('--lengths needs two of them, or more, for a slope')
  if values.width % encoders.NUM_HEADS:
    raise UserError(
      f'--width={values.width} must be a multiple of {encoders.NUM_HEADS}'
    )
  if values.kernel_size % 2 == 0 or values.kernel_size == 1:
    raise UserError(
      f'--kernel_size={values.kernel_size} must be odd and at least 3'
    )
  return lengths, values.width, values.kernel_size


def _counted(name: str, d: int, k: int) -> dict:
  """What is exact: operations, steps and paths of a layer, and their slopes."""
  count = functools.partial(encoders.operations, name)
  widths, kernels = [d, 2 * d, 4 * d], [k, 2 * k + 1, 4 * k + 3]
  # So long that it is the length that counts.
  n = _LONG[-1] * 8
  steps = [encoders.sequential(name, n, d, k) for n in _PATHS]
  paths = [encoders.path_length(name, n, k) for n in _PATHS]
  return {
    'layer': name,
    'stated': STATED[name],
    'operations': count(_LONG[-1], d, k),
    'operations_slope_n': slope(_LONG, [count(n, d, k) for n in _LONG]),
    'operations_slope_d': slope(widths, [count(n, w, k) for w in widths]),
    'operations_slope_k': slope(kernels, [count(n, d, w) for w in kernels]),
    'lengths': list(_PATHS),
    'sequential': steps,
    'sequential_slope_n': slope(_PATHS, steps),
    'path': paths,
    'path_slope_n': slope(np.array(_PATHS) - (name == 'cnn'), paths),
  }


def _shown(row: dict) -> dict:
  """A line of the table: the chapter's O() beside what was found."""
  stated, last = row['stated'], f'n = {row["lengths"][-1]}'
  exponents = ', '.join(
    f'{letter} {row[f"operations_slope_{letter}"]:.2f}' for letter in 'ndk'
  )
  return {
    'layer': row['layer'],
    'operations': f'O({stated["operations"]})',
    'exponents': exponents,
    'sequential': f'O({stated["sequential"]})',
    f'at {last}': row['sequential'][-1],
    'path': f'O({stated["path"]})',
    f'path at {last}': row['path'][-1],
    'time ~ n^': row['time_slope_n'],
    'memory ~ n^': row['memory_slope_n'],
  }


def _classifiers(repetitions: int) -> list[dict]:
  """The tutorial's two classifiers: parameters, prediction, gradient."""
  tokens = jax.random.randint(
    jax.random.key(0), (_BATCH, _LENGTH), 0, _VOCAB_SIZE
  )
  is_token = jnp.ones(tokens.shape, bool)
  rows, calls = [], {}
  for name, encoder in (
    ('lstm', RecurrentEncoder(1, jnp.float32, bidirectional=False)),
    ('attention', encoders.AttentionAlone(tutorial.NUM_HEADS)),
  ):
    model = TextClassifier(_VOCAB_SIZE, tutorial.NUM_CLASSES, _WIDTH, encoder)
    params = model.init(jax.random.key(1), tokens, is_token)

    def predict(params, model=model):
      return model.apply(params, tokens, is_token)

    def loss(params, predict=predict):
      return (predict(params) ** 2).sum()

    calls[name, 'prediction'] = functools.partial(jax.jit(predict), params)
    calls[name, 'gradient'] = functools.partial(jax.jit(jax.grad(loss)), params)
    rows.append(
      {'classifier': name, 'parameters': build.count_parameters(params)}
    )
  seconds = alternate(calls, repetitions)
  for row in rows:
    for what in ('prediction', 'gradient'):
      found = summary(
        seconds[row['classifier'], what], seconds['attention', what]
      )
      row |= {f'{what}_ms': found['median_ms'], f'{what}_ratio': found['ratio']}
  return rows


def _draw(output: str, d: int, k: int, speed: list[dict]) -> list[str]:
  """Operations and time by length, and how far gradients reach."""
  n, depth = _PATHS[-1], 4
  reach = encoders.reach(n, k, depth)
  lengths = np.unique([row['n'] for row in speed])
  operations = {
    name: [encoders.operations(name, int(m), d, k) for m in lengths]
    for name in LAYERS
  }
  times = {
    name: [row['median_ms'] for row in speed if row['layer'] == name]
    for name in LAYERS
  }
  figure = plots.panels(
    [
      ('tokens', 'operations', 'log', lengths, operations),
      ('tokens', 'milliseconds, forward', 'log', lengths, times),
      (
        'distance of the input (tokens)',
        'gradient at the last output',
        'linear',
        np.arange(n),
        {name: values[::-1] for name, values in reach.items()},
      ),
    ],
  )
  arrays = {'n': lengths, 'distance': np.arange(n)}
  arrays |= {f'operations/{name}': x for name, x in operations.items()}
  arrays |= {f'milliseconds/{name}': x for name, x in times.items()}
  arrays |= {f'gradient/{name}': x[::-1] for name, x in reach.items()}
  labels = {
    'operations': ['n'],
    'milliseconds': ['n'],
    'gradient': ['distance'],
  }
  return figures.save(output, 'compare', figure, arrays, labels)


def _specs(values) -> list[plan.Spec]:
  """A trial for each encoder and seed, all checked, in their folder."""
  seeds = [{'seed': seed} for seed in range(values.num_seeds)]
  sweeps = [[{'model.encoder.name': name} for name in ENCODERS], seeds]
  base, workdir = values.config.to_dict(), os.path.abspath(values.workdir)
  specs = plan.make(base, plan.product(sweeps), workdir)
  plan.check_data_and_shapes([s for s in specs if engines.is_waiting(s, None)])
  folder.write(workdir, base, specs)
  return specs


def _train(values, specs) -> list[dict]:
  workdir = os.path.abspath(values.workdir)
  signals = Signals()
  signals.install()
  options = engines.Options(workdir, None, 1, 1, '')
  engines.serial(specs, options, signals)
  rows = results.collect(specs)
  found = comparison.compare(rows, specs, 'accuracy', 'seed', '')
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
  app.run(main, _define, __doc__, takes_config=True)
