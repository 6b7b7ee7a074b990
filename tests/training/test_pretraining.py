"""Pretraining is a run, which another run begins with."""

import json

import jax
import numpy as np
import pytest
from conftest import ROOT, make_small_config
from test_train import StopAt, restored

from experiments.command.errors import Interrupted
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.sweeps import folder
from experiments.training import compiled, sources
from experiments.training import run as run_lib
from experiments.workdir import checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')
STEPS = 5


def make_config(**changes):
  """With every kind of dropout on."""
  config = make_small_config()
  config.train.steps = STEPS
  config.train.log_every, config.train.eval_every = 2, 1
  config.checkpoint.every_steps, config.checkpoint.max_to_keep = 1, 20
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.optimizer.weight_decay = 0.1
  config.update_from_flattened_dict(changes)
  return config


def train(config, path, signals=None):
  settings = from_config(config)
  tokenizer = sources.vocabulary(settings, str(path))
  loaded = loading.load(settings.data, str(path), tokenizer)
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  run = (config.to_dict(), settings, str(path))
  return run_lib.run_group([run], loaded, program, signals or Signals())[0]


def best(path):
  """The parameters of the best checkpoint by name, and its step."""
  settings = stored.read_settings(str(path))
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    step = saved.best()
    return saved.restore_params(step), step


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory, shared_programs):
  path = tmp_path_factory.mktemp('pretrained') / 'run'
  changes = {'task': 'masked_tokens', 'checkpoint.best_metric': 'loss'}
  train(make_config(**changes, seed=3), path)
  return path


@pytest.fixture(scope='module')
def whole(pretrained, tmp_path_factory):
  """Folder and result of a run that nothing happened to."""
  path = tmp_path_factory.mktemp('whole') / 'run'
  return path, train(make_config(**{'train.init_from': str(pretrained)}), path)


def test_a_run_begins_with_the_best_checkpoint_of_pretraining(
  pretrained, tmp_path
):
  changes = {
    'train.init_from': str(pretrained),
    'optimizer.learning_rate': 1e-30,  # too small to change a parameter
    'optimizer.weight_decay': 0.0,
  }
  path = tmp_path / 'run'
  train(make_config(**changes), path)
  given, step = best(pretrained)
  rows = (pretrained / 'metrics.jsonl').read_text().splitlines()
  losses = {
    row['step']: row['validation/loss'] for row in map(json.loads, rows)
  }
  assert losses[step] == min(losses.values())
  text = (path / 'log-0.txt').read_text()
  assert f'loaded parameters from step {step} of {pretrained}: ' in text
  found, _ = best(path)
  shared = {name for name in found if not name.startswith('head/')}
  assert shared < given.keys()
  for name in shared:
    np.testing.assert_allclose(found[name], given[name], 0, 1e-20)
  for name in sorted(given.keys() - shared):
    assert name.startswith(('mask', 'token_head_masked_tokens'))
    assert f'{name} (not in this model)' in text


@pytest.mark.slow
def test_a_run_that_was_stopped_equals_one_that_was_not(
  pretrained, whole, tmp_path
):
  path, result = whole
  config = make_config(**{'train.init_from': str(pretrained)})
  with pytest.raises(Interrupted):
    train(config, tmp_path / 'run', StopAt(look=5))
  again = train(config, tmp_path / 'run')
  assert {**again, 'workdir': ''} == {**result, 'workdir': ''}
  one, other = path / 'metrics.jsonl', tmp_path / 'run/metrics.jsonl'
  assert one.read_text() == other.read_text()
  one, other = (
    restored(each, config, STEPS) for each in (path, tmp_path / 'run')
  )
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_pretraining_times_methods_is_two_sweeps(call_command, tmp_path):
  flags = [
    '--engine=vectorized',
    '--grid=config.model.position=sinusoidal,learned',
    '--grid=config.seed=0,1',
    '--config.data.source=word_order(train_pairs=20, validation_pairs=5,'
    ' test_pairs=5)',
    '--config.model.num_layers=1',
    '--config.model.embed_dim=12',
    '--config.model.mlp_dim=12',
    '--config.train.batch_size=8',
    '--config.train.steps=2',
    '--config.train.eval_every=1',
  ]
  masked = [
    '--config.task=masked_tokens',
    '--config.checkpoint.best_metric=loss',
    f'--workdir={tmp_path}/masked',
  ]
  code, _, stderr = call_command('sweep', *flags, *masked, cwd=ROOT)
  assert code == 0, stderr
  then = [
    f'--config.train.init_from={tmp_path}/masked',
    '--config.optimizer.learning_rate=1e-30',
    f'--workdir={tmp_path}/then',
  ]
  code, _, stderr = call_command('sweep', *flags, *then, cwd=ROOT)
  assert code == 0, stderr
  before = folder.read(str(tmp_path / 'masked'))
  after = folder.read(str(tmp_path / 'then'))
  assert len(after) == 4
  for source, trial in zip(before, after, strict=True):
    assert source.overrides == trial.overrides
    given, _ = best(source.path)
    found, _ = best(trial.path)
    shared = {name for name in found if not name.startswith('head/')}
    assert 'embed/embedding' in shared
    for name in shared:
      np.testing.assert_allclose(found[name], given[name], 0, 1e-20)
