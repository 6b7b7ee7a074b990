"""A sweep on a Ray cluster survives the loss of a node.

Needs the extra `ray`: bash scripts/run.sh pip install ray
"""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import ROOT, last_json

from experiments.command.errors import UserError
from experiments.sweeps import ray_cluster

CONFIG = """
import sys
sys.path.insert(0, TESTS)
from conftest import make_small_config

def get_config():
  config = make_small_config()
  config.train.steps = 600
  config.train.log_every = 100
  config.train.eval_every = 100
  config.checkpoint.every_steps = 50
  return config

def sweep_seeds():
  for seed in range(4):
    yield {'seed': seed}
"""


# The cluster is forked from this process, which may have used jax before.
pytestmark = pytest.mark.filterwarnings('ignore:os.fork')
_LOOPBACK = '127.0.0.1'


@pytest.fixture
def cluster(monkeypatch):
  """A head node and another node, with one core each, on the loopback."""
  # Otherwise Ray replaces the loopback by another address of this machine.
  monkeypatch.setenv('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
  monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
  ray = pytest.importorskip('ray', reason='the extra ray is not installed')
  from ray.cluster_utils import Cluster

  memory = {'object_store_memory': 100 * 2**20, 'num_cpus': 1}
  started = Cluster(
    initialize_head=True,
    head_node_args=memory | {'node_ip_address': _LOOPBACK},
  )
  lost = started.add_node(**memory, node_ip_address=_LOOPBACK)
  yield started, lost
  ray.shutdown()
  started.shutdown()


def test_trials_of_a_lost_node_are_restarted(tmp_path, run_command, cluster):
  started, lost = cluster
  config = tmp_path / 'small.py'
  config.write_text(CONFIG.replace('TESTS', repr(str(ROOT / 'tests'))))
  flags = [f'--config={config}', '--sweep=seeds']
  path, whole = tmp_path / 'ray', tmp_path / 'serial'
  command = [sys.executable, '-P', '-m', 'experiments.sweep', *flags]
  command += [f'--workdir={path}', '--engine=ray']
  command += [f'--ray_address={started.address}']
  # In which Ray searches modules first.
  (tmp_path / 'experiments').mkdir()
  (tmp_path / 'experiments/__init__.py').write_text('')
  process = subprocess.Popen(
    command,
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  # One trial runs on each node when one of the nodes is lost.
  end = time.monotonic() + 120
  while len(list(path.glob('trials/*/checkpoints/50'))) < 2:
    time.sleep(0.1)
    if process.poll() is not None or time.monotonic() > end:
      process.kill()
      pytest.fail(process.communicate()[1])
  started.remove_node(lost, allow_graceful=False)
  out, said = process.communicate(timeout=240)
  assert process.returncode == 0, said
  assert last_json(out)['trials'] == {'DONE': 4}
  attempts = [
    json.loads((trial / 'status.json').read_text())['attempt']
    for trial in (path / 'trials').iterdir()
    if trial.is_dir()
  ]
  assert sorted(attempts) == [1, 1, 1, 2]
  done = run_command('sweep', *flags, f'--workdir={whole}', '--engine=serial')
  assert last_json(done.stdout)['table'] == last_json(out)['table']


@pytest.mark.parametrize(
  ('given', 'wanted'),
  [
    ([], {}),
    (['CPU=4', 'memory=1000000'], {'CPU': 4, 'memory': 1e6}),
    (['CPU=2', 'GPU=0.5', 'TPU-v5e=8'], {'CPU': 2, 'GPU': 0.5, 'TPU-v5e': 8}),
  ],
)
def test_resources_are_amounts_by_name(given, wanted):
  assert ray_cluster.parse(given) == wanted


@pytest.mark.parametrize(
  'given',
  [
    'GPU',
    '=1',
    'GPU=',
    'GPU=-1',
    'GPU=0',
    'GPU=1.5',
    'GPU=nan',
    'object_store_memory=1',
  ],
)
def test_resources_that_ray_refuses_are_named(given):
  with pytest.raises(UserError, match=f'--ray_resources={given} is not NAME='):
    ray_cluster.parse(['CPU=1', given])


def test_without_ray_the_error_says_how_to_install_it(tmp_path, call_command):
  try:
    import ray  # noqa: F401
  except ImportError:
    pass
  else:
    pytest.skip('the extra ray is installed')
  path = tmp_path / 'sweep'
  flags = ['--sweep=seeds', f'--workdir={path}', '--engine=ray']
  code, _, stderr = call_command('sweep', *flags, cwd=ROOT)
  assert code == 2
  assert '--engine=ray: Ray is not installed' in stderr
  assert not path.exists()
