"""Engines with interrupted trials, and with trials ahead of others."""

import os
import sys
import types

import pytest
from conftest import make_small_config

from experiments.command.errors import Interrupted
from experiments.command.signals import Signals
from experiments.sweeps import engines, folder, plan, ray_cluster
from experiments.sweeps.watch import Watch
from experiments.workdir import locks
from experiments.workdir.workdir import Workdir, read_status

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture
def specs(tmp_path):
  """Three pending trials, in the folder of a sweep."""
  base = make_small_config().to_dict()
  made = plan.make(base, [{'seed': n} for n in range(3)], str(tmp_path / 's'))
  folder.write(str(tmp_path / 's'), base, made)
  return made


def cluster(specs):
  workdir = os.path.dirname(os.path.dirname(specs[0].path))
  return ray_cluster.Cluster(workdir, '', {})


# Saves after steps 3, 4, 6, 8, 9 and 12, as eval_every = 4 and every_steps = 3
# have it.
@pytest.mark.parametrize(
  ('saved', 'groups'),
  [
    ([[], [], []], [[0, 1, 2]]),
    ([[6, 8], [6, 8], [6, 8]], [[0, 1, 2]]),
    # Killed during a save: the additional checkpoint is computed again.
    ([[6, 8], [4, 6], [6, 8]], [[0, 1, 2]]),
    ([[3], [], [3]], [[0, 1, 2]]),
    # Preempted after step 7, and killed during the save.
    ([[6, 7], [6], [6]], [[0, 1, 2]]),
    # One was trained alone, and resumes from its own step.
    ([[], [6, 8], []], [[1], [0, 2]]),
    ([[4], [8], [4]], [[1], [0, 2]]),
    # An old checkpoint of it is no reason to go back there.
    ([[3, 4], [4, 8, 9], [4]], [[1], [0, 2]]),
    ([[8, 9], [3], [6, 8]], [[0, 2], [1]]),
  ],
)
def test_trials_of_equal_progress_train_together(
  saved, groups, specs, monkeypatch
):
  by_name = dict(zip([spec.name for spec in specs], saved, strict=True))
  monkeypatch.setattr(engines, '_saved', lambda spec: by_name[spec.name])
  found = engines.together(specs)
  assert [[spec.index for spec in group] for group in found] == groups


@pytest.fixture
def losing_ray(monkeypatch):
  """A mock of Ray whose tasks all die, after calling `do`."""
  library = types.SimpleNamespace(do=lambda: None)

  def lost(*_):
    library.do()
    raise RuntimeError('the worker died')

  remote = types.SimpleNamespace(remote=lambda *_: object())
  library.__dict__.update(
    init=lambda **_: None,
    cluster_resources=dict,
    nodes=list,
    remote=lambda **_: lambda _: remote,
    wait=lambda references, timeout: (references, []),
    get=lost,
    cancel=lambda *_, **__: None,
    shutdown=lambda: None,
    exceptions=types.SimpleNamespace(RayError=RuntimeError),
  )
  monkeypatch.setitem(sys.modules, 'ray', library)
  return library


def test_a_task_that_dies_fails_no_trial_that_another_process_trains(
  specs, losing_ray
):
  with locks.held(specs[0].path):
    Workdir(specs[0].path, 1).set_status('RUNNING', 3)
    watch = Watch(specs[:2], 'accuracy')
    ray_cluster.train(specs[:2], 1, cluster(specs), watch, Signals())
  found = [read_status(spec.path)['status'] for spec in specs[:2]]
  assert found == ['RUNNING', 'FAILED']


def test_a_task_ended_by_a_signal_fails_no_trial(specs, losing_ray):
  """On a cluster that the signal reaches first."""
  signals = Signals()
  losing_ray.do = lambda: setattr(signals, 'received', 'SIGINT')
  watch = Watch(specs[:1], 'accuracy')
  with pytest.raises(Interrupted):
    ray_cluster.train(specs[:1], 1, cluster(specs), watch, signals)
  assert read_status(specs[0].path) == {}
