"""A full disk ends a command with one line, and later starts succeed."""

import errno
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, make_small_config
from test_sweep_together import options, specs
from test_train import arguments

from experiments.command import app
from experiments.command.errors import Failed
from experiments.command.log import keep_log, log
from experiments.command.signals import Signals
from experiments.inspection import figures
from experiments.sweeps import engines, folder, processes
from experiments.training import run as run_lib
from experiments.workdir import locks, metrics
from experiments.workdir import workdir as workdir_lib
from selfattn import plots

pytestmark = pytest.mark.usefixtures('shared_programs')


def short_config():
  config = make_small_config()
  config.train.steps = config.train.eval_every = 4
  return config


@pytest.fixture
def fill(monkeypatch):
  """fill(NAME): no file of this name can be written any more."""
  sync, names = os.fsync, set()

  def full(file):
    name = os.path.basename(os.readlink(f'/proc/self/fd/{file}'))
    if name.partition('.tmp-')[0] in names:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(file)

  monkeypatch.setattr(os, 'fsync', full)

  def change(*given):
    names.clear()
    names.update(given)

  return change


@pytest.mark.parametrize('command', ['train', 'sweep'])
def test_a_start_on_a_full_disk_is_one_line(tmp_path, command):
  """Simulated by a limit on the size of files, one KiB."""
  path, more = tmp_path / 'run', []
  if command == 'sweep':
    more = ['--engine=serial', '--grid=config.seed=0,1']
  words = [sys.executable, '-m', f'experiments.{command}']
  words += [*arguments(path, short_config()), *more]
  done = subprocess.run(
    ['bash', '-c', f'ulimit -f 1; exec {shlex.join(words)}'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  name = {'train': 'config.json', 'sweep': 'sweep.json'}[command]
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1].startswith(
    f'failed: {path / name} could not be written: File too large; '
  )
  assert 'Traceback' not in done.stderr
  assert not path.exists()


@pytest.mark.parametrize(
  'name',
  [
    'config.json',
    'tokenizer.json',
    'data.json',
    'status.json',
    'env.json',
    'metrics.jsonl',
  ],
)
def test_every_unwritable_file_is_named_and_the_next_start_finishes(
  tmp_path, fill, name
):
  path = str(tmp_path / 'run')
  fill(name)
  with pytest.raises(Failed, match=rf'run/{name} could not be written: No sp'):
    run_lib.run(short_config(), path, Signals())
  fill()
  run_lib.run(short_config(), path, Signals())
  assert workdir_lib.read_status(path)['status'] == 'DONE'


def test_the_reason_is_printed_though_the_status_cannot_be_written(
  tmp_path, fill, monkeypatch
):
  def end(*_):
    fill('status.json')
    raise ArithmeticError('the reason')

  monkeypatch.setattr(run_lib.loop, 'train', end)
  with pytest.raises(ArithmeticError):
    run_lib.run(short_config(), str(tmp_path / 'run'), Signals())


def test_a_trial_on_a_full_disk_is_one_line_and_stops_no_other(
  tmp_path, fill, capfd
):
  trials = specs(tmp_path, 2)
  train_one = engines._train

  def fill_first(group, *more):
    fill(*(['tokenizer.json'] if group[0].index == 0 else []))
    try:
      train_one(group, *more)
    finally:
      fill()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(engines, '_train', fill_first)
    engines.serial(trials, options(tmp_path), Signals())
  found = [workdir_lib.read_status(spec.path) for spec in trials]
  assert [status['status'] for status in found] == ['FAILED', 'DONE']
  assert 'tokenizer.json could not be written' in found[0]['reason']
  said = capfd.readouterr().err
  assert f'trial 0 {trials[0].name} failed: {found[0]["reason"]}' in said
  assert 'Traceback' not in said


def test_a_row_that_does_not_fit_names_its_file(tmp_path):
  workdir = workdir_lib.Workdir(str(tmp_path), 1)
  writer = metrics.MetricWriter(workdir, {'checkpoint.best_metric': 'loss'}, 0)
  writer.write(1, {'train/loss': 0.5})
  writer._path = '/dev/full'
  with pytest.raises(Failed, match='/dev/full could not be written: No space'):
    writer.write(2, {'train/loss': 0.25})
  writer.close()


def test_a_log_that_does_not_fit_is_ignored(capfd):
  with keep_log('/dev/full'):
    log('a line')
  assert capfd.readouterr().err == 'a line\n'


def test_a_lock_that_does_not_fit_is_one_line_and_is_released(
  tmp_path, monkeypatch
):
  def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patch:
    patch.setattr(locks.json, 'dumps', full)
    with (
      pytest.raises(Failed, match='run/lock could not be'),
      locks.held(str(tmp_path / 'run')),
    ):
      pass
  assert list(tmp_path.iterdir()) == []
  monkeypatch.setattr(os, 'makedirs', full)
  with (
    pytest.raises(Failed, match='run could not be written: No space'),
    locks.held(str(tmp_path / 'run')),
  ):
    pass
  with pytest.raises(Failed, match='out could not be written: No space'):
    app.make_folder(str(tmp_path / 'out'), 'output')


def test_a_result_that_cannot_be_written_is_one_line(tmp_path):
  words = arguments(tmp_path / 'run', short_config())
  run_lib.run(short_config(), str(tmp_path / 'run'), Signals())
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      [sys.executable, '-m', 'experiments.train', *words],
      cwd=ROOT,
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
      timeout=120,
      check=False,
    )
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1] == (
    'failed: standard output could not be written: No space left on device'
  )
  assert 'Traceback' not in done.stderr


def test_a_figure_is_replaced_atomically(tmp_path, fill):
  figure = plots.plot(np.arange(3.0), np.arange(3.0))
  figures.save(str(tmp_path), 'a', figure, {'x': np.arange(3)}, {})
  paths = sorted(tmp_path.iterdir())
  assert [p.name for p in paths] == ['a.json', 'a.png']
  for path in paths:
    before = path.read_bytes()
    fill(path.name)
    with pytest.raises(Failed, match=path.name):
      figures.save(str(tmp_path), 'a', figure, {'x': np.arange(5)}, {'b': 1})
    assert path.read_bytes() == before
  assert sorted(tmp_path.iterdir()) == paths


def test_a_worker_survives_an_unwritable_log(tmp_path):
  """A log that cannot be opened, and one that cannot be written."""
  folder.write(str(tmp_path), short_config().to_dict(), specs(tmp_path, 2))
  trials = folder.read(str(tmp_path))
  os.makedirs(os.path.dirname(trials[0].path))
  os.symlink('/dev/full', f'{trials[0].path}.txt')
  os.mkdir(f'{trials[1].path}.txt')
  processes.processes(trials, options(tmp_path), Signals())
  found = [workdir_lib.read_status(spec.path)['status'] for spec in trials]
  assert found == ['DONE', 'DONE']
