"""Comparison of encoders: exact counts, and the tutorial's two classifiers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import alternate, encoders, peers, summary
from experiments.benchmarks.encoders import LAYERS, THEORETICAL, slope
from experiments.inspection import figures
from experiments.training import build
from selfattn import plots
from selfattn.baselines import RecurrentEncoder
from selfattn.classifier import TextClassifier

# Lengths at which operations are counted, without running the layer.
_LONG = (4096, 8192, 16384)
_PATHS = (9, 17, 33, 65)
# The tutorial's "Performance Comparison with RNN".
_BATCH, _LENGTH, _VOCAB_SIZE, _WIDTH = 32, 100, 10_000, 256


def counted(name: str, d: int, k: int) -> dict:
  """Exact operations, sequential operations and paths, with their slopes."""
  count = functools.partial(encoders.operations, name)
  widths, kernels = [d, 2 * d, 4 * d], [k, 2 * k + 1, 4 * k + 3]
  # Long enough for the terms with the highest power of n to dominate.
  n = _LONG[-1] * 8
  steps = [encoders.sequential(name, n, d, k) for n in _PATHS]
  paths = [encoders.path_length(name, n, k) for n in _PATHS]
  return {
    'layer': name,
    'theoretical': THEORETICAL[name],
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


def shown(row: dict) -> dict:
  """A row of the table: theoretical O() and measured exponents."""
  theory, last = row['theoretical'], f'n = {row["lengths"][-1]}'
  exponents = ', '.join(
    f'{letter} {row[f"operations_slope_{letter}"]:.2f}' for letter in 'ndk'
  )
  return {
    'layer': row['layer'],
    'operations': f'O({theory["operations"]})',
    'measured exponents': exponents,
    'sequential': f'O({theory["sequential"]})',
    f'at {last}': row['sequential'][-1],
    'path': f'O({theory["path"]})',
    f'path at {last}': row['path'][-1],
    'time ~ n^': row['time_slope_n'],
    'memory ~ n^': row['memory_slope_n'],
  }


def classifiers(repetitions: int) -> list[dict]:
  """The tutorial's two classifiers: parameters, forward time, gradient time."""
  tokens = jax.random.randint(
    jax.random.key(0), (_BATCH, _LENGTH), 0, _VOCAB_SIZE
  )
  padding_mask = jnp.ones(tokens.shape, bool)
  rows, calls = [], {}
  for name, encoder in (
    ('lstm', RecurrentEncoder(1, jnp.float32, bidirectional=False)),
    ('attention', encoders.AttentionAlone(peers.NUM_HEADS)),
  ):
    model = TextClassifier(_VOCAB_SIZE, peers.NUM_CLASSES, _WIDTH, encoder)
    params = jax.jit(model.init)(jax.random.key(1), tokens, padding_mask)

    def predict(params, model=model):
      return model.apply(params, tokens, padding_mask)

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


def draw(output: str, d: int, k: int, speed: list[dict]) -> list[str]:
  """Draws operations and time over length, and gradients over distance."""
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
  drawn = figures.Figures(output)
  drawn.add('compare', figure, arrays, labels)
  return drawn.write()
