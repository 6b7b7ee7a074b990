"""Locks: one process at a time writes into a folder."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT

from experiments.command import processes
from experiments.command.errors import UserError
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


def test_a_lock_ends_with_its_process(tmp_path, holder):
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  with locks.held(tmp_path / 'run'):
    holder = (tmp_path / 'run' / 'lock').read_text()
    assert holder.startswith(f'process {os.getpid()} on ')
  assert not (tmp_path / 'run').exists()


def test_only_one_of_many_processes_holds_the_lock(tmp_path):
  """Also when its file and folder are removed and created again."""
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


@pytest.mark.parametrize('name', ['file', 'file/run', 'x' * 300, 'loop'])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, name):
  (tmp_path / 'file').touch()
  (tmp_path / 'loop').symlink_to('loop')
  with (
    pytest.raises(UserError, match=f'^--workdir: .*: {tmp_path}/file|x|loop'),
    locks.held(str(tmp_path / name)),
  ):
    pass


def test_the_same_command_twice_is_refused_and_one_elsewhere_waited_for(
  tmp_path, holder, call_command, monkeypatch
):
  path = tmp_path / 'run'
  before = sorted(path.iterdir())
  code, stdout, stderr = call_command('train', f'--workdir={path}', cwd=ROOT)
  assert (code, stdout) == (2, '')
  line = rf'run is in use by process {holder.pid} on \S+ since \S+; wait for it'
  assert re.match(rf'error: --workdir=\S+{line}', stderr)
  assert sorted(path.iterdir()) == before
  # The lock of a lost machine is released by the server after a timeout.
  elsewhere = 'process 7 on elsewhere since today'
  (path / 'lock').write_text(elsewhere)
  with (
    pytest.raises(locks.InUse, match=elsewhere),
    locks.held(path, patience=0.05),
  ):
    pass
  monkeypatch.setattr(time, 'sleep', lambda _: holder.stdin.close())
  with locks.held(path, patience=60.0):
    pass


def test_a_signal_ends_the_wait_for_another_host(
  tmp_path, monkeypatch, call_command
):
  # Held by a separate open file, as by a process on another host.
  with open(tmp_path / 'lock', 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print('process 7 on elsewhere since today', file=file, flush=True)
    waited = []

    def sleep(seconds):
      waited.append(seconds)
      os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(time, 'sleep', sleep)
    code, stdout, stderr = call_command(
      'train', f'--workdir={tmp_path}', cwd=ROOT
    )
  assert (code, stdout, len(waited)) == (75, '', 1)
  assert 'in use by process 7 on elsewhere' in stderr
  assert 'interrupted: SIGTERM; nothing to save' in stderr


def test_the_missing_folder_that_a_link_names_is_made(tmp_path):
  (tmp_path / 'link').symlink_to('elsewhere')
  with locks.held(str(tmp_path / 'link')):
    assert (tmp_path / 'elsewhere' / 'lock').exists()


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


def test_a_folder_that_is_not_shared_is_refused(tmp_path, monkeypatch):
  signed = ['process 7 on elsewhere', 'process 8 here']
  monkeypatch.setattr(processes, 'gather', lambda _: signed)
  monkeypatch.setattr(locks, '_VISIBLE', 0.3)
  with pytest.raises(UserError, match='is not the folder that process 0 sees'):
    locks.check_shared(str(tmp_path))
  (tmp_path / 'lock').write_text(signed[0])
  locks.check_shared(str(tmp_path))


@pytest.mark.parametrize(
  ('name', 'is_new'),
  [
    ('config.json.tmp-0123456789abcdef', True),
    ('modules.json.tmp-fedcba9876543210', True),
    ('lock', True),
    ('log-1.txt', True),
    ('notes.json.tmp-1', False),
  ],
)
def test_files_of_a_killed_start_do_not_prevent_another(tmp_path, name, is_new):
  (tmp_path / name).write_text('{"see')
  assert workdir_lib.is_new(str(tmp_path)) == is_new
  workdir_lib.open_workdir(str(tmp_path), {}, 'run')
  assert (tmp_path / name).exists() == (not is_new or '.tmp-' not in name)
