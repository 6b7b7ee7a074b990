"""Files of records are whole or absent, and replace nothing."""

import errno
import json
import os

import pytest
from pyarrow import parquet

from experiments.command.errors import Interrupted, UserError
from experiments.workdir import record_files
from experiments.workdir import workdir as workdir_lib

FIELDS = {'text': str, 'label': str, 'scores': {'a b': float, 'c': float}}
RECORDS = [
  {'text': 'one\n€', 'label': 'c', 'scores': {'a b': 0.25, 'c': 0.75}},
  {'text': '', 'label': None, 'scores': None},
  {'text': 'three', 'label': 'a b', 'scores': {'a b': 1.0, 'c': 0.0}},
]
READ = {
  '.jsonl': lambda path: [
    json.loads(line) for line in path.read_text().splitlines()
  ],
  '.parquet': lambda path: parquet.read_table(path).to_pylist(),
}


@pytest.fixture(params=sorted(READ))
def path(request, tmp_path):
  return tmp_path / f'found{request.param}'


@pytest.mark.parametrize('row_group', [1, 2, 100])
def test_records_are_read_as_they_were_added(path, monkeypatch, row_group):
  monkeypatch.setattr(record_files, '_ROW_GROUP', row_group)
  with record_files.opened(str(path), FIELDS) as add:
    add(RECORDS[:1])
    add([])
    add(RECORDS[1:])
    assert not path.exists()
  assert READ[path.suffix](path) == RECORDS
  assert os.listdir(path.parent) == [path.name]


def test_without_records_the_file_is_empty(path):
  with record_files.opened(str(path), FIELDS):
    pass
  assert READ[path.suffix](path) == []


@pytest.mark.filterwarnings('error')
def test_no_file_is_left_after_an_error(path):
  def interrupted():
    with record_files.opened(str(path), FIELDS) as add:
      add(RECORDS)
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    interrupted()
  assert os.listdir(path.parent) == []


def test_a_full_disk_leaves_no_file(path, monkeypatch):
  def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)

  def write():
    with record_files.opened(str(path), FIELDS) as add:
      add(RECORDS)

  with pytest.raises(OSError, match=f'No space.*{path}'):
    write()
  assert os.listdir(path.parent) == []


@pytest.mark.parametrize('name', ['x.csv', 'jsonl', 'x.jsonl.gz', ''])
def test_other_endings_are_refused(name, tmp_path):
  with pytest.raises(UserError, match='does not end with'):
    record_files.check_path(str(tmp_path / name))


def test_a_file_that_exists_is_refused(path):
  record_files.check_path(str(path.parent / 'new' / path.name))
  path.write_text('theirs')
  with pytest.raises(UserError, match='exists; remove it'):
    record_files.check_path(str(path))


def test_a_signal_while_the_file_is_opened_leaves_none(tmp_path, monkeypatch):
  def interrupted(*given):
    open(*given).close()
    raise Interrupted('SIGINT')

  monkeypatch.setattr(workdir_lib, 'open', interrupted, raising=False)
  with pytest.raises(Interrupted):
    workdir_lib.write_atomic(str(tmp_path / 'found.jsonl'), 'a')
  assert os.listdir(tmp_path) == []
