"""Locks: one process at a time writes into a folder."""

import fcntl
import json
import os
import signal
import socket
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
    facts = json.loads((tmp_path / 'run' / 'lock').read_text())
    assert facts['process'] == os.getpid()
  assert not (tmp_path / 'run' / 'lock').exists()


def test_only_one_of_many_processes_holds_the_lock(tmp_path):
  """Also when it is released, and its file is removed and created again."""
  inside, most, refused = [], [], []

  def take():
    for _ in range(50):
      try:
        with locks.held(str(tmp_path / 'run')):
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
  assert len(most) + len(refused) == 200


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path):
  (tmp_path / 'file').touch()
  with (
    pytest.raises(UserError, match='file is a file'),
    locks.held(str(tmp_path / 'file')),
  ):
    pass
  with (
    pytest.raises(UserError, match='Not a directory'),
    locks.held(str(tmp_path / 'file' / 'run')),
  ):
    pass


def test_an_empty_folder_is_removed_again(tmp_path):
  with locks.held(str(tmp_path / 'a/b')):
    pass
  assert list(tmp_path.iterdir()) == []
  with locks.held(str(tmp_path / 'a/b')):
    (tmp_path / 'a/b/file').touch()
  assert [p.name for p in tmp_path.rglob('*')] == ['a', 'b', 'file']


def test_a_process_on_another_host_is_waited_for(tmp_path, monkeypatch, holder):
  """The lock of a lost machine is released by the server after a timeout."""
  (tmp_path / 'run' / 'lock').write_text(
    '{"host": "elsewhere", "process": 7, "since": "today"}'
  )
  monkeypatch.setattr(locks, '_RETRY', 0.01)
  with (
    pytest.raises(locks.InUse, match='process 7 on elsewhere'),
    locks.held(tmp_path / 'run', patience=0.05),
  ):
    pass
  monkeypatch.setattr(locks.time, 'sleep', lambda _: holder.stdin.close())
  with locks.held(tmp_path / 'run', patience=60.0):
    pass


@pytest.mark.parametrize('command', ['train', 'sweep'])
def test_a_signal_ends_the_wait_for_another_host(
  tmp_path, monkeypatch, call_command, command
):
  path, more = tmp_path / 'run', []
  if command == 'sweep':
    more = ['--engine=serial', '--grid=config.seed=1']
    folder.write(str(path), default.get_config().to_dict(), [])
    path = path / 'trials' / plan.identity({'seed': 1})
  path.mkdir(parents=True)
  # Held by a separate open file, as by a process on another host.
  with open(path / 'lock', 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write('{"host": "elsewhere", "process": 7, "since": "today"}')
    file.flush()
    waited = []

    def sleep(seconds):
      waited.append(seconds)
      os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(locks.time, 'sleep', sleep)
    code, stdout, stderr = call_command(
      command, f'--workdir={tmp_path / "run"}', *more, cwd=ROOT
    )
  assert (code, stdout) == (75, '')
  assert len(waited) == 1
  assert 'in use by process 7 on elsewhere' in stderr
  assert 'interrupted: SIGTERM; nothing to save' in stderr


@pytest.mark.parametrize(
  'content',
  [
    b'',
    b'who knows',
    b'\xff\xfe\x00',
    b'7',
    b'["host", "process"]',
    b'{"host": "elsewhere"}',
    b'[' * 100_000,
  ],
)
def test_a_lock_with_any_content_is_a_lock(tmp_path, content):
  (tmp_path / 'run').mkdir()
  with open(tmp_path / 'run' / 'lock', 'wb') as file:
    file.write(content)
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    with (
      pytest.raises(locks.InUse, match='run is in use by another process; '),
      locks.held(tmp_path / 'run', patience=0.05),
    ):
      pass
  assert (tmp_path / 'run' / 'lock').read_bytes() == content
  # No process holds it any more, despite its content.
  with locks.held(tmp_path / 'run'):
    assert json.loads((tmp_path / 'run' / 'lock').read_text())['process']


def test_a_lock_file_of_a_dead_process_is_locked_at_once(tmp_path, monkeypatch):
  done = subprocess.run(['sh', '-c', 'echo $$'], capture_output=True, text=True)
  facts = {'host': socket.gethostname(), 'process': int(done.stdout)}
  (tmp_path / 'run').mkdir()
  path = tmp_path / 'run' / 'lock'
  path.write_text(json.dumps(facts | {'since': 'today'}) + ' ' * 500)
  monkeypatch.setattr(locks.time, 'sleep', lambda _: pytest.fail('waited'))
  with locks.held(tmp_path / 'run'):
    assert json.loads(path.read_text())['process'] == os.getpid()
  assert not path.exists()


def test_a_lock_that_was_replaced_meanwhile_is_not_removed(tmp_path):
  path = tmp_path / 'run' / 'lock'
  with locks.held(tmp_path / 'run'):
    path.unlink()
    path.write_text('of somebody else')
  assert path.read_text() == 'of somebody else'


def test_a_lock_that_was_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
  """The previous holder removes the file after it was opened here."""
  path, flock, opened = tmp_path / 'run' / 'lock', fcntl.flock, []

  def late(file, operation):
    if not opened:
      path.unlink()
    opened.append(file)
    flock(file, operation)

  monkeypatch.setattr(fcntl, 'flock', late)
  with locks.held(tmp_path / 'run', patience=0.0):
    assert len(opened) == 2
    assert json.loads(path.read_text())['process'] == os.getpid()
  assert opened[0].closed


def test_queueing_processes_wait_silently(tmp_path, capfd):
  inside, most = [], []

  def take():
    with locks.held(str(tmp_path / 'run'), queues=True):
      inside.append(1)
      most.append(len(inside))
      time.sleep(0.01)
      inside.pop()

  threads = [threading.Thread(target=take) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert most == [1] * 8
  assert capfd.readouterr().err == ''


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
    'config.json.tmp-4711',
    'env.json.tmp-0f',
    'extension.py.tmp-9c',
    '.shared-0abc',
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
