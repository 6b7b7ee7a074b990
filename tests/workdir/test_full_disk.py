"""A full disk ends a command with one line, and the next start goes on."""

import errno
import json
import os
import pathlib

import pytest
from conftest import ROOT, last_json, make_small_config
from test_train import StopAt, arguments, rows

from experiments.command.errors import Interrupted
from experiments.training import run as run_lib

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture
def fill(monkeypatch):
  """fill(NAME): no file of this name can be written; fill(None): all can."""
  sync, full = os.fsync, [None]

  def fsync(file):
    name = os.path.basename(os.readlink(f'/proc/self/fd/{file}'))
    if name.partition('.tmp-')[0] == full[0]:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(file)

  monkeypatch.setattr(os, 'fsync', fsync)

  def change(name):
    full[0] = name

  return change


@pytest.mark.slow
def test_nothing_that_was_whole_is_lost_on_a_full_disk(
  fill, finished_run, tmp_path, call_command
):
  config, path = make_small_config(), tmp_path / 'run'
  with pytest.raises(Interrupted):
    run_lib.run(config, str(path), StopAt(look=8))
  files = filter(pathlib.Path.is_file, path.glob('checkpoints/**/*'))
  saved = {file: file.read_bytes() for file in files}
  assert saved
  known = rows(path)
  fill('metrics.jsonl')
  code, stdout, stderr = call_command(
    'train', *arguments(path, config), cwd=ROOT
  )
  assert (code, stdout) == (1, '')
  assert stderr.splitlines()[-1].startswith(
    'failed: [Errno 28] No space left on device'
  )
  assert 'Traceback' not in stderr
  assert rows(path)[: len(known)] == known
  json.loads((path / 'status.json').read_text())
  assert saved == {file: file.read_bytes() for file in saved}
  fill(None)
  code, stdout, stderr = call_command(
    'train', *arguments(path, config), cwd=ROOT
  )
  assert code == 0, stderr
  assert last_json(stdout)['workdir'] == str(path)
  assert rows(path) == rows(finished_run)
