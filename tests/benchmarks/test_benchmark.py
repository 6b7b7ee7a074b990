"""Benchmark suites run, and refuse wrong input."""

import itertools
import json
import types

import jax
import jax.numpy as jnp
import pytest

from experiments import benchmarks
from experiments.benchmarks import attention, trials
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


@pytest.mark.benchmarks
def test_startup_suite_compares_checkouts(call_command, tmp_path):
  """Another checkout whose training logs its first step at once."""
  (tmp_path / 'experiments').mkdir()
  (tmp_path / 'experiments' / 'train.py').write_text(
    'import sys, time\n'
    "print('first update done', file=sys.stderr, flush=True)\n"
    'time.sleep(60)\n'
  )
  flags = ['--suite=startup', f'--against={tmp_path}', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  other, ours = last_json(stdout)['rows']
  assert (other['process'], other['ratio']) == (str(tmp_path), 1)
  assert ours['ratio'] == ours['ratio_low'] == ours['ratio_high'] > 1
  assert 1 < other['peak_mib'] < ours['peak_mib'] < 10_000


@pytest.mark.benchmarks
def test_data_suite(call_command):
  flags = ['--suite=data', '--rows=300', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  found = {row['start']: row for row in last_json(stdout)['rows']}
  assert list(found) == [
    'built-in data',
    'first start',
    'second start',
    'two at once',
  ]
  for row in found.values():
    assert row['cpu_s'] > 0
    assert 1 < row['peak_mib'] < 10_000


@pytest.mark.benchmarks
def test_predict_suite(call_command):
  flags = ['--suite=predict', '--rows=30', '--repetitions=1']
  flags.append(f'--against={ROOT}')
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  found = {row['texts']: row for row in last_json(stdout)['rows']}
  assert list(found) == [
    'one text',
    'first answer of a pipe',
    '30 texts',
    '300 texts',
    benchmarks.checkout(str(ROOT)),
  ]
  assert found['one text']['ratio'] == 1
  for row in found.values():
    assert 100 < row['peak_mib'] < 10_000


@pytest.mark.benchmarks
def test_operations_suite(call_command):
  flags = ['--suite=operations', '--repetitions=2']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  rows = last_json(stdout)['rows']
  found = {row['operations']: row for row in rows}
  *kinds, step = found
  assert step == 'step'
  assert {kind for kind in kinds if found[kind]['floor_us']} == {
    'projections and feed-forward',
    'projections and feed-forward, gradients',
    'gradients of weights',
    'products of attention',
    'products of attention, gradients',
  }
  for name in ('count', 'us', 'share'):
    total = sum(found[kind][name] for kind in kinds)
    assert found['step'][name] == pytest.approx(total, rel=1e-2)
  # Of two layers, each with six weights and two products; and of the head.
  matmuls = {kind: found[kind]['count'] for kind in kinds}
  assert matmuls['projections and feed-forward'] == 2 * 6 + 1
  assert matmuls['gradients of weights'] == 2 * 6 + 1
  assert matmuls['projections and feed-forward, gradients'] == 2 * 6 + 1
  assert matmuls['products of attention'] == 2 * 2
  assert matmuls['products of attention, gradients'] == 2 * 4


@pytest.mark.benchmarks
def test_trials_suite(call_command, monkeypatch):
  monkeypatch.setattr(trials, '_TRIALS', 3)
  flags = ['--suite=trials', '--repetitions=1']
  code, stdout, stderr = call_command('benchmark', *flags, cwd=ROOT)
  assert code == 0, stderr
  assert [row['sweep'] for row in last_json(stdout)['rows']] == [
    'plan of one',
    'plan of 3',
    '3 that have ended',
  ]


def test_chunked_needs_little_memory_for_long_sequences():
  """L = 8192, four heads of 32: unfused attention needs 1 GiB for weights."""
  if jax.default_backend() != 'cpu':
    pytest.skip('a bound for the CPU')
  method = positions.make({'alibi': {}}, 128, 4, False)
  call = attention.Call(method, Softmax(4), 'chunked', (1, 8192, 4, 32))
  arrays = [jax.ShapeDtypeStruct(call.shape, jnp.float32)] * 3
  program = attention.compile_gradient(call, arrays, ({}, {}))
  assert program.memory_analysis().temp_size_in_bytes < 32 * 2**20


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
    for what in ('time', 'memory'):
      assert (row[f'{what}_slope'] == '') == (row['length'] == 17)
  assert 'temporary_mib' in stderr


def test_all_methods_and_normalisers_are_those_of_the_tables():
  assert attention.names(['all'], POSITIONS) == list(POSITIONS)
  assert attention.names(['alibi', 'none'], POSITIONS) == ['alibi', 'none']


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


def test_a_quadratic_memory_is_noted(monkeypatch):
  needed = {17: 1.0, 34: 3.0}

  def row(position, normaliser, call, programs, values):
    length = call.shape[1]
    return {'length': length, 'temporary_mib': needed[length]}

  monkeypatch.setattr(attention, '_row', row)
  values = types.SimpleNamespace(
    batch=1,
    heads=2,
    head_dim=6,
    positions=['none'],
    normalisers=['softmax'],
    backends=['reference', 'chunked'],
    lengths=['34', '17'],
  )
  rows = attention.measure(values)
  notes = [row.get('note') for row in rows]
  assert notes == [None] * 3 + ['memory is quadratic with every backend']
  assert rows[-1]['memory_slope'] == 1.58


@pytest.mark.parametrize(
  ('argument', 'said'),
  [
    ('--positions=alibbi', "--positions = 'alibbi' is not one of"),
    ('--normalisers=softmix', "--normalisers = 'softmix' is not one of"),
    ('--engines=cereal', "--engines = 'cereal' is not one of"),
    ('--models=huge', "--models = 'huge' is not one of"),
    ('--backends=xlo', "--backends = 'xlo' is not one of"),
    ('--backends=cudnn', '--backends=cudnn does not support alibi: '),
    ('--lengths=12,0', '--lengths=0 must be a positive number of tokens'),
    ('--repetitions=0', '--repetitions=0'),
    ('--suite=speed', '--suite=speed'),
    ('--against=none', '--against=none has no experiments/train.py'),
  ],
)
def test_wrong_input_is_one_line(call_command, argument, said):
  suite = 'startup' if argument.startswith('--against') else 'attention'
  arguments = [f'--suite={suite}', argument]
  code, _, stderr = call_command('benchmark', *arguments, cwd=ROOT)
  assert code == 2
  assert said in stderr.splitlines()[-1]


def test_models_suite_compares_the_supported_backends(call_command):
  code, stdout, stderr = call_command(
    'benchmark',
    '--suite=models',
    '--models=default',
    '--backends=cudnn,reference',
    '--repetitions=1',
    cwd=ROOT,
  )
  assert code == 0, stderr
  assert "'cudnn' is unsupported" in stderr
  row = last_json(stdout)['rows'][0]
  assert (row['model'], row['step']) == ('default', 'reference')
  assert 0 < row['mfu'] < 1.5
  assert row['memory_mib'] > 0
