"""A run goes on with more steps where its learning rates allow it."""

import json

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.training import evaluation
from experiments.training import run as run_lib
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import leaves
from experiments.workdir.metrics import read_rows

pytestmark = pytest.mark.usefixtures('shared_programs')


def config_of(steps, schedule='constant', **changes):
  config = make_small_config()
  config.optimizer.schedule, config.train.steps = schedule, steps
  config.optimizer.warmup_steps = 2
  config.train.log_every, config.train.eval_every = 3, 4
  config.update_from_flattened_dict(changes)
  return config


def rows(path):
  """Rows of metrics.jsonl by step, without times."""
  return {
    row['step']: {k: v for k, v in row.items() if 'second' not in k}
    for row in read_rows(str(path / 'metrics.jsonl'))
  }


@pytest.mark.slow
@pytest.mark.parametrize('schedule', ['constant', 'inverse_sqrt'])
def test_a_run_that_goes_on_is_the_run_with_more_steps(schedule, tmp_path):
  at_once, parts = tmp_path / 'at_once', tmp_path / 'parts'
  want = run_lib.run(config_of(11, schedule), str(at_once))
  for steps in (8, 11, 11):
    result = run_lib.run(config_of(steps, schedule), str(parts))
  assert result | {'workdir': ''} == want | {'workdir': ''}
  stored = json.loads((parts / 'config.json').read_text())
  assert stored['train']['steps'] == 11
  got, expected = rows(parts), rows(at_once)
  assert got.keys() == expected.keys()
  for step, row in expected.items():
    # The end of the first part has metrics of training, too.
    assert got[step] | row == got[step]
  for step in ('best', 'last'):
    one, other = (
      leaves(evaluation.restore_params(str(path), step).params)
      for path in (at_once, parts)
    )
    for name, leaf in one.items():
      np.testing.assert_array_equal(other[name], leaf, err_msg=name)


@pytest.mark.slow
def test_a_kill_at_the_start_of_more_steps_leaves_no_other_result(
  tmp_path, monkeypatch
):
  run_lib.run(config_of(4), str(tmp_path))
  with monkeypatch.context() as patch:
    patch.setattr(run_lib.Workdir, 'set_status', _killed)
    with pytest.raises(KeyboardInterrupt):
      run_lib.run(config_of(8), str(tmp_path))
  run_lib.run(config_of(8), str(tmp_path))
  assert workdir_lib.read_status(str(tmp_path))['step'] == 8


def _killed(*_, **__):
  raise KeyboardInterrupt


def test_a_trial_of_a_sweep_keeps_its_steps(tmp_path):
  path = tmp_path / 'trials/one'
  path.mkdir(parents=True)
  run_lib.run(config_of(4), str(path))
  (tmp_path / 'sweep.json').write_text('{}')
  with pytest.raises(UserError, match='is a trial of a sweep'):
    run_lib.run(config_of(8), str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('steps', 'changes', 'said'),
  [
    (9, {'schedule': 'cosine'}, 'steps = 9, .*schedule = cosine gave step 4'),
    (9, {'schedule': 'wsd(decay=0.9)'}, ' and wsd before its decay'),
    (3, {}, r'train\.steps was 5, is 3'),
    (9, {'optimizer.learning_rate': 1.0}, 'learning_rate was .*, is 1.0'),
    (9, {'optimizer.warmup_steps': 0.5}, 'was 2 steps, and is 4 now'),
  ],
)
def test_a_run_that_would_be_another_one_does_not_go_on(
  steps, changes, said, tmp_path
):
  schedule = changes.pop('schedule', 'constant')
  run_lib.run(config_of(5, schedule), str(tmp_path))
  refused(config_of(steps, schedule, **changes), tmp_path, said)


def refused(config, path, said):
  """Checks that a config is, and that no file of the workdir changes."""
  before = files(path)
  with pytest.raises(UserError, match=said):
    run_lib.run(config, str(path))
  assert files(path) == before


def files(path):
  return {p: p.read_bytes() for p in path.rglob('*') if p.is_file()}


def edit(file, **changes):
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def of_another_run(path):
  metadata = path / 'checkpoints/5/_CHECKPOINT_METADATA'
  edit(metadata, custom_metadata={'run': 'another', 'checksums': {}})


def without_room_for_moments(path):
  arrays = path / 'checkpoints/5/state/_METADATA'
  arrays.write_text(arrays.read_text().replace('"mu"', '"nu"'))


@pytest.mark.parametrize('steps', [5, pytest.param(9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (of_another_run, '/5 is of another run; choose another --workdir'),
    (without_room_for_moments, 'does not fit this model'),
  ],
)
def test_a_checkpoint_that_is_refused_changes_nothing(
  change, said, steps, tmp_path
):
  run_lib.run(config_of(5), str(tmp_path))
  edit(tmp_path / 'status.json', status='INTERRUPTED')
  change(tmp_path)
  refused(config_of(steps), tmp_path, said)


@pytest.mark.slow
def test_the_newest_checkpoint_says_how_many_steps_were_taken(tmp_path):
  """A kill after it is saved leaves the status before."""
  run_lib.run(config_of(5, 'cosine'), str(tmp_path))
  edit(tmp_path / 'status.json', status='RUNNING', step=0)
  refused(config_of(9, 'cosine'), tmp_path, 'has taken 5 steps')


def test_a_run_that_diverged_does_not_go_on(tmp_path):
  run_lib.run(config_of(5), str(tmp_path))
  edit(tmp_path / 'status.json', status='DIVERGED', reason='loss is nan')
  refused(config_of(9), tmp_path, 'diverged: loss is nan; it would with more')
