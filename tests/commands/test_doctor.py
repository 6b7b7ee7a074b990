"""experiments.doctor prints what a report needs, and fails corrupt runs."""

import jax
import pytest
from conftest import ROOT, last_json

from experiments.data import store

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


def test_there_may_be_no_folder_for_a_cache(call_command, monkeypatch):
  monkeypatch.setattr(store, 'default_folder', lambda: None)
  code, stdout, stderr = call_command('doctor', cwd=ROOT)
  assert code == 0, stderr
  assert last_json(stdout)['data cache'] == 'none'


def test_all_else_is_printed_where_jax_cannot_start(call_command, monkeypatch):
  def fail():
    raise AssertionError('no such plugin')

  monkeypatch.setattr(jax, 'devices', fail)
  code, stdout, _ = call_command('doctor', cwd=ROOT)
  assert code == 1
  found = last_json(stdout)
  assert found['jax'] == jax.__version__
  assert found['devices'].startswith('WRONG: ')
