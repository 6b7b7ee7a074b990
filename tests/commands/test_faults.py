"""Runs killed or preempted at any moment end like uninterrupted ones.

bash scripts/run.sh pytest -m faults     # 100 kills, 110 signals, and sweeps
"""

import array
import fcntl
import json
import signal
import subprocess
import sys
import termios
import time

import jax
import numpy as np
import pytest
from conftest import ROOT, last_json
from test_train import arguments, busy_config, restored, rows, start

pytestmark = pytest.mark.usefixtures('shared_programs')
SIGNALS = (
  signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP,
)  # fmt: skip


def long_config():
  """A config that spends much of its time in saves and evaluations."""
  config = busy_config()
  config.train.steps = 40
  config.train.eval_every = 10
  config.checkpoint.every_steps = 2
  return config


def run(path, sent=None, after=None):
  """(exit code, stdout, stderr, seconds), of a run that is sent a signal."""
  started = time.monotonic()
  process = start(path, long_config())
  if sent is not None:
    time.sleep(after)
    process.send_signal(sent)
  stdout, stderr = process.communicate(timeout=200)
  return process.returncode, stdout, stderr, time.monotonic() - started


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """(path, result, seconds) of an uninterrupted run."""
  path = tmp_path_factory.mktemp('whole') / 'run'
  code, stdout, stderr, seconds = run(path)
  assert code == 0, stderr
  return path, last_json(stdout), seconds


def assert_sound(path):
  """An interrupted run can be read, and makes progress."""
  status = path / 'status.json'
  if status.exists():
    known = ('RUNNING', 'INTERRUPTED', 'DONE')
    assert json.loads(status.read_text())['status'] in known
  metrics = path / 'metrics.jsonl'
  if metrics.exists():
    lines = metrics.read_text().splitlines(keepends=True)
    steps = [json.loads(x)['step'] for x in lines if x.endswith('\n')]
    assert steps == sorted(set(steps))


def assert_same(path, result, whole):
  whole_path, whole_result, _ = whole
  config = long_config()
  jax.tree.map(
    np.testing.assert_array_equal,
    restored(path, config, config.train.steps),
    restored(whole_path, config, config.train.steps),
  )
  assert (path / 'metrics.jsonl').read_text() == (
    whole_path / 'metrics.jsonl'
  ).read_text()
  assert rows(path)[-1]['step'] == config.train.steps
  assert {**result, 'workdir': ''} == {**whole_result, 'workdir': ''}
  assert not (path / 'corrupt').exists()


def storm(tmp_path, whole, printed_json, seed, kills, signals):
  """Sends signals at random moments; compares each run that finishes."""
  rng = np.random.default_rng(seed)
  sent = [signal.SIGKILL] * kills
  sent += [SIGNALS[rng.integers(len(SIGNALS))] for _ in range(signals)]
  number = 0
  for kind in rng.permutation(np.array(sent, object)):
    path = tmp_path / str(number)
    moment = rng.uniform(0, whole[2])
    code, stdout, stderr, _ = run(path, kind, moment)
    if code == 0:  # it was faster than the signal
      assert_same(path, last_json(stdout), whole)
      number += 1
      continue
    if kind == signal.SIGKILL:
      assert code == -signal.SIGKILL
    elif code == 75:
      assert f'interrupted: {kind.name}' in stderr
    else:
      # Before the command installed its signal handlers.
      assert code == -kind or 'KeyboardInterrupt' in stderr
    assert_sound(path)
  path = tmp_path / str(number)
  result = printed_json('train', *arguments(path, long_config()))
  assert_same(path, result, whole)


@pytest.mark.faults
@pytest.mark.parametrize('seed', range(10))
def test_many_kills_and_signals_change_nothing(
  tmp_path, whole, printed_json, seed
):
  storm(tmp_path, whole, printed_json, seed, kills=10, signals=5)


@pytest.mark.faults
@pytest.mark.parametrize('seed', range(60))
def test_predict_ends_without_a_traceback_at_any_moment(finished_run, seed):
  """Also in the middle of a trace or a compilation, where most of its time is.

  A signal whose handler raised there came out as a TypeError of jax, as lines
  about callbacks, or as a segmentation fault at exit.
  """
  process = subprocess.Popen(
    [sys.executable, '-m', 'experiments.predict', f'--workdir={finished_run}'],
    cwd=ROOT,
    text=True,
    **dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.PIPE),
  )
  process.stdin.write('fine\n')
  process.stdin.flush()
  # Until it has read the text, which it then predicts.
  unread = array.array('i', [1])
  while unread[0]:
    assert process.poll() is None
    fcntl.ioctl(process.stdin, termios.FIONREAD, unread)
  time.sleep(float(np.random.default_rng(seed).exponential(0.05)))
  process.send_signal(signal.SIGINT)
  stdout, stderr = process.communicate(timeout=60)
  assert process.returncode == 75, stderr
  assert stderr.removeprefix('received SIGINT: stopping\n') in (
    'interrupted: SIGINT; nothing to save\n',
    'interrupted: SIGINT\n',
  )
  # Whole answers only.
  assert stdout == '' or stdout.endswith('\n')
