"""Entries are whole or absent, and written once, whatever happens meanwhile."""

import concurrent.futures
import os
import resource
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import ROOT

from experiments.data import store as store_lib
from experiments.data.store import Store

ARRAYS = {
  'tokens': np.arange(700, dtype=np.uint16),
  'offsets': np.array([0, 2**40, 2**40 + 3]),
  'empty': np.zeros(0, bool),
}


def write():
  yield ARRAYS
  yield {'tokens': ARRAYS['tokens'][:0], 'empty': ARRAYS['empty']}


def refuse():
  pytest.fail('the entry exists')


def check(arrays, expected=ARRAYS):
  assert arrays.keys() == expected.keys()
  for name, array in expected.items():
    assert arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(arrays[name], array)


@pytest.fixture
def folder(tmp_path):
  return str(tmp_path / 'not made yet' / 'cache')


def names(folder):
  """Of entries, whole or not."""
  return sorted(n for n in os.listdir(folder) if not n.endswith('.lock'))


def test_an_entry_is_written_once_and_read_from_disk(folder):
  check(Store(folder).arrays('kind', [1], write))
  arrays = Store(folder).arrays('kind', [1], refuse)
  check(arrays)
  assert isinstance(arrays['tokens'], np.memmap)
  assert not arrays['tokens'].flags.writeable
  (name,) = names(folder)
  assert name.startswith('kind-')


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

Store(sys.argv[1]).arrays('kind', [1], write)
"""


def test_a_process_waits_for_another_and_writes_if_that_is_killed(
  folder, capsys
):
  command = [sys.executable, '-c', CHILD, folder]
  pipes = dict.fromkeys(('stdin', 'stdout'), subprocess.PIPE)
  with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as child:
    assert child.stdout.readline() == 'writing\n'
    (part,) = names(folder)
    with concurrent.futures.ThreadPoolExecutor() as pool:
      arrays = pool.submit(Store(folder).arrays, 'kind', [1], write)
      while 'waiting for another process' not in capsys.readouterr().err:
        time.sleep(0.01)
      assert not arrays.done()
      child.kill()
      check(arrays.result(timeout=60))
  assert names(folder) == [part.removesuffix('.part')]


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
    arrays = store.arrays('kind', [1], lambda: [big])
    check(store.arrays('other', [1], write))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  check(arrays, big)
  assert names(folder) == []
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f'WARNING: {folder} cannot be written (File too large')
  assert 'SELFATTN_CACHE=FOLDER' in line


def test_a_read_only_cache_is_read(folder, entry, monkeypatch, capsys):
  def refused(*_, **__):
    raise OSError(30, 'Read-only file system')

  for name in ('mkdir', 'makedirs', 'rename'):
    monkeypatch.setattr(os, name, refused)
  check(Store(folder).arrays('kind', [1], refuse))
  assert capsys.readouterr().err == ''
  check(Store(folder).arrays('kind', [2], write))
  assert 'cannot be written (Read-only' in capsys.readouterr().err


# --- digests of files --------------------------------------------------------


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


def test_the_folder_is_that_of_the_variable_or_of_the_users_cache(monkeypatch):
  monkeypatch.setenv('SELFATTN_CACHE', 'here')
  assert store_lib.default_folder() == os.path.abspath('here')
  monkeypatch.delenv('SELFATTN_CACHE')
  monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
  assert store_lib.default_folder() == '/xdg/selfattn'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home/me')
  assert store_lib.default_folder() == '/home/me/.cache/selfattn'
  # A user that the machine does not know has none, and none is made.
  monkeypatch.delenv('HOME')
  monkeypatch.setattr(os.path, 'expanduser', lambda path: path)
  assert store_lib.default_folder() is None
