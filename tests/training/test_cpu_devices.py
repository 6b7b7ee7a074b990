"""Devices of a CPU: as many as pay, and as many as before."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import types

import jax
import pytest

from experiments.command import provenance
from experiments.data import loading
from experiments.settings.settings import from_config
from experiments.training import cpu_devices
from experiments.workdir import workdir as workdir_lib
from tests.conftest import make_small_config

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def chosen(monkeypatch, tmp_path):
  """The number of devices for rows, their length and cores, or None."""
  loaded = loading.load(from_config(make_small_config()).data, '')
  monkeypatch.setenv('XLA_FLAGS', '')

  def choose(rows, length, cores, path=tmp_path):
    calls = []
    config = make_small_config()
    config.train.batch_size = rows
    padded = dataclasses.replace(loaded, bucket_lengths=(length,))
    with monkeypatch.context() as patch:
      patch.setattr(provenance, 'cores', lambda: cores)
      patch.setattr(jax.config, 'update', lambda *call: calls.append(call))
      cpu_devices.set_up(from_config(config), padded, str(path))
    assert {name for name, _ in calls} <= {'jax_num_cpu_devices'}
    return calls[0][1] if calls else None

  return choose


@pytest.mark.parametrize(
  ('rows', 'length', 'cores', 'count'),
  [
    (64, 17, 2, 1),
    (32, 128, 1, 1),
    (32, 128, 2, 2),
    (32, 127, 2, 1),
    (32, 512, 6, 4),
    (31, 512, 6, 1),
  ],
)
def test_a_device_has_enough_tokens_and_equal_rows(
  chosen, rows, length, cores, count
):
  assert chosen(rows, length, cores) == count


def test_what_the_user_says_stays(chosen, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setenv('XLA_FLAGS', '--xla_force_host_platform_device_count=3')
    assert chosen(32, 512, 4) is None


@pytest.mark.parametrize(
  ('kinds', 'count'), [(['cpu'] * 4, 4), (['cpu'], 1), (['NVIDIA H100'], 3)]
)
def test_a_run_keeps_what_it_began_with(chosen, tmp_path, capfd, kinds, count):
  for devices in (kinds, ['cpu'] * 3):
    made = [types.SimpleNamespace(device_kind=kind) for kind in devices]
    workdir = workdir_lib.Workdir(str(tmp_path), attempt=1)
    workdir_lib.record_environment(workdir, made)
  assert chosen(32, 512, 2) == count
  said = f'{count} devices share 2 cores' in capfd.readouterr().err
  assert said == (count > 2)


def test_devices_that_are_made_before_are_said(monkeypatch, capfd):
  monkeypatch.setenv('XLA_FLAGS', '')
  made = jax.device_count()
  cpu_devices.make(made + 1)
  said = f'WARNING: devices of the CPU: {made}, not {made + 1}'
  assert said in capfd.readouterr().err


@pytest.mark.parametrize(
  ('quota', 'count'),
  [('max 100000', 4), ('200000 100000', 2), ('10 100000', 1), ('900 100', 4)],
)
def test_cores_are_those_that_a_container_pays_for(
  quota, count, monkeypatch, tmp_path
):
  (tmp_path / 'cpu.max').write_text(quota + '\n')
  monkeypatch.setattr(provenance, '_CPU_QUOTA', tmp_path / 'cpu.max')
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1, 2, 3})
  assert provenance.cores() == count


SCRIPT = """
import sys
import types

import jax

from experiments.command import provenance
from experiments.sweeps import plan
from experiments.training import run
from tests.conftest import make_small_config

provenance.cores = lambda: 3
config = make_small_config()
config.train.batch_size = 600
if sys.argv[2] == 'train':
  run.run(config, sys.argv[1])
else:
  specs = plan.make(config.to_dict(), [{'seed': 1}], sys.argv[1])
  plan.check_data_and_shapes(specs)
print(jax.device_count())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('command', 'said', 'count'),
  [
    ('train', {}, 3),
    ('sweep', {}, 1),
    ('train', {'JAX_NUM_CPU_DEVICES': '2'}, 2),
  ],
)
def test_a_command_has_the_devices(tmp_path, command, said, count):
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT, str(tmp_path / 'run'), command],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=300,
    check=False,
    env=os.environ | {'PYTHONPATH': str(ROOT)} | said,
  )
  assert done.stdout.splitlines()[-1:] == [str(count)], done.stderr
