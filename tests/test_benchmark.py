"""The benchmark measures what it says, and refuses what it cannot."""

import jax
import jax.numpy as jnp
import pytest

from experiments import benchmark
from tests.conftest import last_json


def test_alternate_takes_turns():
  order = []

  def call(name):
    order.append(name)
    return jnp.zeros(())

  functions = {name: lambda name=name: call(name) for name in ('one', 'two')}
  seconds = benchmark.alternate(functions, 3)
  assert order == ['one', 'two'] * 4
  assert {name: len(times) for name, times in seconds.items()} == {
    'one': 3,
    'two': 3,
  }


def test_chunked_needs_little_memory_for_long_sequences():
  """L = 8192, four heads of 32: the plain way needs 1 GiB for the weights."""
  if jax.default_backend() != 'cpu':
    pytest.skip('a bound for the CPU')
  method = benchmark.positions.make({'alibi': {}}, 128, 4, False)
  arrays = [jax.ShapeDtypeStruct((1, 8192, 4, 32), jnp.float32)] * 3
  program = benchmark.compile_gradient(method, 'chunked', arrays, {})
  assert program.memory_analysis().temp_size_in_bytes < 32 * 2**20


def test_attention_suite(run_command):
  done = run_command(
    'benchmark',
    '--length=33',
    '--repetitions=2',
    '--positions=none,shaw',
    '--backends=reference,chunked',
  )
  assert done.returncode == 0, done.stderr
  result = last_json(done.stdout)
  rows = [(row['position'], row['backend']) for row in result['rows']]
  assert rows == [
    (name, backend)
    for name in ('none', 'shaw')
    for backend in ('reference', 'chunked')
  ]
  assert min(row['ratio'] for row in result['rows']) == 1
  assert 'temporary_mib' in done.stderr


@pytest.mark.parametrize(
  ('argument', 'said'),
  [
    ('--positions=alibbi', "--positions = 'alibbi' is not one of"),
    ('--backends=xlo', "--backends = 'xlo' is not one of"),
    ('--backends=cudnn', '--backends = cudnn cannot serve alibi: '),
    ('--length=0', '--length=0'),
  ],
)
def test_wrong_input_is_one_line(run_command, argument, said):
  done = run_command('benchmark', '--repetitions=1', argument)
  assert done.returncode == 2
  assert said in done.stderr.splitlines()[-1]
