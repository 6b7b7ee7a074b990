"""Locks: one process at a time writes into a folder."""

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, make_small_config

from configs import default
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.sweeps import folder, plan
from experiments.training import run as run_lib
from experiments.workdir import locks
from experiments.workdir import workdir as workdir_lib

pytestmark = pytest.mark.usefixtures('shared_programs')
HOLD = """
import sys
from experiments.workdir import locks
with locks.held(sys.argv[1]):
  print('held', flush=True)
  sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
  """A process that holds the lock of tmp_path/run until it is killed."""
  process = subprocess.Popen(
    [sys.executable, '-c', HOLD, str(tmp_path / 'run')],
    cwd=ROOT,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == 'held\n'
  with process:
    yield process
    process.kill()


def test_a_second_process_is_told_the_holder_of_the_lock(tmp_path, holder):
  line = rf'run is in use by process {holder.pid} on \S+ since \S+'
  with pytest.raises(locks.InUse, match=line), locks.held(tmp_path / 'run'):
    pass


def test_a_lock_ends_with_its_process(tmp_path, holder):
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  with locks.held(tmp_path / 'run'):
    holder = (tmp_path / 'run' / 'lock').read_text()
    assert holder.startswith(f'process {os.getpid()} on ')
  assert not (tmp_path / 'run' / 'lock').exists()


@pytest.mark.parametrize('queues', [False, True])
def test_only_one_of_many_processes_holds_the_lock(tmp_path, queues, capfd):
  """Also when its file and folder are removed and created again."""
  inside, most, refused = [], [], []

  def take():
    for _ in range(10 if queues else 50):
      try:
        with locks.held(str(tmp_path / 'run'), queues=queues):
          inside.append(1)
          most.append(len(inside))
          inside.pop()
      except locks.InUse:
        refused.append(1)

  threads = [threading.Thread(target=take) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert max(most) == 1
  assert len(most) + len(refused) == 4 * (10 if queues else 50)
  assert not (queues and refused)
  # Those that queue say nothing.
  assert not (queues and capfd.readouterr().err)


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('file', 'not a folder'),
    ('file/run', 'Not a directory'),
    ('x' * 300, 'File name too long'),
    ('loop', '.*'),
  ],
)
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, name, reason):
  (tmp_path / 'file').touch()
  (tmp_path / 'loop').symlink_to('loop')
  with (
    pytest.raises(
      UserError, match=f'^--workdir: {reason}: {tmp_path}/(file|x|loop)'
    ),
    locks.held(str(tmp_path / name)),
  ):
    pass


def test_the_missing_folder_that_a_link_names_is_made(tmp_path):
  (tmp_path / 'link').symlink_to('elsewhere')
  with locks.held(str(tmp_path / 'link')):
    assert (tmp_path / 'elsewhere' / 'lock').exists()


def test_new_folders_that_stay_empty_are_removed(tmp_path):
  with locks.held(str(tmp_path / 'a/b')):
    pass
  assert list(tmp_path.iterdir()) == []
  with locks.held(str(tmp_path / 'a/b')):
    (tmp_path / 'a/b/file').touch()
  assert [p.name for p in tmp_path.rglob('*')] == ['a', 'b', 'file']


ELSEWHERE = 'process 7 on elsewhere since today'


def test_a_process_on_another_host_is_waited_for(tmp_path, monkeypatch, holder):
  """The lock of a lost machine is released by the server after a timeout."""
  (tmp_path / 'run' / 'lock').write_text(ELSEWHERE)
  with (
    pytest.raises(locks.InUse, match=ELSEWHERE),
    locks.held(tmp_path / 'run', patience=0.05),
  ):
    pass
  monkeypatch.setattr(time, 'sleep', lambda _: holder.stdin.close())
  with locks.held(tmp_path / 'run', patience=60.0):
    pass


@pytest.mark.parametrize('command', ['train', 'sweep'])
def test_a_signal_ends_the_wait_for_another_host(
  tmp_path, monkeypatch, call_command, command
):
  path, more = tmp_path / 'run', []
  if command == 'sweep':
    more = ['--engine=serial', '--grid=config.seed=1']
    base = default.get_config().to_dict()
    (trial,) = plan.make(base, [{'seed': 1}], str(path))
    folder.write(str(path), base, [])
    path = pathlib.Path(trial.path)
  path.mkdir(parents=True)
  # Held by a separate open file, as by a process on another host.
  with open(path / 'lock', 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(ELSEWHERE)
    file.flush()
    waited = []

    def sleep(seconds):
      waited.append(seconds)
      os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(time, 'sleep', sleep)
    code, stdout, stderr = call_command(
      command, f'--workdir={tmp_path / "run"}', *more, cwd=ROOT
    )
  assert (code, stdout) == (75, '')
  assert len(waited) == 1
  assert 'in use by process 7 on elsewhere' in stderr
  assert 'interrupted: SIGTERM; nothing to save' in stderr


def test_a_file_system_without_locks_is_warned_of_and_used(
  tmp_path, monkeypatch, capfd
):
  def unsupported(file, operation):
    raise OSError(38, 'Function not implemented')

  monkeypatch.setattr(fcntl, 'flock', unsupported)
  with locks.held(tmp_path / 'run'):
    pass
  assert 'a file system without locks' in capfd.readouterr().err


def test_the_same_command_twice_is_refused_and_changes_nothing(
  tmp_path, holder, call_command
):
  path = tmp_path / 'run'
  before = sorted(path.iterdir())
  code, stdout, stderr = call_command('train', f'--workdir={path}', cwd=ROOT)
  assert (code, stdout) == (2, '')
  assert stderr.startswith('error: --workdir=')
  assert f'is in use by process {holder.pid} on' in stderr
  assert sorted(path.iterdir()) == before


@pytest.mark.parametrize(
  'leftover',
  [
    'config.json.tmp-0123456789abcdef',
    'env.json.tmp-0000000000000000',
    'modules.json.tmp-fedcba9876543210',
    'lock',
    'log-1.txt',
  ],
)
def test_files_of_a_killed_start_do_not_prevent_another(tmp_path, leftover):
  path = tmp_path / 'run'
  path.mkdir()
  (path / leftover).write_text('{"see')
  config = make_small_config()
  config.train.steps = config.train.eval_every = 3
  run_lib.run(config, str(path), Signals())
  assert workdir_lib.read_status(str(path))['status'] == 'DONE'
  assert (path / leftover).exists() == (leftover == 'log-1.txt')


def test_an_unrelated_file_does(tmp_path):
  (tmp_path / 'notes.json.tmp-1').touch()
  assert not workdir_lib.is_new(str(tmp_path))


def test_temporary_files_of_equal_process_numbers_do_not_collide(
  tmp_path, monkeypatch
):
  """As in two containers that share a disk."""
  names = []
  monkeypatch.setattr(os, 'replace', lambda source, _: names.append(source))
  for text in ('a', 'b'):
    workdir_lib.write_atomic(str(tmp_path / 'status.json'), text)
  assert len(set(names)) == 2
