"""Trials locked or finished by other processes, and moved folders."""

import concurrent.futures
import contextlib
import shutil
import time

import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.sweeps import comparison, engines, folder, names, plan
from experiments.training import run as run_lib
from experiments.workdir import locks
from experiments.workdir import workdir as workdir_lib

pytestmark = pytest.mark.usefixtures('shared_programs')


def specs(workdir, count=3):
  config = make_small_config()
  config.train.steps = config.train.eval_every = 4
  trials = [{'seed': seed} for seed in range(count)]
  return plan.make(config.to_dict(), trials, str(workdir))


def train(specs):
  engines.train(specs, Signals(), engines.Shared())


@pytest.mark.slow
def test_a_trial_that_ended_during_the_wait_for_its_lock_is_unchanged(
  tmp_path, monkeypatch
):
  trials = specs(tmp_path, 2)
  held, released = locks.held, []

  @contextlib.contextmanager
  def slow(path, *more):
    with held(path, *more):
      if path == trials[0].path and not workdir_lib.read_status(path):
        # As if another host had released it just now.
        released.append(path)
        engines._train(trials[:1], Signals(), engines.Shared())
      yield

  monkeypatch.setattr(locks, 'held', slow)
  train(trials)
  assert released
  for spec in trials:
    status = workdir_lib.read_status(spec.path)
    assert (status['status'], status['attempt']) == ('DONE', 1)


def test_a_group_that_fails_fails_no_trial_of_another_process(
  tmp_path, monkeypatch, capfd
):
  trials = specs(tmp_path)

  def fail(group, *_):
    assert [spec.index for spec in group] == [0, 2]
    raise ArithmeticError('the reason')

  monkeypatch.setattr(engines, '_train', fail)
  with locks.held(trials[1].path):
    other = workdir_lib.Workdir(trials[1].path, 1)
    other.set_status('RUNNING', 3)
    train(trials)
  found = [workdir_lib.read_status(spec.path)['status'] for spec in trials]
  assert found == ['FAILED', 'RUNNING', 'FAILED']
  assert 'the reason' in capfd.readouterr().err


def test_a_trial_is_marked_failed_before_its_lock_is_released(
  tmp_path, monkeypatch
):
  refused, give_up = [], workdir_lib.give_up

  def watch(path, *more):
    with pytest.raises(locks.InUse), locks.held(path):
      pass
    refused.append(path)
    give_up(path, *more)

  monkeypatch.setattr(workdir_lib, 'give_up', watch)
  monkeypatch.setattr(engines, '_train', lambda *_: 1 / 0)
  (trial,) = specs(tmp_path, 1)
  train([trial])
  engines.give_up(trial, 'its process died')
  assert refused == [trial.path] * 2


def test_a_trial_that_another_process_has_locked_is_not_marked_failed(
  tmp_path,
):
  (trial,) = specs(tmp_path, 1)
  with locks.held(trial.path):
    workdir_lib.Workdir(trial.path, 1).set_status('RUNNING', 3)
    engines.give_up(trial, 'its process died')
    assert workdir_lib.read_status(trial.path)['status'] == 'RUNNING'
  engines.give_up(trial, 'its process died')
  assert workdir_lib.read_status(trial.path)['status'] == 'FAILED'


def test_a_trial_that_fails_before_it_goes_on_is_failed(tmp_path):
  (trial,) = specs(tmp_path, 1)
  with locks.held(trial.path):
    workdir_lib.Workdir(trial.path, 1).set_status('INTERRUPTED', 3)
  engines.give_up(trial, 'the data has changed')
  status = workdir_lib.read_status(trial.path)
  assert (status['status'], status['reason']) == (
    'FAILED',
    'the data has changed',
  )


def test_what_only_trials_complete_may_be_written_again(tmp_path):
  base = make_small_config().to_dict()
  base['data']['source'] = 'text'
  trials = plan.make(base, [{'data.dir': 'a'}], str(tmp_path))
  for _ in range(2):
    folder.write(str(tmp_path), base, trials)


def test_a_trial_keeps_its_id_when_others_are_added(tmp_path):
  path, base = str(tmp_path), make_small_config().to_dict()

  def add(*overrides):
    specs = folder.numbered(path, plan.make(base, list(overrides), path))
    folder.write(path, base, specs)
    return {spec.settings.seed: spec.index for spec in specs}

  assert add({'seed': 7}, {'seed': 8}) == {7: 0, 8: 1}
  assert add({'seed': 9}, {'seed': 8}) == {9: 2, 8: 1}
  # Equal settings are one trial, in whatever words.
  assert add({'seed': 7, 'model.pool': 'mean'}, {'seed': 8}) == {7: 0, 8: 1}
  assert [spec.settings.seed for spec in folder.read(path)] == [7, 8, 9]


def test_trials_of_another_task_are_refused_before_they_are_added(tmp_path):
  path, base = str(tmp_path), make_small_config().to_dict()
  folder.write(path, base, plan.make(base, [{'seed': 1}], path))
  others = plan.make(base, [{'seed': 2}, {'task': 'masked_tokens'}], path)
  all_trials = folder.with_others(path, others)
  assert {spec.settings.seed for spec in all_trials} == {0, 1, 2}
  with pytest.raises(UserError, match='make one sweep per task'):
    comparison.check(folder.with_others(path, others[1:]), '', '')


def test_settings_are_checked_by_the_names_that_results_have(tmp_path):
  path, base = str(tmp_path), make_small_config().to_dict()
  keys = 'optimizer.learning_rate', 'optimizer.weight_decay'
  folder.write(path, base, plan.make(base, [{keys[0]: 0.1}], path))
  more = plan.make(base, [{keys[1]: 0.2}, {keys[0]: 0.1}], path)
  checked = names.of_specs(folder.with_others(path, more)).names
  folder.write(path, base, more)
  assert checked == names.of_specs(folder.read(path)).names


def test_a_swept_list_is_a_tuple_when_it_is_read(tmp_path):
  path, base = str(tmp_path), make_small_config().to_dict()
  trials = [{'optimizer.weight_decay_names': ('kernel', 'bias')}]
  folder.write(path, base, plan.make(base, trials, path))
  (spec,) = folder.read(path)
  assert spec.overrides == trials[0]


def test_places_of_data_are_trials_where_they_are_swept(tmp_path):
  """Elsewhere they are free: data may move."""
  path, base = str(tmp_path), make_small_config().to_dict()
  base['data']['source'] = 'text'
  places = [{'data.dir': 'a'}, {'data.dir': 'b'}]
  one, other = plan.make(base, places, path)
  assert one.name != other.name
  base['data']['dir'] = 'a'
  (before,) = plan.make(base, [{}], path)
  base['data']['dir'] = 'b'
  (after,) = plan.make(base, [{}], path)
  assert before.name == after.name


def test_concurrent_commands_add_all_of_their_trials(tmp_path, monkeypatch):
  """As the tasks of a job array do, in one folder."""
  config, trials = make_small_config().to_dict(), specs(tmp_path, 5)
  write = workdir_lib.write_atomic

  def slow(*arguments):
    time.sleep(0.05)
    write(*arguments)

  monkeypatch.setattr(workdir_lib, 'write_atomic', slow)
  with concurrent.futures.ThreadPoolExecutor(5) as pool:
    adding = [
      pool.submit(folder.write, str(tmp_path), config, [trial])
      for trial in trials
    ]
  for future in adding:
    future.result()
  found = {spec.overrides['seed'] for spec in folder.read(str(tmp_path))}
  assert found == {0, 1, 2, 3, 4}
  assert [path.name for path in tmp_path.iterdir()] == ['sweep.json']


def test_the_folder_that_a_sweep_is_started_in_is_not_read(
  tmp_path, monkeypatch
):
  (tmp_path / 'data.json').write_text('{"labels": ["a", "b"]}')
  monkeypatch.chdir(tmp_path)
  assert plan.check_data_and_shapes(specs(tmp_path / 'sweep', 1))


def test_a_run_that_is_done_says_where_it_is_now(finished_run, tmp_path):
  shutil.copytree(finished_run, tmp_path / 'now')
  result = run_lib.run(make_small_config(), str(tmp_path / 'now'), Signals())
  assert result['workdir'] == str(tmp_path / 'now')
