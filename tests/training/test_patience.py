"""A run stops after so many evaluations without a better score."""

import pytest
from conftest import make_group, make_small_config

from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.training import run as run_lib
from experiments.workdir import metrics
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.metrics import read_rows

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.mark.parametrize(
  ('scores', 'best', 'patience', 'stops'),
  [
    ([3, 2, 2], min, 2, False),
    ([3, 2, 2, 2], min, 2, True),
    ([3, 2, 2, 1, 2], min, 2, False),
    ([0.5, 0.4, 0.4], max, 2, True),
    ([0.5, None, 0.6], max, 2, False),
    ([0.5, None, None], max, 2, True),
    ([None, None], max, 2, False),
    ([None, 0.5, 0.5, None], max, 2, True),
    ([1] * 9, max, 0, False),
    ([], max, 1, False),
  ],
)
def test_a_tie_and_an_undefined_score_are_no_better(
  scores, best, patience, stops
):
  by_step = dict(enumerate(scores))
  assert metrics.has_stopped(by_step, best, patience) == stops


def config_of(rate):
  """At a rate of almost 0, no evaluation is better than the first."""
  config = make_small_config()
  config.train.steps, config.train.eval_every = 10, 2
  config.train.patience, config.train.log_every = 2, 5
  config.checkpoint.best_metric = 'loss'
  config.optimizer.learning_rate = rate
  config.optimizer.schedule = 'constant'
  return config


def steps_of(path):
  return [row['step'] for row in read_rows(str(path / 'metrics.jsonl'))]


class After(Signals):
  """A signal after some checks."""

  def __init__(self, checks):
    super().__init__()
    self.left = checks

  def check(self):
    self.left -= 1
    if self.left < 0:
      raise Interrupted('a signal')


@pytest.mark.slow
def test_a_run_stops_also_after_an_interruption(tmp_path):
  config, path = config_of(1e-12), tmp_path / 'run'
  with pytest.raises(Interrupted, match='saved after step'):
    run_lib.run(config, str(path), After(8))
  assert max(steps_of(path)) < 6
  result = run_lib.run(config, str(path))
  # Of equal scores, the last one is the best.
  assert (result['step'], steps_of(path)) == (6, [2, 4, 5, 6])
  status = workdir_lib.read_status(str(path))
  assert (status['status'], status['step']) == ('DONE', 6)
  assert run_lib.run(config, str(path)) == result
  config.train.steps += 8
  with pytest.raises(UserError, match=r'stopped after step 6 by .*patience'):
    run_lib.run(config, str(path))


@pytest.mark.slow
def test_a_run_that_goes_on_stops_where_the_longer_one_does(tmp_path):
  config, path = config_of(1e-12), tmp_path / 'run'
  config.train.steps = 3
  run_lib.run(config, str(path))
  config.train.steps = 10
  assert run_lib.run(config, str(path))['step'] == 6


@pytest.mark.slow
def test_trials_of_a_group_stop_each_by_itself(tmp_path):
  """Also where a signal comes after the last row of the one that stopped."""
  configs = [config_of(rate) for rate in (1e-12, 1e-2)]
  runs, loaded, program = make_group(configs, tmp_path)
  for checks in (9, 2):
    with pytest.raises(Interrupted):
      run_lib.run_group(runs, loaded, program, After(checks))
  together = run_lib.run_group(runs, loaded, program, Signals())
  assert steps_of(tmp_path / 'a') == [2, 4, 5, 6]
  for config, name, result in zip(configs, 'ab', together, strict=True):
    alone = tmp_path / f'{name}_alone'
    want = run_lib.run(config, str(alone))
    assert result['step'] == want['step']
    assert result['loss'] == pytest.approx(want['loss'], rel=1e-4)
    assert steps_of(tmp_path / name) == steps_of(alone)
    status = workdir_lib.read_status(str(tmp_path / name))
    assert status['step'] == max(steps_of(alone))
