"""Engine `processes`: trials at once, and signals that end some or all."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import pytest
from conftest import ROOT, last_json, make_small_config

from experiments.command import provenance
from experiments.command.signals import Signals
from experiments.sweeps import engines, plan, workers
from experiments.sweeps.watch import Watch

CONFIG = """
import sys
sys.path.insert(0, TESTS)
from conftest import make_small_config

def get_config():
  config = make_small_config()
  config.train.steps = STEPS
  config.train.log_every = config.train.eval_every = 100
  config.checkpoint.every_steps = 50
  return config
"""


@pytest.fixture
def start(tmp_path):
  """Starts the sweep of this many steps a trial; all of it ends at the end."""
  started = []

  def run(steps, workdir='sweep', engine='processes'):
    config = tmp_path / 'small.py'
    text = CONFIG.replace('TESTS', repr(str(ROOT / 'tests')))
    config.write_text(text.replace('STEPS', str(steps)))
    counted = (
      'from experiments.command import app, provenance; '
      'import experiments.sweep as sweep; '
      'provenance.cores = lambda: 2; '
      'app.run(sweep.main, sweep._define, "", sweep.reference.described)'
    )
    flags = [f'--engine={engine}', f'--config={config}']
    flags += [f'--workdir={tmp_path / workdir}', '--grid=config.seed=0,1,2']
    process = subprocess.Popen(
      [sys.executable, '-c', counted, *flags],
      cwd=ROOT,
      env=os.environ | {'PYTHONPATH': str(ROOT), 'PJRT_NPROC': '1'},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    started.append(process)
    return process

  yield run
  for process in started:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def children(process) -> list[int]:
  """Process ids of the trials' processes."""
  found = subprocess.run(
    ['pgrep', '-P', str(process.pid), '-f', 'spawn_main'],
    capture_output=True,
    text=True,
    check=False,
  )
  return list(map(int, found.stdout.split()))


def is_gone(process) -> bool:
  """Whether no process of the command is left."""
  try:
    os.killpg(process.pid, 0)
  except ProcessLookupError:
    return True
  return False


def wait_until(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'it did not happen'
    time.sleep(0.05)


def saved(path) -> list[pathlib.Path]:
  """The first checkpoint of each trial that has one."""
  return list(path.glob('trials/*/checkpoints/50'))


def statuses(path) -> list[str]:
  files = sorted(path.glob('trials/*/status.json'))
  return sorted(json.loads(file.read_text())['status'] for file in files)


@pytest.mark.slow
def test_trials_at_once_are_those_of_one_after_another(start, tmp_path):
  out, said = (process := start(60)).communicate(timeout=240)
  assert process.returncode == 0, said
  assert said.count('is DONE') == 3
  assert len(said.splitlines()) < 25
  for file in tmp_path.glob('sweep/trials/*/env.json'):
    (attempt,) = json.loads(file.read_text())
    # That of the sweep, and not of the process.
    assert '--engine=processes' in attempt['command']
  serial = start(60, 'serial', 'serial')
  in_turn, said = serial.communicate(timeout=240)
  assert serial.returncode == 0, said
  assert last_json(out)['table'] == last_json(in_turn)['table']
  numbers = [
    [
      {key: row[key] for key in row if '/loss' in key}
      for file in sorted((tmp_path / name).glob('trials/*/metrics.jsonl'))
      for row in map(json.loads, file.read_text().splitlines())
    ]
    for name in ('sweep', 'serial')
  ]
  assert numbers[0] == numbers[1]


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_all_trials_save(start, tmp_path, number):
  path = tmp_path / 'sweep'
  process = start(100_000)
  wait_until(lambda: len(saved(path)) == 2)
  if number == signal.SIGINT:
    os.killpg(process.pid, number)  # as a terminal does
  else:
    process.send_signal(number)
  _, said = process.communicate(timeout=60)
  assert process.returncode == 75, said
  assert said.splitlines()[-1].startswith(f'interrupted: {number.name}')
  assert statuses(path) == ['INTERRUPTED'] * 2
  wait_until(lambda: is_gone(process), 10)


@pytest.mark.slow
def test_processes_save_and_end_when_the_command_is_killed(start, tmp_path):
  path = tmp_path / 'sweep'
  process = start(100_000)
  wait_until(lambda: len(saved(path)) == 2)
  process.kill()
  process.wait()  # a zombie would be left
  wait_until(lambda: is_gone(process), 30)
  assert statuses(path) == ['INTERRUPTED'] * 2


@pytest.mark.slow
@pytest.mark.parametrize('num_saved', [0, 2])
def test_a_process_that_dies_fails_its_trial_alone(start, num_saved, tmp_path):
  """With nothing saved, it has not read which trial to train."""
  path = tmp_path / 'sweep'
  process = start(1000 if num_saved else 60)
  wait_until(lambda: children(process) and len(saved(path)) == num_saved)
  os.kill(children(process)[0], signal.SIGKILL)
  _, said = process.communicate(timeout=240)
  assert process.returncode == 1, said
  assert statuses(path) == ['DONE', 'DONE', 'FAILED']
  assert 'its process ended with exit code -9' in said


def test_why_a_process_ended_is_said(tmp_path, capsys):
  """It finds no sweep.json, and has no trial of the name that it is sent."""
  specs = plan.make(make_small_config().to_dict(), [{}], str(tmp_path))
  watch = Watch(specs, 'accuracy')
  workers.train(specs, str(tmp_path), watch, Signals())
  said = capsys.readouterr().err
  assert 'failed: its process ended: ' in said
  assert 'sweep.json does not exist' in said
  assert said.count('is FAILED') == 1


def test_a_trial_that_has_not_begun_is_pending(tmp_path, capsys):
  (spec,) = plan.make(make_small_config().to_dict(), [{}], str(tmp_path))
  engines.report(spec)
  assert 'is PENDING' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('platform', 'devices', 'cores', 'trials', 'engine'),
  [
    ('cpu', 1, 2, 3, 'processes'),
    ('cpu', 1, 1, 3, 'serial'),
    ('cpu', 1, 4, 1, 'serial'),
    ('cpu', 8, 4, 3, 'serial'),
    ('gpu', 1, 4, 3, 'vectorized'),
    ('gpu', 1, 4, 1, 'serial'),
  ],
)
def test_the_engine_is_chosen_by_devices_and_cores(
  platform, devices, cores, trials, engine, monkeypatch, tmp_path
):
  fake = types.SimpleNamespace(
    default_backend=lambda: platform, devices=lambda: [None] * devices
  )
  monkeypatch.setattr(engines, 'jax', fake)
  monkeypatch.setattr(provenance, 'cores', lambda: cores)
  points = [{'seed': seed} for seed in range(trials)]
  specs = plan.make(make_small_config().to_dict(), points, str(tmp_path))
  assert engines.choose(specs)[0] == engine
