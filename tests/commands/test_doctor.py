"""experiments.doctor fails broken installations and runs, and no others."""

import os
import time

import numpy as np
import pytest
from conftest import ROOT, last_json, make_small_config
from test_checkpoints import truncate

from experiments.command.signals import Signals
from experiments.data import store
from experiments.training import diagnosis
from experiments.training import run as run_lib

pytestmark = pytest.mark.usefixtures('shared_programs')


def wrong(findings):
  return [f'{name}: {text}' for name, text, is_wrong in findings if is_wrong]


def test_packages_of_another_version_and_missing_ones_are_named(tmp_path):
  lock = tmp_path / 'requirements.txt'
  lock.write_text(
    '# by hand\n'
    'absl-py==0.0.1\n'
    'no-such-thing==1.0\n'
    "nor-this==2.0 ; python_full_version < '3.0'\n"
  )
  assert [
    line.partition(',')[0] for line in wrong(diagnosis.packages(lock))
  ] == [
    f'absl-py: {diagnosis.metadata.version("absl-py")}',
    'no-such-thing: not installed',
  ]


def test_an_unused_accelerator_fails(tmp_path, monkeypatch):
  assert wrong(diagnosis.devices()) == []
  (tmp_path / 'accel0').touch()
  monkeypatch.setattr(
    diagnosis, '_ACCELERATORS', {'tpu': str(tmp_path / 'accel*')}
  )
  (line,) = wrong(diagnosis.devices())
  assert 'jax uses cpu' in line


def test_a_world_writable_cache_fails(tmp_path):
  assert wrong(diagnosis.cache(None)) == []
  assert wrong(diagnosis.cache(str(tmp_path / 'new'))) == []
  os.chmod(tmp_path, 0o755)
  assert wrong(diagnosis.cache(str(tmp_path))) == []
  os.chmod(tmp_path, 0o777)
  assert 'written by every user' in wrong(diagnosis.cache(str(tmp_path)))[0]


@pytest.fixture
def run(tmp_path):
  config = make_small_config()
  config.train.steps = 6
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  return tmp_path / 'run'


def test_checkpoints_that_were_set_aside_do_not_fail(run):
  (run / 'corrupt' / '4').mkdir(parents=True)
  found = list(diagnosis.workdir(str(run)))
  assert wrong(found) == []
  assert [text for title, text, _ in found if title == 'corrupt'] == [
    f'{run}/corrupt/4 could not be read; it may be removed'
  ]


def test_a_corrupt_checkpoint_fails_and_nothing_is_changed(run, call_command):
  found = list(diagnosis.workdir(str(run)))
  assert wrong(found) == []
  texts = {name: text for name, text, _ in found}
  assert texts['status'] == 'DONE at step 6'
  assert sum(text.endswith('the best') for text in texts.values()) == 1
  truncate(run / 'checkpoints' / '6')
  before = {p: p.stat().st_mtime_ns for p in run.rglob('*')}
  code, stdout, stderr = call_command('doctor', f'--workdir={run}', cwd=ROOT)
  assert {p: p.stat().st_mtime_ns for p in run.rglob('*')} == before
  assert code == 1
  assert 'FAIL checkpoint 6' in stderr
  (line,) = [
    line for line in last_json(stdout)['failed'] if 'checkpoint' in line
  ]
  assert line.startswith('checkpoint 6: ')


def test_the_data_cache_is_listed_and_cleared_by_a_flag_alone(
  tmp_path, monkeypatch, call_command
):
  folder = tmp_path / 'cache'
  monkeypatch.setenv(store.VARIABLE, str(folder))
  tokens = np.zeros(3 * 2**20, np.uint8)
  store.Store(str(folder)).arrays(
    'tokens', [1], lambda writer: writer.add(tokens=tokens)
  )
  (path,) = folder.iterdir()
  earlier = time.time() - 3 * 3_600
  os.utime(path, (earlier, earlier))
  _, _, stderr = call_command('doctor', cwd=ROOT)
  assert f'ok   data cache: {folder}, 1 entries, 3.0 MiB' in stderr
  assert f'ok   {path.name}: 3.0 MiB, used 3 hours ago' in stderr
  assert path.exists()
  _, _, stderr = call_command('doctor', '--clear_data_cache', cwd=ROOT)
  assert f'{folder}: 3.0 MiB removed' in stderr
  assert f'ok   data cache: {folder}, 0 entries, 0.0 MiB' in stderr
  assert list(folder.iterdir()) == []
