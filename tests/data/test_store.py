"""Entries are whole or absent, and written once, whatever happens meanwhile."""

import errno
import fcntl
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import ROOT

from experiments.data import store as store_lib
from experiments.data.store import Store

WANTED = {
  'tokens': np.arange(700, dtype=np.uint16),
  'offsets': np.array([0, 2**40, 2**40 + 3]),
  'empty': np.zeros(0, bool),
}


def write():
  yield WANTED
  yield {'tokens': WANTED['tokens'][:0], 'empty': WANTED['empty']}


def refuse():
  pytest.fail('the entry exists')


def check(found, wanted=WANTED):
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    assert found[name].dtype == array.dtype
    np.testing.assert_array_equal(found[name], array)


@pytest.fixture
def folder(tmp_path):
  return str(tmp_path / 'not made yet' / 'cache')


def names(folder):
  return sorted(os.listdir(folder))


def test_an_entry_is_written_once_and_read_from_disk(folder):
  check(Store(folder).arrays('kind', [1], write))
  found = Store(folder).arrays('kind', [1], refuse)
  check(found)
  assert isinstance(found['tokens'], np.memmap)
  assert not found['tokens'].flags.writeable
  (name,) = names(folder)
  assert name.startswith('kind-')


def test_without_a_folder_arrays_are_in_memory():
  check(Store(None).arrays('kind', [1], write))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  st.lists(st.lists(st.integers(0, 255), max_size=7), min_size=1, max_size=9)
)
def test_arrays_on_disk_equal_those_in_memory(tmp_path_factory, chunks):
  def add():
    for chunk in chunks:
      sums = np.cumsum(chunk, dtype=np.int64)
      yield {'values': np.array(chunk, np.uint8), 'sums': sums}

  folder = str(tmp_path_factory.mktemp('cache'))
  check(Store(folder).arrays('k', 0, add), Store(None).arrays('k', 0, add))


def test_what_depends_on_something_else_is_another_entry(folder, monkeypatch):
  calls = []

  def count():
    calls.append(1)
    yield from write()

  for kind, key in (('a', [1]), ('b', [1]), ('a', [2]), ('a', {'x': None})):
    Store(folder).arrays(kind, key, count)
  assert len(calls) == len(names(folder)) == 4
  Store(folder).arrays('a', [2], refuse)
  monkeypatch.setattr(store_lib, 'FORMAT', store_lib.FORMAT + 1)
  Store(folder).arrays('a', [2], count)
  assert len(calls) == len(names(folder)) == 5


# --- interrupted, full, read-only, damaged -----------------------------------


def test_an_entry_that_fails_leaves_nothing(folder):
  class Stopped(BaseException):
    pass

  def fail():
    yield from write()
    raise Stopped

  with pytest.raises(Stopped):
    Store(folder).arrays('kind', [1], fail)
  assert names(folder) == []
  check(Store(folder).arrays('kind', [1], write))


CHILD = """
import sys
import numpy as np
from experiments.data.store import Store

def write():
  yield {'tokens': np.arange(700, dtype=np.uint16)}
  print('writing', flush=True)
  sys.stdin.readline()
  yield {'offsets': np.array([0, 2**40, 2**40 + 3]), 'empty': np.zeros(0, bool)}
  print('written', flush=True)

Store(sys.argv[1]).arrays('kind', [1], write)
print('done', flush=True)
"""


@pytest.fixture
def child(folder):
  """A process that has begun an entry, and ends it after a line."""
  processes = []

  def start():
    process = subprocess.Popen(
      [sys.executable, '-c', CHILD, folder],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_of_two_processes_one_writes_and_the_other_waits(folder, child):
  first = child()
  assert first.stdout.readline() == 'writing\n'
  second = child()
  assert 'waiting for another process' in second.stderr.readline()
  first.stdin.write('\n')
  first.stdin.flush()
  assert first.stdout.read() == 'written\ndone\n'
  # The second one has not written.
  assert second.communicate()[0] == 'done\n'
  assert first.wait() == second.wait() == 0
  assert len(names(folder)) == 1


def test_a_process_that_waited_for_one_that_was_killed_writes(folder, child):
  first = child()
  assert first.stdout.readline() == 'writing\n'
  second = child()
  assert 'waiting for another process' in second.stderr.readline()
  first.send_signal(signal.SIGKILL)
  assert second.stdout.readline() == 'writing\n'
  assert second.communicate('\n')[0] == 'written\ndone\n'
  assert len(names(folder)) == 1
  check(Store(folder).arrays('kind', [1], refuse))


@pytest.fixture
def entry(folder):
  Store(folder).arrays('kind', [1], write)
  (name,) = names(folder)
  return os.path.join(folder, name)


@pytest.mark.parametrize('name', ['tokens', 'offsets', 'empty', 'index.json'])
@pytest.mark.parametrize('damage', ['removed', 'cut', 'longer', 'zeros'])
def test_a_damaged_entry_is_written_again(folder, entry, name, damage):
  path = os.path.join(entry, name)
  if damage == 'removed':
    os.remove(path)
  elif damage == 'longer':
    with open(path, 'ab') as file:
      file.write(b'\n}')
  elif damage == 'zeros':
    with open(path, 'r+b') as file:
      file.write(bytes(os.path.getsize(path)))
  elif size := os.path.getsize(path):
    os.truncate(path, size - 1)
  check(Store(folder).arrays('kind', [1], write))
  check(Store(folder).arrays('kind', [1], refuse))


def test_a_full_disk_is_one_line_and_the_arrays_are_in_memory(folder, capsys):
  big = {'tokens': np.arange(300_000, dtype=np.uint32)}
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
  try:
    store = Store(folder)
    found = store.arrays('kind', [1], lambda: [big])
    check(store.arrays('other', [1], write))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  check(found, big)
  assert names(folder) == []
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f'WARNING: {folder} cannot be written (File too large')
  assert 'SELFATTN_CACHE=FOLDER' in line


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path, capsys):
  (tmp_path / 'file').touch()
  store = Store(str(tmp_path / 'file' / 'cache'))
  check(store.arrays('kind', [1], write))
  check(store.arrays('other', [2], write))
  assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_read_only_cache_is_read(folder, entry, monkeypatch, capsys):
  def refused(*_, **__):
    raise OSError(30, 'Read-only file system')

  for name in ('mkdir', 'makedirs', 'rename'):
    monkeypatch.setattr(os, name, refused)
  check(Store(folder).arrays('kind', [1], refuse))
  assert capsys.readouterr().err == ''
  check(Store(folder).arrays('kind', [2], write))
  assert 'cannot be written (Read-only' in capsys.readouterr().err


def test_a_file_system_without_locks_is_used(folder, monkeypatch):
  def refused(*_):
    raise OSError(errno.ENOSYS, 'Function not implemented')

  monkeypatch.setattr(fcntl, 'flock', refused)
  check(Store(folder).arrays('kind', [1], write))
  check(Store(folder).arrays('kind', [1], refuse))


@pytest.fixture
def shared():
  """A folder that every user may write, as a user that is not root."""
  user = os.geteuid()
  with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o777)
    yield folder
    os.seteuid(user)


def test_what_a_killed_process_of_another_user_left_is_not_in_the_way(
  shared, capsys
):
  Store(shared).arrays('kind', [1], write)
  (name,) = names(shared)
  path = os.path.join(shared, name)
  os.rename(path, f'{path}.part-1')
  os.chmod(f'{path}.part-1', 0o555)
  os.close(os.open(f'{path}.lock', os.O_CREAT, 0o444))
  if not os.geteuid():
    os.seteuid(65534)
  check(Store(shared).arrays('kind', [1], write))
  check(Store(shared).arrays('kind', [1], refuse))
  assert capsys.readouterr().err == ''


# --- digests of files --------------------------------------------------------


def test_another_content_of_equal_size_and_time_is_noticed(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('one')
  stat = path.stat()
  before = store_lib.digest(str(path))
  assert store_lib.digest(str(path)) == before
  with open(path, 'r+') as file:
    file.write('two')
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  after = path.stat()
  assert (after.st_size, after.st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
  assert after.st_ino == stat.st_ino
  assert store_lib.digest(str(path)) != before


def test_a_second_change_through_a_memory_map_is_noticed(tmp_path):
  """The kernel sets no time, since the page is to be written already."""
  path = tmp_path / 'a.tsv'
  path.write_text('one')
  mapped = np.memmap(path, np.uint8, 'r+')
  mapped[:] = list(b'two')
  before, stat = store_lib.digest(str(path)), path.stat()
  mapped[:] = list(b'six')
  after = path.stat()
  assert after.st_ctime_ns == stat.st_ctime_ns
  assert store_lib.digest(str(path)) != before


# --- where it is -------------------------------------------------------------


def test_an_open_entry_outlives_the_cache(folder, entry):
  found = Store(folder).arrays('kind', [1], refuse)
  shutil.rmtree(entry)
  check(found)


def test_the_folder_is_that_of_the_variable_or_of_the_users_cache(monkeypatch):
  monkeypatch.setenv('SELFATTN_CACHE', 'here')
  assert store_lib.default_folder() == os.path.abspath('here')
  monkeypatch.delenv('SELFATTN_CACHE')
  monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
  assert store_lib.default_folder() == '/xdg/selfattn'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home/me')
  assert store_lib.default_folder() == '/home/me/.cache/selfattn'


def test_a_user_without_a_home_has_no_folder_and_none_is_made(monkeypatch):
  def unknown(_):
    raise KeyError('uid not found')

  for name in ('SELFATTN_CACHE', 'XDG_CACHE_HOME', 'HOME'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(pwd, 'getpwuid', unknown)
  assert store_lib.default_folder() is None
