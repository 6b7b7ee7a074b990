"""Comparison of encoders: counts and paths against formulas of the chapter."""

import json

import numpy as np
import pytest
from conftest import last_json

from experiments.benchmarks import encoder_comparison, encoders
from selfattn.encoders import ENCODERS

D, K = 16, 5


def test_operations_are_those_of_the_formulas():
  n = 40
  multiply_add = 2
  assert encoders.operations('cnn', n, D, K) == multiply_add * K * n * D**2
  # Four gates, each of the input and of the state.
  assert encoders.operations('rnn', n, D, K) == multiply_add * 8 * n * D**2
  # Four projections; scores and weighted sums.
  assert encoders.operations('attention', n, D, K) == multiply_add * (
    4 * n * D**2 + 2 * n**2 * D
  )
  # Keys times values, and queries times that, D / heads wide; one more column
  # for the sum of the features.
  width = D // encoders.NUM_HEADS
  assert encoders.operations('linear_attention', n, D, K) == multiply_add * (
    4 * n * D**2 + 2 * n * D * (width + 1)
  )


@pytest.mark.parametrize(
  ('name', 'exponent'),
  [('cnn', 1), ('rnn', 1), ('attention', 2), ('linear_attention', 1)],
)
def test_measured_exponents_are_the_theoretical_ones(name, exponent):
  lengths = [2**14, 2**15, 2**16]
  counted = [encoders.operations(name, n, 64, 3) for n in lengths]
  assert encoders.slope(lengths, counted) == pytest.approx(exponent, abs=0.02)


@pytest.mark.parametrize('n', [7, 12])
def test_only_the_rnn_has_sequential_operations_in_every_token(n):
  steps = {name: encoders.sequential(name, n, D, K) for name in encoders.LAYERS}
  # Sequential matmuls: projections, scores, or sums over keys, sums, output.
  assert steps == {'cnn': 1, 'rnn': n, 'attention': 4, 'linear_attention': 4}


@pytest.mark.parametrize(('n', 'k'), [(5, 3), (17, 3), (18, 5), (40, 7)])
def test_path_lengths_are_those_of_the_formulas(n, k):
  assert encoders.path_length('attention', n, k) == 1
  assert encoders.path_length('linear_attention', n, k) == 1
  assert encoders.path_length('rnn', n, k) == n
  # A layer of width k reaches (k - 1) / 2 tokens further.
  assert encoders.path_length('cnn', n, k) == -(-2 * (n - 1) // (k - 1))


def test_two_layers_of_width_3_see_both_ends_of_five_tokens():
  """The chapter's figure: x1 and x5 in the receptive field of one output."""
  assert encoders.path_length('cnn', 5, 3, output=2) == 2


def test_the_gradient_of_an_rnn_vanishes_and_that_of_attention_does_not():
  found = encoders.reach(48, 3, depth=4)
  assert set(found) == {'attention', 'rnn', 'cnn, 4 layers'}
  near, far = slice(40, 47), slice(0, 8)
  assert found['rnn'][far].max() < 1e-4 * found['rnn'][near].min()
  assert found['attention'][far].mean() > 0.3 * found['attention'][near].mean()
  # The receptive field of four layers of width 3 is four tokens back.
  assert np.flatnonzero(found['cnn, 4 layers']).tolist() == list(range(43, 48))


def test_slopes_are_exponents():
  sizes = [2, 4, 16]
  assert encoders.slope(sizes, [3 * s**1.5 for s in sizes]) == pytest.approx(
    1.5
  )


@pytest.mark.benchmarks
def test_everything_is_compared_and_trained(
  call_command, tmp_path, monkeypatch
):
  for name, size in (('_BATCH', 2), ('_LENGTH', 3), ('_PATHS', (5, 9))):
    monkeypatch.setattr(encoder_comparison, name, size)
  code, stdout, stderr = call_command(
    'compare',
    f'--output={tmp_path / "out"}',
    f'--workdir={tmp_path / "sweep"}',
    '--lengths=8,16',
    '--width=8',
    '--repetitions=1',
    '--num_seeds=1',
    '--config.train.steps=2',
    '--config.train.eval_every=2',
    '--config.train.batch_size=8',
    '--config.optimizer.warmup_steps=1',
    '--config.data.word_order.train_pairs=20',
    '--config.data.word_order.validation_pairs=5',
    '--config.data.word_order.test_pairs=5',
    '--config.model.embed_dim=8',
    '--config.model.num_layers=1',
    cwd=tmp_path,
  )
  assert code == 0, stderr
  result = last_json(stdout)
  rows = {row['layer']: row for row in result['layers']}
  assert rows['attention']['operations_slope_n'] == pytest.approx(2, abs=0.05)
  linear = rows['linear_attention']
  assert linear['theoretical']['operations'] == 'n d^2'
  assert linear['operations_slope_n'] == pytest.approx(1, abs=0.01)
  assert rows['cnn']['operations_slope_k'] == pytest.approx(1, abs=0.01)
  assert rows['rnn']['operations_slope_d'] == pytest.approx(2, abs=0.01)
  assert rows['rnn']['path'] == rows['rnn']['lengths']
  # XLA counts the body of a loop once, for any length.
  speed = {(row['layer'], row['n']): row for row in result['speed']}
  assert speed['rnn', 16]['xla_to_counted'] < 0.2
  assert 0.9 < speed['attention', 16]['xla_to_counted'] < 1.6
  # V d of the embedding; gates of the LSTM, or four projections; the head.
  counted = {
    row['classifier']: row['parameters'] for row in result['classifiers']
  }
  head = 256 * 2 + 2
  assert counted['lstm'] == 2_560_000 + 4 * (2 * 256**2 + 256) + head
  assert counted['attention'] == 2_560_000 + 4 * (256**2 + 256) + head
  trained = {row['encoder']: row for row in result['accuracy']}
  assert set(trained) == set(ENCODERS)
  assert trained['bow']['mean'] == 0.5
  numbers = json.loads((tmp_path / 'out' / 'numbers.json').read_text())
  assert numbers['compare']['operations/cnn'] == [
    encoders.operations('cnn', n, 8, 3) for n in (8, 16)
  ]


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--lengths=16', '--lengths needs at least two'),
    ('--lengths=1,2', '--lengths=1'),
    ('--width=6', '--width=6 must be a multiple of 4'),
    ('--kernel_size=4', '--kernel_size=4 must be odd'),
    ('--workdir=.', 'holds files but no sweep'),
    ('--lengths=256,0256', '--lengths needs at least two'),
    ('--output=file', '--output: '),
    ('--config.seed=1', '--config needs --workdir'),
  ],
)
def test_wrong_input_is_one_line(flag, words, call_command, tmp_path):
  (tmp_path / 'file').touch()
  code, _, stderr = call_command('compare', flag, cwd=tmp_path)
  assert code == 2, stderr
  assert words in stderr.splitlines()[-1]
