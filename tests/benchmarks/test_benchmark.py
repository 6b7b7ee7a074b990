"""Benchmark suites run, and refuse wrong input."""

import itertools
import json
import os
import types

import jax
import jax.numpy as jnp
import pytest

from experiments import benchmarks
from experiments.benchmarks import attention, commands, kernels, peers, step
from selfattn import positions
from selfattn.normalisers import NORMALISERS, Softmax
from selfattn.positions import POSITIONS
from tests.conftest import ROOT, last_json


def test_alternate_interleaves_repetitions():
  order = []

  def call(name):
    order.append(name)
    return jnp.zeros(())

  functions = {name: lambda name=name: call(name) for name in ('one', 'two')}
  seconds = benchmarks.alternate(functions, 3)
  assert order == ['one', 'two'] + ['one', 'one', 'two', 'two'] * 3
  assert {name: len(times) for name, times in seconds.items()} == {
    'one': 3,
    'two': 3,
  }


@pytest.mark.parametrize(
  ('count', 'expected'), [(1, (0, 0)), (5, (0, 4)), (8, (0, 7)), (20, (5, 14))]
)
def test_the_interval_of_a_median_covers_it_in_95_percent(count, expected):
  """As ranks: P(X <= 5) = 2.1% and P(X <= 0) = 0.4% of binomials of 20, 8."""
  values = [float(n) for n in range(count)]
  assert benchmarks.interval(values[::-1]) == expected


def test_start_suite(call_command, monkeypatch):
  started = []
  monkeypatch.setattr(commands, '_run', lambda *words: started.append(words[1]))
  trained = []
  monkeypatch.setattr(
    commands, '_train_once', lambda *call: trained.append(call)
  )
  flags = ['--suite=start', '--repetitions=1', '--pretrained=bert']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  found = {row['process']: row for row in last_json(stdout)['rows']}
  runs = 'default config', 'language model', 'published model'
  assert list(found) == ['imports', 'predict', 'evaluate'] + [
    f'{run}, first step, {cache}' for run in runs for cache in ('warm', 'cold')
  ]
  folder = f'--config.model.pretrained={os.path.abspath("bert")}'
  assert any(folder in flags and is_cold for flags, is_cold in trained)
  assert set(started) == {
    commands._IMPORTS, 'experiments.train', 'experiments.predict',
    'experiments.evaluate',
  }  # fmt: skip


def test_a_process_that_is_measured_has_this_code(monkeypatch):
  monkeypatch.delenv('PYTHONPATH', raising=False)
  monkeypatch.setenv('PYTHONSAFEPATH', '1')
  assert commands._run('-c', 'import experiments') > 0


@pytest.mark.slow
def test_training_is_ended_after_its_first_step():
  commands._train_once([], is_cold=True)


@pytest.mark.slow
def test_step_suite(call_command, monkeypatch):
  monkeypatch.setattr(step, 'SHAPES', ((4, 8, 50, 16),))
  small = {'vocab_size': 40, 'hidden_size': 24, 'intermediate_size': 30}
  monkeypatch.setattr(step, 'MINILM', step.MINILM | small)
  monkeypatch.setattr(peers, 'installed', lambda name: False)
  flags = ['--suite=step', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  rows = last_json(stdout)['rows']
  ours = ['ours', 'without dropout']
  assert [(row['model'], row['step']) for row in rows] == [
    *(('tutorial', name) for name in (*ours, 'matmuls')),
    *(('default config', name) for name in (*ours, 'matmuls')),
    *(('language model', name) for name in ('ours', 'matmuls')),
    *(('MiniLM', name) for _ in range(2) for name in (*ours, 'matmuls')),
  ]
  assert {row['ratio'] for row in rows if row['step'] == 'ours'} == {1}


def test_chunked_needs_little_memory_for_long_sequences():
  """L = 8192, four heads of 32: unfused attention needs 1 GiB for weights."""
  if jax.default_backend() != 'cpu':
    pytest.skip('a bound for the CPU')
  method = positions.make({'alibi': {}}, 128, 4, False)
  call = attention.Call(method, Softmax(4), 'chunked', (1, 8192, 4, 32))
  arrays = [jax.ShapeDtypeStruct(call.shape, jnp.float32)] * 3
  program = jax.jit(attention.gradient(call)).lower(*arrays, ({}, {})).compile()
  assert program.memory_analysis().temp_size_in_bytes < 48 * 2**20


def test_attention_suite(call_command, tmp_path):
  path = tmp_path / 'results' / 'attention.json'
  code, stdout, stderr = call_command(
    'benchmark',
    '--suite=attention',
    '--lengths=17,33',
    '--repetitions=2',
    '--positions=none,complex_order,xpos',
    '--normalisers=softmax,stick_breaking',
    '--backends=reference,chunked',
    f'--output={path}',
    cwd=ROOT,
  )
  assert code == 0, stderr
  result = last_json(stdout)
  assert json.loads(path.read_text()) == result
  assert result['command'].startswith('experiments.benchmark --suite=attention')
  assert result['command'].endswith('--output=PATH')
  keys = ('length', 'position', 'normaliser', 'causal', 'backend')
  rows = [tuple(row[key] for key in keys) for row in result['rows']]
  cases = [
    ('none', 'softmax', False),
    ('complex_order', 'softmax', False),
    ('xpos', 'softmax', True),
    ('none', 'stick_breaking', True),
  ]
  assert rows == [
    (length, *case, backend)
    for length, case, backend in itertools.product(
      (17, 33), cases, ('reference', 'chunked')
    )
  ]
  for row in result['rows']:
    assert row['ratio'] == 1 or row['position'] != 'none' or row['causal']
  assert 'temporary_mib' in stderr


def test_kernel_suite(call_command, monkeypatch):
  """One row for each length and backend; ratios are to the first."""
  monkeypatch.setattr(kernels, 'TOKENS', 32)
  monkeypatch.setattr(kernels, 'HEAD_DIM', 8)
  flags = ['--suite=kernels', '--positions=alibi', '--lengths=16,8']
  flags += ['--backends=xla,reference', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  rows = last_json(stdout)['rows']
  assert [(row['length'], row['backend']) for row in rows] == [
    (length, backend) for length in (8, 16) for backend in ('xla', 'reference')
  ]
  assert {row['ratio'] for row in rows if row['backend'] == 'xla'} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('position', 'normaliser'),
  [
    *((name, 'softmax') for name in POSITIONS),
    *(('none', name) for name in NORMALISERS),
  ],
)
def test_every_method_and_normaliser_has_a_program(position, normaliser):
  """At more tokens than the tables of absolute methods have by default."""
  values = types.SimpleNamespace(batch=1, heads=2, head_dim=6)
  call = attention._call(position, normaliser, 'chunked', 513, values)
  arrays = [jax.ShapeDtypeStruct(call.shape, jnp.float32)] * 3
  params = jax.eval_shape(lambda: attention._params(call))
  gradient = jax.eval_shape(attention.gradient(call), *arrays, params)
  assert gradient[0].shape == (1, 513, 2, 6)


@pytest.mark.parametrize(
  ('argument', 'said'),
  [
    ('--positions=alibbi', "--positions = 'alibbi' is not one of"),
    ('--normalisers=softmix', "--normalisers = 'softmix' is not one of"),
    ('--engine=cereal', '--engine=cereal'),
    ('--backends=xlo', "--backends = 'xlo' is not one of"),
    ('--backends=cudnn', '--backends=cudnn does not support alibi: '),
    ('--lengths=12,0', '--lengths=0 must be a number of at least 1'),
    ('--trials=32,x', '--trials=x must be a number of at least 1'),
    ('--repetitions=0', '--repetitions=0'),
    ('--suite=speed', '--suite=speed'),
  ],
)
def test_wrong_input_is_one_line(call_command, argument, said):
  suite = [] if '--suite' in argument else ['--suite=attention']
  code, _, stderr = call_command('benchmark', *suite, argument, cwd=ROOT)
  assert code == 2
  assert said in stderr.splitlines()[-1]
