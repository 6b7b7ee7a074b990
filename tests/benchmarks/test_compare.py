"""Comparison of encoders: counts and paths against formulas of the chapter."""

import json

import numpy as np
import pytest
from conftest import last_json

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
def test_everything_is_compared(call_command, tmp_path, monkeypatch):
  for name, size in (('_BATCH', 2), ('_LENGTH', 3)):
    monkeypatch.setattr(encoders, name, size)
  code, stdout, stderr = call_command(
    'compare',
    f'--output={tmp_path}',
    '--lengths=8,16',
    '--width=32',
    '--repetitions=1',
    cwd=tmp_path,
  )
  assert code == 0, stderr
  result = last_json(stdout)
  assert json.loads((tmp_path / 'compare.json').read_text()) == result
  assert (tmp_path / 'compare.png').stat().st_size > 0
  rows = {row['layer']: row for row in result['rows']}
  assert rows['attention']['operations ~ n^'] == pytest.approx(2, abs=0.05)
  assert rows['linear_attention']['operations'] == 'O(n d^2)'
  assert rows['cnn']['operations ~ k^'] == pytest.approx(1, abs=0.1)
  assert rows['rnn']['path of 65 tokens'] == 65
  # V d of the embedding; gates of the LSTM, or four projections; the head.
  counted = {
    row['classifier']: row['parameters'] for row in result['classifiers']
  }
  head = 256 * 2 + 2
  assert counted['lstm'] == 2_560_000 + 4 * (2 * 256**2 + 256) + head
  assert counted['attention'] == 2_560_000 + 4 * (256**2 + 256) + head


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--lengths=16', '--lengths needs at least two'),
    ('--lengths=1,2', '--lengths=1'),
    ('--width=6', '--width=6 must be a multiple of 4'),
    ('--kernel_size=4', '--kernel_size=4 must be odd'),
    ('--lengths=256,0256', '--lengths needs at least two'),
    ('--output=file', '--output: '),
  ],
)
def test_wrong_input_is_one_line(flag, words, call_command, tmp_path):
  (tmp_path / 'file').touch()
  code, _, stderr = call_command('compare', flag, cwd=tmp_path)
  assert code == 2, stderr
  assert words in stderr.splitlines()[-1]
