"""Comparison of encoders: counts and paths against formulas of the chapter."""

import numpy as np
import pytest
from conftest import ROOT, last_json

from experiments.benchmarks import encoders

K = 5


def test_operations_are_those_of_the_formulas():
  n, d = 512, 64
  multiply_add = 2
  width = d // encoders.NUM_HEADS
  for name, count in {
    'cnn': K * n * d**2,
    # Four gates, each of the input and of the state.
    'rnn': 8 * n * d**2,
    # Four projections; scores and weighted sums.
    'attention': 4 * n * d**2 + 2 * n**2 * d,
    # Keys times values, and queries times that, D / heads wide; one more column
    # for the sum of the features.
    'linear_attention': 4 * n * d**2 + 2 * n * d * (width + 1),
  }.items():
    # XLA also counts what is no matmul.
    counted = encoders.operations(name, n, d, K) / (multiply_add * count)
    assert 1 <= counted < 1.1, name


@pytest.mark.parametrize(
  ('name', 'exponent'),
  [('cnn', 1), ('rnn', 1), ('attention', 2), ('linear_attention', 1)],
)
def test_measured_exponents_are_the_theoretical_ones(name, exponent):
  lengths = [2**14, 2**15, 2**16]
  counted = [encoders.operations(name, n, 64, 3) for n in lengths]
  assert encoders.slope(lengths, counted) == pytest.approx(exponent, abs=0.02)


@pytest.mark.parametrize(('n', 'k'), [(5, 3), (18, 5)])
def test_path_lengths_are_those_of_the_formulas(n, k):
  assert encoders.path_length('attention', n, k) == 1
  assert encoders.path_length('linear_attention', n, k) == 1
  assert encoders.path_length('rnn', n, k) == n
  # A layer of width k reaches (k - 1) / 2 tokens further.
  assert encoders.path_length('cnn', n, k) == -(-2 * (n - 1) // (k - 1))


def test_the_gradient_of_an_rnn_vanishes_and_that_of_attention_does_not():
  found = encoders.reach(48, 3, depth=4)
  assert set(found) == {'attention', 'rnn', 'cnn, 4 layers'}
  near, far = slice(40, 47), slice(0, 8)
  assert found['rnn'][far].max() < 1e-4 * found['rnn'][near].min()
  assert found['attention'][far].mean() > 0.3 * found['attention'][near].mean()
  # The receptive field of four layers of width 3 is four tokens back.
  assert np.flatnonzero(found['cnn, 4 layers']).tolist() == list(range(43, 48))


@pytest.mark.slow
def test_layers_are_measured(call_command, monkeypatch):
  monkeypatch.setattr(encoders, 'LENGTHS', (8, 16))
  flags = ['--suite=encoders', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  rows = {row['layer']: row for row in last_json(stdout)['rows']}
  assert rows['attention']['operations ~ n^'] == pytest.approx(2, abs=0.05)
  assert rows['linear_attention']['operations'] == 'O(n d^2)'
  assert rows['cnn']['operations ~ k^'] == pytest.approx(1, abs=0.1)
  assert rows['rnn']['path of 65 tokens'] == 65
