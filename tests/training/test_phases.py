"""A run of two phases: pretraining and classifying, as one."""

import json
import shutil

import jax
import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import Failed, Interrupted, UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.sweeps import halving, plan
from experiments.training import build, compiled, evaluation, loop
from experiments.training import run as run_lib
from experiments.workdir import checkpoints, metrics
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.named_leaves import leaves

pytestmark = pytest.mark.usefixtures('shared_programs')
BEFORE, AFTER = 3, 5


def make_config(**changes):
  """Two phases, with every kind of dropout on."""
  config = make_small_config()
  config.pretrain.steps = BEFORE
  config.pretrain.learning_rate = 3e-3
  config.train.steps = AFTER
  config.train.log_every, config.train.eval_every = 2, 1
  config.checkpoint.best_metric = 'macro_f1'  # which pretraining has not
  config.checkpoint.every_steps, config.checkpoint.max_to_keep = 1, 20
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.optimizer.weight_decay = 0.1
  config.update_from_flattened_dict(changes)
  return config


def restored(path, step):
  config = json.loads((path / 'config.json').read_text())
  config.pop('format')
  settings = from_config(config)
  loaded = loading.load(settings.data, str(path))
  program = compiled.make(settings, loaded.vocabulary, 2)
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    return saved.restore(step, program.template)


def train(config, path, until=None):
  settings = settings_lib.from_config(config)
  loaded = loading.load(settings.data, str(path))
  program = compiled.make(settings, loaded.vocabulary, 2)
  run = (config.to_dict(), settings, str(path))
  return run_lib.run_group([run], loaded, program, Signals(), until)[0]


@pytest.fixture(scope='module')
def whole(tmp_path_factory, shared_programs):
  """Folder and result of a run that nothing happened to."""
  path = tmp_path_factory.mktemp('phases') / 'run'
  return path, train(make_config(), path)


def rows(path):
  text = (path / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize('until', [2, BEFORE, BEFORE + 2])
def test_a_run_that_was_stopped_equals_one_that_was_not(until, whole, tmp_path):
  path, result = whole
  assert train(make_config(), tmp_path / 'run', until) is None
  assert workdir_lib.read_status(str(tmp_path / 'run'))['step'] == until
  again = train(make_config(), tmp_path / 'run')
  assert {**again, 'workdir': ''} == {**result, 'workdir': ''}
  assert rows(tmp_path / 'run') == rows(path)
  last = BEFORE + AFTER
  one, other = restored(path, last), restored(tmp_path / 'run', last)
  jax.tree.map(np.testing.assert_array_equal, one, other)


def test_rows_name_their_phase_and_only_the_last_one_has_a_best(whole):
  path, result = whole
  found = {row['step']: row for row in rows(path)}
  assert [found[n]['phase'] for n in sorted(found)] == (
    ['pretrain'] * BEFORE + ['train'] * AFTER
  )
  assert 'validation/macro_f1' not in found[BEFORE]
  assert 'validation/macro_f1' in found[BEFORE + 1]
  # The schedule begins anew.
  assert found[2]['train/learning_rate'] == pytest.approx(
    3e-3 * (1 + np.cos(np.pi / BEFORE)) / 2
  )
  assert found[BEFORE]['train/learning_rate'] < 1e-3
  assert result['step'] > BEFORE
  best = max(found[n]['validation/macro_f1'] for n in found if n > BEFORE)
  assert found[result['step']]['validation/macro_f1'] == best
  scores = metrics.scores(str(path / 'metrics.jsonl'), 'accuracy')
  assert sorted(scores) == list(range(BEFORE + 1, BEFORE + AFTER + 1))


def test_parameters_for_pretraining_alone_are_counted_apart(whole):
  path, _ = whole
  settings = from_config(make_config(**{'pretrain.steps': 0}))
  loaded = loading.load(settings.data, str(path))
  params = compiled.make(settings, loaded.vocabulary, 2).template.params
  wanted = build.count_parameters(params)
  both = build.count_parameters(restored(path, BEFORE).params)
  assert both > wanted
  assert workdir_lib.read_status(str(path))['parameters'] == wanted
  line = f'{wanted:,} parameters, and {both - wanted:,} for pretraining alone'
  assert line in (path / 'log-0.txt').read_text()
  (spec,) = plan.make(make_config().to_dict(), [{}], str(path.parent))
  _, trained = plan._shapes(spec.settings, loaded)
  assert build.count_parameters(trained) == wanted


def test_the_head_of_the_other_phase_stays_as_it_is(whole):
  path, _ = whole
  one, boundary, last = (
    restored(path, step) for step in (1, BEFORE, BEFORE + AFTER)
  )
  other = 'token_head_masked_tokens'
  assert {'head', other, 'mask'} <= one.params.keys()

  def changed(before, after, name):
    pair = jax.tree.leaves((before.params[name], after.params[name]))
    half = len(pair) // 2
    both = zip(pair[:half], pair[half:], strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in both)

  for name in ('embed', 'encoder'):
    assert changed(one, boundary, name)
    assert changed(boundary, last, name)
  assert changed(one, boundary, other)
  assert not changed(one, boundary, 'head')
  assert changed(boundary, last, 'head')
  assert not changed(boundary, last, other)
  assert not changed(boundary, last, 'mask')


def test_the_optimizer_begins_anew_with_the_second_phase(whole):
  path, _ = whole
  for step, updates in {1: 1, BEFORE: BEFORE, BEFORE + 1: 1}.items():
    leaves = jax.tree.leaves(restored(path, step).optimizer)
    (count,) = [leaf for leaf in leaves if leaf.ndim == 0]
    assert count == updates


def test_without_pretraining_steps_nothing_is_of_it(tmp_path):
  plain = make_config(**{'pretrain.steps': 0})
  moved = make_config(**{'pretrain.steps': 0, 'pretrain.learning_rate': 9.0})
  assert compiled.key(from_config(plain)) == compiled.key(from_config(moved))
  train(plain, tmp_path / 'run')
  assert all('phase' not in row for row in rows(tmp_path / 'run'))
  assert 'mask' not in restored(tmp_path / 'run', AFTER).params


def test_pretraining_keys_of_a_run_without_it_do_not_make_another_run(
  tmp_path,
):
  plain = make_config(**{'pretrain.steps': 0})
  moved = make_config(
    **{
      'pretrain.steps': 0,
      'pretrain.learning_rate': 9.0,
      'pretrain.warmup_steps': 3.0,
      'pretrain.task.name': 'next_token',
      'pretrain.task.masked_tokens.share': 0.5,
    }
  )
  # By the digest, `train` finds the default workdir.
  assert from_config(plain).digest() == from_config(moved).digest()
  one, other = (
    stored.identity(stored.with_format(config.to_dict()))
    for config in (plain, moved)
  )
  assert one == other
  train(plain, tmp_path / 'run', 2)
  stored.check(str(tmp_path / 'run'), from_config(moved))
  assert train(moved, tmp_path / 'run')['step'] <= AFTER


@pytest.mark.slow
def test_a_group_over_both_learning_rates_equals_its_runs_alone(
  whole, tmp_path
):
  changes = (
    {},
    {'pretrain.learning_rate': 1e-4},
    {'optimizer.learning_rate': 2e-3},
  )
  configs = [make_config(**change) for change in changes]
  runs = [
    (config.to_dict(), from_config(config), str(tmp_path / f'group-{index}'))
    for index, config in enumerate(configs)
  ]
  assert len({compiled.key(settings) for _, settings, _ in runs}) == 1
  loaded = loading.load(runs[0][1].data, '')
  program = compiled.make(runs[0][1], loaded.vocabulary, 2, 3)
  run_lib.run_group(runs, loaded, program, Signals())
  losses = [
    [row['validation/loss'] for row in rows(tmp_path / f'group-{index}')]
    for index in range(3)
  ]
  # Each rate counts in its own phase.
  assert losses[0][BEFORE - 1] != losses[1][BEFORE - 1]
  assert losses[0][BEFORE - 1] == losses[2][BEFORE - 1]
  assert losses[0][-1] != losses[2][-1]
  for index, config in enumerate(configs):
    alone = whole[0]
    if index:
      alone = tmp_path / f'alone-{index}'
      train(config, alone)
    for one, other in zip(
      rows(alone), rows(tmp_path / f'group-{index}'), strict=True
    ):
      assert one.pop('phase') == other.pop('phase')
      for name, value in one.items():
        near = pytest.approx(value, rel=1e-3, abs=1e-6)
        assert other[name] == near, (index, one['step'], name)


@pytest.mark.slow
def test_an_ensemble_is_pretrained_and_resumed(tmp_path):
  config = make_config(**{'model.num_members': 2})
  train(config, tmp_path / 'whole')
  train(config, tmp_path / 'cut', BEFORE)
  train(config, tmp_path / 'cut')
  assert rows(tmp_path / 'whole') == rows(tmp_path / 'cut')


@pytest.mark.parametrize('which', ['best', 'last'])
def test_a_run_that_is_only_pretrained_answers_nothing(which, tmp_path):
  """Its head is untrained, whatever it would say."""
  path = tmp_path / 'run'
  assert train(make_config(), path, 2) is None
  with pytest.raises(UserError, match=r'step 2 is of pretraining .* run exp'):
    evaluation.restore_run(str(path), which)


def test_a_checkpoint_of_pretraining_names_a_later_one(tmp_path):
  path = tmp_path / 'run'
  train(make_config(), path)
  later = rf'step 2 .* give a later --checkpoint, such as {BEFORE + AFTER}'
  with pytest.raises(UserError, match=later):
    evaluation.restore_run(str(path), '2')


def test_rungs_are_of_the_last_phase(tmp_path):
  specs = plan.make(make_config().to_dict(), [{}], str(tmp_path))
  assert halving.parse(['6'], 0.5, specs).steps == (6,)
  with pytest.raises(Exception, match=rf'config\.pretrain\.steps = {BEFORE}'):
    halving.parse([str(BEFORE)], 0.5, specs)


@pytest.fixture
def rising_losses(monkeypatch):
  """The second of three evaluations of pretraining has the least loss."""
  evaluated, losses = loop._evaluated, iter([3.0, 1.0, 2.0])

  def with_losses(group, program, *rest):
    found = evaluated(group, program, *rest)
    if program.phase.name == 'pretrain':
      found = [each | {'loss': next(losses)} for each in found]
    return found

  monkeypatch.setattr(loop, '_evaluated', with_losses)


@pytest.mark.parametrize('until', [None, BEFORE])
@pytest.mark.usefixtures('rising_losses')
def test_training_begins_with_the_best_checkpoint_of_pretraining(
  until, tmp_path
):
  changes = {
    'checkpoint.max_to_keep': 1,
    'optimizer.learning_rate': 1e-30,  # too small to change a parameter
    'optimizer.weight_decay': 0.0,
  }
  path = tmp_path / 'run'
  train(make_config(**changes), path, until)
  if until:
    train(make_config(**changes), path)
  best, last = restored(path, 2), restored(path, BEFORE + AFTER)
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, 0, 1e-20),
    best.params,
    last.params,
  )
  assert (
    f'{path}: training begins with checkpoint 2'
    in (path / 'log-0.txt').read_text()
  )


def test_a_signal_in_the_last_evaluation_of_pretraining_loses_no_score(
  tmp_path, monkeypatch
):
  """It is made when the run goes on, before the best one is chosen."""
  losses = iter([3.0, 2.0, None, 1.0])
  evaluated = loop._evaluated

  def with_losses(group, program, *rest):
    found = evaluated(group, program, *rest)
    if program.phase.name == 'pretrain':
      loss = next(losses)
      if loss is None:
        raise Interrupted('SIGTERM')
      found = [each | {'loss': loss} for each in found]
    return found

  monkeypatch.setattr(loop, '_evaluated', with_losses)
  path = tmp_path / 'run'
  with pytest.raises(Interrupted, match=f'saved after step {BEFORE}'):
    train(make_config(), path)
  train(make_config(), path)
  # The last one is the best.
  assert 'training begins with' not in (path / 'log-0.txt').read_text()


@pytest.mark.usefixtures('rising_losses')
def test_training_begins_with_the_averages_that_were_evaluated(tmp_path):
  changes = {
    'train.ema_decay': 0.5,
    'optimizer.learning_rate': 1e-30,
    'optimizer.weight_decay': 0.0,
  }
  path = tmp_path / 'run'
  train(make_config(**changes), path)
  settings = from_config(make_config(**changes))
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    averages = saved.restore_params(2)
  last = leaves(restored(path, BEFORE + AFTER).params)
  assert last.keys() == averages.keys()
  for name, leaf in last.items():
    np.testing.assert_allclose(leaf, averages[name], 0, 1e-20, err_msg=name)


@pytest.mark.usefixtures('rising_losses')
def test_a_corrupt_best_checkpoint_of_pretraining_is_one_line(tmp_path):
  path = tmp_path / 'run'
  train(make_config(), path, BEFORE)
  shutil.rmtree(path / 'checkpoints/2/state')
  with pytest.raises(Failed, match='checkpoints/2 is the best one of pretrain'):
    train(make_config(), path)
  shutil.rmtree(path / 'checkpoints/2')
  assert train(make_config(), path)['step'] > BEFORE
