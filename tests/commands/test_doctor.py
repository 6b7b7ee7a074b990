"""experiments.doctor prints what a report needs, and fails corrupt runs."""

import shutil

import jax
import pytest
from conftest import ROOT, last_json
from test_checkpoints import truncate

pytestmark = pytest.mark.usefixtures('shared_programs')


def test_versions_devices_and_variables_are_printed(call_command, monkeypatch):
  monkeypatch.setenv('SELFATTN_CACHE', '/a/cache')
  code, stdout, stderr = call_command('doctor', cwd=ROOT)
  assert code == 0, stderr
  found = last_json(stdout)
  assert found['jax'] == jax.__version__
  assert found['matmul'] == 'right'
  assert found['devices'] == '1 x cpu'
  assert found['SELFATTN_CACHE'] == found['data cache'] == '/a/cache'
  assert stderr.splitlines() == [f'{name}: {v}' for name, v in found.items()]


def test_all_else_is_printed_where_jax_cannot_start(call_command, monkeypatch):
  def fail():
    raise AssertionError('no such plugin')

  monkeypatch.setattr(jax, 'devices', fail)
  code, stdout, _ = call_command('doctor', '--workdir=a/run', cwd=ROOT)
  assert code == 1
  found = last_json(stdout)
  assert found['jax'] == jax.__version__
  assert found['devices'].startswith('WRONG: ')


def test_a_corrupt_checkpoint_fails_and_nothing_is_changed(
  finished_run, tmp_path, call_command
):
  run = tmp_path / 'run'
  shutil.copytree(finished_run, run)
  steps = sorted(int(path.name) for path in (run / 'checkpoints').iterdir())
  truncate(run / 'checkpoints' / str(steps[-1]))
  before = {p: p.stat().st_mtime_ns for p in run.rglob('*')}
  code, stdout, stderr = call_command('doctor', f'--workdir={run}', cwd=ROOT)
  assert {p: p.stat().st_mtime_ns for p in run.rglob('*')} == before
  assert code == 1
  assert stderr.splitlines()[-1] == f'failed: wrong: checkpoint {steps[-1]}'
  found = last_json(stdout)
  assert found[f'checkpoint {steps[-1]}'].startswith('WRONG: ')
  assert found[f'checkpoint {steps[0]}'] == 'intact'
  assert "'status': 'DONE'" in found['status']
