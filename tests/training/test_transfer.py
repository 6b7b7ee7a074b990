"""init_from loads the parameters that match, and names those it skips."""

import json
import shutil

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, loading
from experiments.data.vocabularies import Vocabulary
from experiments.settings.settings import from_config
from experiments.training import compiled
from experiments.training import run as run_lib
from experiments.workdir import checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')


def short_config():
  config = make_small_config()
  config.train.steps = 1
  config.optimizer.warmup_steps = 0
  config.optimizer.learning_rate = 1e-9  # parameters stay what they were
  return config


def params(path, config):
  settings = from_config(config)
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  labels = loading.read_facts(str(path))['labels']
  template = compiled.make(settings, vocabulary, len(labels)).template
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    return checkpoints.leaves(saved.restore(1, template).params)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp('source') / 'run'
  config = short_config()
  config.seed = 5
  run_lib.run(config, str(path), Signals())
  return path


def test_parameters_that_match_are_loaded_and_the_rest_is_named(
  source, tmp_path, capfd
):
  config = short_config()
  config.model.mlp_dim = 22
  config.model.pool = 'cls'
  config.train.init_from = str(source)
  path = tmp_path / 'run'
  run_lib.run(config, str(path), Signals())
  lines = capfd.readouterr().err.splitlines()
  (loaded,) = [
    line for line in lines if line.startswith('loaded parameters fr')
  ]
  (skipped,) = [line for line in lines if line.startswith('skipped parameters')]
  ours, theirs = params(path, config), params(source, short_config())
  for name, leaf in ours.items():
    same = name in theirs and leaf.shape == theirs[name].shape
    assert (f' {name}' in loaded) == same
    assert (f' {name} (' in skipped) == (not same)
    if same:
      np.testing.assert_allclose(leaf, theirs[name], atol=1e-6)
  assert 'cls (not in that model)' in skipped
  assert 'float32[12, 20] there' in skipped


def test_parameters_of_another_vocabulary_or_other_labels_are_skipped(
  source, tmp_path
):
  other = tmp_path / 'other'
  shutil.copytree(source, other)
  text = (other / 'tokenizer.json').read_text()
  (other / 'tokenizer.json').write_text(text.replace('"the"', '"teh"'))
  facts = (other / 'data.json').read_text()
  (other / 'data.json').write_text(facts.replace('negative', 'bad'))
  assert facts != (other / 'data.json').read_text()
  config = short_config()
  config.train.init_from = str(other)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  ours, theirs = (
    params(tmp_path / 'run', config),
    params(source, short_config()),
  )
  for name, leaf in ours.items():
    fits = name.partition('/')[0] not in ('embed', 'head')
    if leaf.ndim > 1:  # those that start at zeros or ones are alike anyway
      close = np.allclose(leaf, theirs[name], atol=1e-6)
      assert close == fits, name


def test_position_rates_of_words_of_another_vocabulary_are_skipped(
  tmp_path, capfd
):
  config = short_config()
  config.model.position.name = 'learned+complex_order'
  source = tmp_path / 'source'
  run_lib.run(config, str(source), Signals())
  text = (source / 'tokenizer.json').read_text()
  (source / 'tokenizer.json').write_text(text.replace('"the"', '"teh"'))
  config.train.init_from = str(source)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  lines = capfd.readouterr().err.splitlines()
  (skipped,) = [line for line in lines if line.startswith('skipped param')]
  other = 'encoder/position/complex_order/rates'
  assert f'{other} (another vocabulary)' in skipped
  assert 'encoder/position/learned' not in skipped


def test_all_members_begin_with_the_parameters_of_one_model(
  source, tmp_path, capfd
):
  config = short_config()
  wanted = params(source, config)
  config.model.num_members = 3
  config.train.init_from = str(source)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  lines = capfd.readouterr().err
  assert 'skipped parameters: none' in lines
  for name, leaf in params(tmp_path / 'run', config).items():
    assert leaf.shape == (3, *wanted[name].shape)
    for member in leaf:
      np.testing.assert_allclose(member, wanted[name], atol=1e-6)


def test_a_source_without_checkpoints_is_refused(source, tmp_path):
  config = short_config()
  empty = tmp_path / 'empty'
  shutil.copytree(source, empty)
  shutil.rmtree(empty / 'checkpoints')
  config.train.init_from = str(empty)
  with pytest.raises(UserError, match='has no checkpoint'):
    run_lib.run(config, str(tmp_path / 'run'), Signals())


@pytest.mark.parametrize('metric', ['accuracy', 'error'])
def test_a_source_with_a_task_of_its_own_is_read_by_its_metric(
  metric, source, tmp_path, monkeypatch
):
  other = tmp_path / 'other'
  shutil.copytree(source, other)
  config = json.loads((other / 'config.json').read_text())
  config |= {'extension': '0123', 'task': {'name': 'mine'}}
  config['checkpoint']['best_metric'] = metric
  (other / 'config.json').write_text(json.dumps(config))
  config = short_config()
  config.train.init_from = str(other)
  run = str(tmp_path / 'run')
  if metric == 'accuracy':
    run_lib.run(config, run, Signals())
    return
  monkeypatch.setattr(compiled, 'make', None)  # before any device is used
  with pytest.raises(UserError) as error:
    run_lib.run(config, run, Signals())
  assert str(error.value) == (
    f"config.train.init_from = '{other}': its config.checkpoint.best_metric = "
    "'error' is not a metric of any task here; register its task in the file "
    'of --config, as its extension.py does'
  )


def test_a_group_starts_each_trial_from_its_own_source(source, tmp_path):
  configs = [short_config(), short_config()]
  configs[1].train.init_from = str(source)
  settings = [from_config(config) for config in configs]
  loaded = loading.load(settings[0].data, '')
  program = compiled.make(settings[0], loaded.vocabulary, 2, 2)
  runs = [
    (config.to_dict(), each, str(tmp_path / str(index)))
    for index, (config, each) in enumerate(zip(configs, settings, strict=True))
  ]
  run_lib.run_group(runs, loaded, program, Signals())
  theirs = params(source, short_config())['embed/embedding']
  fresh, started = (
    params(tmp_path / str(index), configs[index])['embed/embedding']
    for index in range(2)
  )
  assert not np.allclose(fresh, theirs, atol=1e-3)
  np.testing.assert_allclose(started, theirs, atol=1e-6)
