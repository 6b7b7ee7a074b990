"""Trials of a group save apart, and go on together."""

import os

import pytest
from conftest import make_group, make_small_config

from experiments.command.signals import Signals
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
@pytest.mark.parametrize('until', ['step 3', 'step 6'])
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
  runs, loaded, program = make_group(configs, tmp_path)
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
