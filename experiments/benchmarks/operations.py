"""Where the time of a training step of the default config goes on a CPU.

Operations of the compiled program are timed by the profiler of JAX, and added
up by what they compute: a fused one by its matmul, or else its last part.
`floor_us` is the time of its matmuls at the rate that this machine reaches on a
large square one. On one core, operations do not overlap:

    taskset -c 0 bash scripts/run.sh experiments.benchmark --suite=operations
"""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import re
import statistics
import tempfile

import jax

from experiments.benchmarks import alternate
from experiments.benchmarks import step as step_lib
from experiments.benchmarks.models import Size
from experiments.benchmarks.startup import DEFAULT_DATA
from experiments.command import app

# Steps before those that are traced.
_WARM_UP = 30
_COMPUTATION = re.compile(r'^(?:ENTRY )?%(\S+) \(')
_INSTRUCTION = re.compile(r'^ +(?:ROOT )?%(\S+) = (?:\(.*?\)|\S+) ([\w-]+)\(')
_CALLED = re.compile(r'calls=%(\S+?)[,}\s]')
_NAME = re.compile(r'op_name="([^"]*)"')
_BACKWARD = 'transpose(jvp('
# By pattern of the name of an operation in the model; the first that matches.
_OTHERS = {
  'layer norms': r'/norm_\w+/',
  'softmax, masks, transposes of attention': r'/attention\._attend/',
  'GELU, dropout, residuals': r'/block_\d+/',
  'embedding, pool, head, loss': r'TextClassifier|loss|softmax|gather|scatter',
}
_OPTIMIZER = 'optimizer, norm of the gradient, rest'
_PRODUCTS = {
  'products of attention': r'/attention\._attend/.*dot_general$',
  'gradients of weights': r'/transpose$',
  'projections and feed-forward': r'dot_general$',
}
_GRADIENT = ', gradients'


def measure(values) -> list[dict]:
  """One row per kind of operation, and their sum; times are of one step.

  Args:
    values: flags of experiments.benchmark.
  """
  config = app.load_config(app.DEFAULT_CONFIG)
  vocab_size, length = DEFAULT_DATA
  size = step_lib.size_of(config, length)
  texts = step_lib.texts(size, vocab_size)
  step, compiled = step_lib.step_of(config, *texts, vocab_size)
  for _ in range(_WARM_UP):
    jax.block_until_ready(step())
  matmul, flops = step_lib.large_matmul()
  seconds = alternate({'step': step, 'matmul': matmul}, values.repetitions)
  wall, peak = (1e6 * statistics.median(took) for took in seconds.values())
  kinds = _kinds(compiled().as_text())
  total, count = _traced(step, kinds, values.repetitions)
  floors = _floors(size, flops / peak)
  rows = [
    {
      'operations': kind,
      'count': count[kind],
      'us': round(took, 1),
      'share': round(took / wall, 3),
      'floor_us': floors.get(kind, ''),
    }
    for kind, took in total.most_common()
  ]
  rest = wall - sum(total.values())
  rows.append(
    {
      'operations': 'between operations, or not in the trace',
      'count': 0,
      'us': round(rest, 1),
      'share': round(rest / wall, 3),
      'floor_us': '',
    }
  )
  step = {
    'operations': 'step',
    'count': sum(count.values()),
    'us': round(wall, 1),
    'share': 1.0,
    'floor_us': round(sum(floors.values()), 1),
  }
  return [*rows, step]


def _kinds(program: str) -> dict[str, str]:
  """What each operation of a compiled program computes, by its name."""
  # Of computations that have a matmul, its name in the model.
  names, matmuls, computation = {}, {}, ''
  for line in program.splitlines():
    if start := _COMPUTATION.match(line):
      computation = start[1]
    elif instruction := _INSTRUCTION.match(line):
      operation, opcode = instruction.groups()
      found = _NAME.search(line)
      name = found[1] if found else ''
      if opcode == 'dot':
        matmuls[computation] = name
      # What these do has operations of its own.
      if opcode not in ('call', 'conditional', 'while'):
        called = _CALLED.search(line)
        names[operation] = name, called and called[1], opcode
  return {
    operation: _kind(
      operation, matmuls.get(called, name), opcode == 'dot' or called in matmuls
    )
    for operation, (name, called, opcode) in names.items()
  }


def _kind(operation: str, name: str, has_matmul: bool) -> str:
  is_backward = _BACKWARD in name
  if has_matmul:
    for kind, pattern in _PRODUCTS.items():
      if re.search(pattern, name):
        return kind + _GRADIENT * (is_backward and 'gradients' not in kind)
  if operation.startswith(('copy', 'transpose')):
    return 'copies and transposes'
  for kind, pattern in _OTHERS.items():
    if re.search(pattern, name):
      return kind + _GRADIENT * is_backward
  return _OPTIMIZER


def _traced(step, kinds: dict[str, str], repetitions: int):
  """(microseconds of a step by kind, number of operations by kind).

  Medians of each operation, since others may have the core for a while.
  """
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder, profiler_options=options):
      for _ in range(repetitions):
        jax.block_until_ready(step())
    (path,) = pathlib.Path(folder).rglob('*.trace.json.gz')
    events = json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
  times = collections.defaultdict(list)
  for event in events:
    if event.get('ph') == 'X' and event['name'] in kinds:
      times[event['name']].append(event['dur'])
  total, count = collections.Counter(), collections.Counter()
  for name, found in times.items():
    total[kinds[name]] += statistics.median(found) * len(found) / repetitions
    count[kinds[name]] += 1
  return total, count


def _floors(size: Size, peak: float) -> dict[str, float]:
  """Microseconds of the matmuls of each kind at so many FLOPs a microsecond."""
  of_weights = step_lib.flops_of_weights(size)
  of_attention = step_lib.flops_of_attention(size)
  forward = 'projections and feed-forward'
  floors = {
    forward: of_weights,
    forward + _GRADIENT: of_weights,
    'gradients of weights': of_weights,
    'products of attention': of_attention,
    'products of attention' + _GRADIENT: 2 * of_attention,
  }
  return {kind: round(each / peak, 1) for kind, each in floors.items()}
