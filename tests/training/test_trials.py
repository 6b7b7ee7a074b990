"""Trials of a group save apart, and go on together."""

import json
import os

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.training import compiled
from experiments.training import run as run_lib
from experiments.workdir.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')


class Killed(BaseException):
  """Stands for SIGKILL between the saves of two trials."""


def steps(path):
  return sorted(
    int(n) for n in os.listdir(path / 'checkpoints') if n.isdecimal()
  )


@pytest.mark.slow
@pytest.mark.parametrize('until', ['step 3', 'step 6', 'step 9'])
def test_a_kill_between_two_saves_costs_a_group_no_common_step(
  until, tmp_path, monkeypatch
):
  configs = []
  for seed in (0, 1):
    config = make_small_config()
    config.seed = seed
    config.train.log_every = config.train.eval_every = 12
    config.checkpoint.every_steps = 3
    config.checkpoint.max_to_keep = 1
    configs.append(config)
  runs = [
    (config.to_dict(), settings_lib.from_config(config), str(tmp_path / name))
    for config, name in zip(configs, 'ab', strict=True)
  ]
  settings = runs[0][1]
  loaded = loading.load(settings.data, '')
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts, 2)
  save = Checkpoints.save

  def killed(self, state):
    if f'step {int(state.step)}' == until:
      is_first = str(self._manager.directory).startswith(str(tmp_path / 'a'))
      if not is_first:
        raise Killed
      save(self, state)
      self.wait()
    else:
      save(self, state)

  with monkeypatch.context() as patch:
    patch.setattr(Checkpoints, 'save', killed)
    with pytest.raises(Killed):
      run_lib.run_group(runs, loaded, program, Signals())
  last = int(until.split()[1])
  common = set(steps(tmp_path / 'a')) & set(
    steps(tmp_path / 'b') if last > 3 else []
  )
  assert common == ({last - 3} if last > 3 else set())
  results = run_lib.run_group(runs, loaded, program, Signals())
  assert all(result['step'] == 12 for result in results)


@pytest.mark.slow
def test_trials_with_orders_of_their_own_train_as_alone(tmp_path, monkeypatch):
  configs, read = [], []
  put = compiled.Program.put_train

  def recorded(program, batches):
    read.append(batches)
    return put(program, batches)

  monkeypatch.setattr(compiled.Program, 'put_train', recorded)
  for seed in (3, 4):
    config = make_small_config()
    config.seed = seed
    config.train.shuffle_by_seed = True
    config.train.log_every = 1
    configs.append(config)
  settings = [settings_lib.from_config(config) for config in configs]
  loaded = loading.load(settings[0].data, '')

  def train(folder, trials, num_trials):
    program = compiled.make(
      settings[0], loaded.vocabulary, loaded.label_facts, num_trials
    )
    runs = [
      (configs[trial].to_dict(), settings[trial], str(tmp_path / folder(trial)))
      for trial in trials
    ]
    return run_lib.run_group(runs, loaded, program, Signals())

  train('group{}'.format, (0, 1), 2)
  together, read = read, []
  for trial in (0, 1):
    train('alone{}'.format, (trial,), None)
    alone, read = read, []
    of_trial = [batches[trial] for batches in together]
    assert len(alone) == settings[0].train.steps
    for ours, (theirs,) in zip(of_trial, alone, strict=True):
      for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(
      losses(tmp_path / f'group{trial}'),
      losses(tmp_path / f'alone{trial}'),
      rtol=1e-5,
    )
  one, other = together[0]
  assert one.tokens.shape == other.tokens.shape
  assert (one.tokens != other.tokens).any()


def losses(path):
  lines = (path / 'metrics.jsonl').read_text().splitlines()
  return np.array([json.loads(line)['train/loss'] for line in lines])
