"""A run is a function of its config, also if interrupted or killed."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, last_json, make_small_config

from configs import default
from experiments.command import modules
from experiments.command.errors import Diverged, Interrupted, UserError
from experiments.command.signals import Signals
from experiments.data import encoding
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.learning import steps
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.training import compiled, evaluation
from experiments.training import run as run_lib
from experiments.workdir import checkpoints
from experiments.workdir import workdir as workdir_lib

pytestmark = pytest.mark.usefixtures('shared_programs')


OWN = """
import dataclasses
from selfattn.positions.rotary import Rotary

@dataclasses.dataclass(frozen=True)
class Mine(Rotary):
  pass
"""


class StopAt(Signals):
  """A signal that arrives before the given check."""

  def __init__(self, look):
    super().__init__()
    self._left = look

  def check(self):
    self._left -= 1
    if self._left <= 0:
      self.received = 'SIGTERM'
    super().check()


def restored(path, config, step):
  settings = settings_lib.from_config(config)
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  template = compiled.make(
    settings, vocabulary, LabelFacts(('a', 'b'))
  ).template
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    return saved.restore(step, template)


def rows(path):
  text = (path / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def busy_config():
  """A small config of five whole batches, with dropout and an average."""
  config = make_small_config()
  config.data.source = (
    'word_order(train_pairs=40, validation_pairs=11, test_pairs=13)'
  )
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.train.eval_batch_size = 16
  config.train.ema_decay = 0.8
  return config


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  """An uninterrupted run, with which all others are compared."""
  config = busy_config()
  path = tmp_path_factory.mktemp('whole') / 'run'
  result = run_lib.run(config, str(path), Signals())
  return path, result


def assert_same_end(path, result, uninterrupted):
  whole_path, whole_result = uninterrupted
  config = busy_config()
  steps = config.train.steps
  ours, theirs = (
    restored(path, config, steps),
    restored(whole_path, config, steps),
  )
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  assert (path / 'metrics.jsonl').read_text() == (
    whole_path / 'metrics.jsonl'
  ).read_text()
  assert {**result, 'workdir': ''} == {**whole_result, 'workdir': ''}


def test_a_finished_run_has_all_files_and_rows(uninterrupted):
  path, result = uninterrupted
  assert set(os.listdir(path)) == {
    'calibration.json',
    'checkpoints',
    'config.json',
    'data.json',
    'env.json',
    'log-0.txt',
    'metrics.jsonl',
    'status.json',
    'tensorboard',
    'tokenizer.json',
  }
  status = json.loads((path / 'status.json').read_text())
  assert status.pop('seconds') > 0
  assert status.pop('parameters') > 0
  assert status == {
    'status': 'DONE',
    'step': 12,
    'attempt': 1,
    'result': result,
  }
  assert result['split'] == 'test'
  assert 0 <= result['accuracy'] <= 1
  found = rows(path)
  assert [row['step'] for row in found] == list(range(1, 13))
  assert all('train/loss' in row for row in found)
  evaluated = [r['step'] for r in found if 'validation/accuracy' in r]
  assert evaluated == [4, 8, 12]
  best = max(found, key=lambda r: (r.get('validation/accuracy', -1), r['step']))
  assert result['step'] == best['step']
  kept = sorted(int(name) for name in os.listdir(path / 'checkpoints'))
  assert kept == sorted({9, 12, best['step']})
  assert os.listdir(path / 'tensorboard')


@pytest.mark.slow
def test_a_run_resumed_at_any_step_equals_the_uninterrupted_one(
  tmp_path, uninterrupted
):
  """An epoch has five steps; an evaluation, every four steps, has two checks.

  The looks: one when the data is read, one after each update, and two within
  each evaluation, of which the last one is that of the test split.
  """
  path = tmp_path / 'run'
  with pytest.raises(Interrupted):
    run_lib.run(busy_config(), str(path), StopAt(1))
  assert not path.exists()
  reached = []
  for look in (2, 5, 2, 3, 4, 6, 3, 3, 4):
    with pytest.raises(Interrupted, match='SIGTERM'):
      run_lib.run(busy_config(), str(path), StopAt(look))
    status = json.loads((path / 'status.json').read_text())
    assert status['status'] == 'INTERRUPTED'
    newest = max(int(n) for n in os.listdir(path / 'checkpoints'))
    assert newest == status['step'] == rows(path)[-1]['step']
    reached.append((newest, 'validation/loss' in rows(path)[-1]))
  assert reached == [
    (1, False),
    (4, False),  # before the first batch of the evaluation
    (4, False),  # again
    (4, False),  # before the second
    (5, False),
    (8, True),
    (10, False),
    (12, False),  # in the last evaluation
    (12, True),  # in that of the test split
  ]
  result = run_lib.run(busy_config(), str(path), Signals())
  assert_same_end(path, result, uninterrupted)
  assert json.loads((path / 'status.json').read_text())['attempt'] == 10
  # Commands that read a run use its average.
  read = evaluation.restore_params(str(path), 'last').params
  state = restored(path, busy_config(), 12)
  jax.tree.map(np.testing.assert_array_equal, read, state.average)
  table = state.params['embed']['embedding']
  assert abs(read['embed']['embedding'] - table).max() > 1e-4


@pytest.mark.slow
def test_rows_after_the_last_checkpoint_are_written_again(
  tmp_path, uninterrupted
):
  """As after SIGKILL: rows after the checkpoint, the last one incomplete."""
  path = tmp_path / 'run'
  with pytest.raises(Interrupted):
    run_lib.run(busy_config(), str(path), StopAt(7))
  with open(path / 'metrics.jsonl', 'a') as file:
    file.write('{"step": 6, "train/loss": 123.0}\n{"step": 7, "tra')
  result = run_lib.run(busy_config(), str(path), Signals())
  assert_same_end(path, result, uninterrupted)


def test_a_finished_run_returns_its_result_and_changes_nothing(uninterrupted):
  path, result = uninterrupted
  before = {f: f.stat().st_mtime_ns for f in path.rglob('*')}
  config = busy_config()
  # Logged more often, it is the same run.
  config.train.log_every = 5
  assert run_lib.run(config, str(path), Signals()) == result
  assert {f: f.stat().st_mtime_ns for f in path.rglob('*')} == before


@pytest.mark.slow
def test_a_workdir_says_what_was_run_last(tmp_path, monkeypatch):
  """A key that may change, and a class that has changed since the run began."""
  monkeypatch.setattr(modules, '_folders', [])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.chdir(tmp_path)
  file, path = tmp_path / 'changing_of_tests.py', str(tmp_path / 'run')
  file.write_text(OWN)
  config = make_small_config()
  config.model.position = 'changing_of_tests:Mine'
  config.train.log_every = 3
  with pytest.raises(Interrupted):
    run_lib.run(config, path, StopAt(6))
  file.write_text(OWN + '# changed')
  config.train.log_every = 2
  result = run_lib.run(config, path, Signals())
  assert result['changed_while_training'] == ['changing_of_tests:Mine']
  assert stored.read_settings(path).train.log_every == 2


def test_another_config_in_the_same_workdir_is_refused(uninterrupted):
  path, _ = uninterrupted
  config = make_small_config()
  config.optimizer.learning_rate = 0.5
  before = {f: f.stat().st_mtime_ns for f in path.rglob('*')}
  with pytest.raises(UserError, match=r'learning_rate was 0.001, is 0.5'):
    run_lib.run(config, str(path), Signals())
  assert {f: f.stat().st_mtime_ns for f in path.rglob('*')} == before


def test_divergence_writes_the_row_and_keeps_the_last_finite_state(tmp_path):
  config = make_small_config()
  config.optimizer.method = 'sgd'
  config.optimizer.learning_rate = 1e30
  config.optimizer.clip_norm = 0.0
  config.optimizer.warmup_steps = 6
  config.checkpoint.every_steps = 1
  path = tmp_path / 'run'
  with pytest.raises(Diverged, match='at step'):
    run_lib.run(config, str(path), Signals())
  last = rows(path)[-1]
  assert None in last.values()  # no NaN, which is not JSON
  assert json.loads((path / 'status.json').read_text())['status'] == 'DIVERGED'
  kept = max(int(name) for name in os.listdir(path / 'checkpoints'))
  assert kept < last['step']
  state = restored(path, config, kept)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


def arguments(path, config):
  flat = settings_lib.from_config(config).flat()
  base = settings_lib.from_config(default.get_config()).flat()
  changes = [
    f'--config.{key}={value}'
    for key, value in flat.items()
    if base.get(key) != value
  ]
  return ['--workdir', str(path), *changes]


# The command, slow from its second step on: it is not done before a signal
# has reached it.
SLOW = """
import time
from experiments import train
from experiments.command import app, signals
check = signals.Signals.check
def slow(self):
  if self._checks > 2:
    time.sleep(0.25)
  check(self)
signals.Signals.check = slow
app.run(train.main, train._define, train.__doc__, dict)
"""


def start(path, config, command=('-m', 'experiments.train')):
  return subprocess.Popen(
    [sys.executable, *command, *arguments(path, config)],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for_rows(process, path, count):
  deadline = time.monotonic() + 120
  while time.monotonic() < deadline and process.poll() is None:
    metrics = path / 'metrics.jsonl'
    if metrics.exists() and metrics.read_text().count('\n') >= count:
      return
    time.sleep(0.005)
  raise AssertionError(f'no {count} rows: {process.communicate()}')


@pytest.mark.slow
def test_sigterm_saves_and_exits_75_and_sigkill_loses_nothing(
  tmp_path, uninterrupted, call_command
):
  path = tmp_path / 'run'
  config = busy_config()
  process = start(path, config, command=('-c', SLOW))
  wait_for_rows(process, path, 2)
  process.send_signal(signal.SIGTERM)
  _, stderr = process.communicate(timeout=60)
  assert process.returncode == 75, stderr
  assert 'SIGTERM' in stderr
  process = start(path, config, command=('-c', SLOW))
  wait_for_rows(process, path, rows(path)[-1]['step'] + 1)
  process.kill()
  process.communicate()
  assert process.returncode == -signal.SIGKILL
  code, stdout, stderr = call_command(
    'train', *arguments(path, config), cwd=ROOT
  )
  assert code == 0, stderr
  assert_same_end(path, last_json(stdout), uninterrupted)


@pytest.mark.slow
def test_a_run_survives_a_closed_pipe_of_its_log(tmp_path):
  """`train 2>&1 | tee`, and Ctrl-C, which tee gets as well."""
  path, config = tmp_path / 'run', busy_config()
  process = start(path, config, command=('-c', SLOW))
  wait_for_rows(process, path, 2)
  process.stderr.close()
  process.stdout.close()
  process.send_signal(signal.SIGINT)
  assert process.wait(timeout=60) == 75
  status = workdir_lib.read_status(str(path))
  assert status['status'] == 'INTERRUPTED'
  assert str(status['step']) in os.listdir(path / 'checkpoints')


def short_config():
  """A small config, for what does not depend on the steps."""
  config = make_small_config()
  config.train.steps = config.train.eval_every = 4
  config.checkpoint.every_steps = 4
  return config


@pytest.mark.slow
def test_a_run_needs_no_standard_error(tmp_path):
  path, config = tmp_path / 'run', short_config()
  words = ' '.join(map(shlex.quote, arguments(path, config)))
  done = subprocess.run(
    ['bash', '-c', f'exec {sys.executable} -m experiments.train {words} 2>&-'],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0
  assert workdir_lib.read_status(str(path))['status'] == 'DONE'


@pytest.mark.slow
def test_a_state_is_saved_if_all_of_it_is_finite(tmp_path, monkeypatch):
  """The second moments of Adam overflow long before the parameters do."""
  config = make_small_config()
  config.optimizer.clip_norm = 0.0
  config.train.log_every = 100
  config.checkpoint.every_steps = 1
  sums = steps.gradients

  def huge(params, batch, hparams, step, **more):
    total, grads = sums(params, batch, hparams, step, **more)
    scale = jnp.where(step == 5, 1e20, 1.0)
    return total, jax.tree.map(lambda g: g * scale, grads)

  monkeypatch.setattr(steps, 'gradients', huge)
  path = tmp_path / 'run'
  with pytest.raises(Diverged, match='step 6'):
    run_lib.run(config, str(path), Signals())
  saved = sorted(int(name) for name in os.listdir(path / 'checkpoints'))
  assert saved[-1] == 5


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('status.json', b'null'),
    ('status.json', b'[' * 100_000),
    ('config.json', b'[' * 100_000),
    ('metrics.jsonl', b'\xff\xfe\n'),
  ],
  ids=['null', 'deep status', 'deep config', 'binary'],
)
def test_a_corrupt_file_of_a_run_is_one_line(
  name, text, uninterrupted, tmp_path, call_command
):
  path = tmp_path / 'run'
  shutil.copytree(uninterrupted[0], path)
  (path / name).write_bytes(text)
  code, _, stderr = call_command('inspect', f'--workdir={path}', cwd=tmp_path)
  assert code == 2, stderr
  assert name in stderr.splitlines()[-1]
  assert 'JSON' in stderr.splitlines()[-1]
