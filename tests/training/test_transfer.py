"""init_from loads the parameters that match, and names those it skips."""

import json
import shutil
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, loading
from experiments.data.vocabularies import Vocabulary
from experiments.settings.settings import from_config
from experiments.training import compiled, evaluation, transfer
from experiments.training import run as run_lib
from experiments.workdir import checkpoints
from selfattn.heads import HEADS, Linear, WideAndDeep

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


@pytest.mark.parametrize(
  ('changes', 'other', 'same'),
  [
    (
      {
        'model.head.name': 'wide_and_deep',
        'model.head.wide_and_deep.num_buckets': 50,
      },
      'head/embedding',
      'head/kernel',
    ),
    (
      {
        'model.position.name': 'learned+ngram',
        'model.position.ngram.num_buckets': 50,
      },
      'encoder/position/ngram/table',
      'encoder/position/learned',
    ),
  ],
  ids=['head', 'position'],
)
def test_ngrams_of_another_vocabulary_are_skipped(
  changes, other, same, tmp_path, capfd
):
  config = short_config()
  config.update_from_flattened_dict(changes)
  source = tmp_path / 'source'
  run_lib.run(config, str(source), Signals())
  text = (source / 'tokenizer.json').read_text()
  (source / 'tokenizer.json').write_text(text.replace('"the"', '"teh"'))
  config.train.init_from = str(source)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  lines = capfd.readouterr().err.splitlines()
  (skipped,) = [line for line in lines if line.startswith('skipped param')]
  assert f'{other} (another vocabulary)' in skipped
  assert same not in skipped


@pytest.mark.slow
@pytest.mark.parametrize('num_members', [1, 2])
def test_what_a_head_counts_is_that_of_the_texts_of_train(
  num_members, tmp_path
):
  """Before and after training: of members, of phases, with an average."""
  config = short_config()
  config.train.steps = 2
  config.train.ema_decay = 0.9
  config.train.eval_every = 1
  config.checkpoint.every_steps = 1
  config.pretrain.steps = 1
  config.model.num_members = num_members
  config.model.head.name = 'wide_and_deep+nbsvm'
  config.model.head.wide_and_deep.num_buckets = 50
  config.model.head.wide_and_deep.naive_bayes = True
  config.model.head.nbsvm.max_features = 400
  config.optimizer.learning_rate = 0.1
  config.optimizer.weight_decay = 1.0
  config.optimizer.weight_decay_names = ('kernel', 'embedding')
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  settings = from_config(config)
  data = loading.load(settings.data, '')
  train = data.splits['train']
  program = compiled.make(settings, data.vocabulary, len(data.labels))
  batch = train.batch(np.arange(len(train)), len(train), 64)
  padding_mask = np.arange(64) < batch.lengths[:, None]
  texts = [(batch.tokens, padding_mask, batch.labels)]
  counted = program.classifier.head.statistics(texts, len(data.labels))
  assert set(counted) == {
    'wide_and_deep/ratio',
    'nbsvm/fitted_ngrams',
    'nbsvm/fitted_logits',
    'nbsvm/fitted_bias',
  }
  with checkpoints.reading(
    str(tmp_path / 'run'), settings.checkpoint, settings.best
  ) as saved:
    state = saved.restore(settings.steps, program.template)
  for name, wanted in counted.items():
    assert np.abs(wanted).max() > 1e-3
    for params in (state.params, state.average):
      found = checkpoints.leaves(params['head'])[name]
      assert found.shape[: -wanted.ndim] == (
        (num_members,) if num_members > 1 else ()
      )
      all_members = np.broadcast_to(wanted, found.shape)
      # Frozen, so not averaged and rounded, either.
      np.testing.assert_array_equal(found, all_members)
  trained = state.params['head']['wide_and_deep']['embedding']
  assert np.abs(trained).max() > 0.01


class Prior(Linear):
  frozen_params = ('prior',)

  def statistics(self, texts, num_classes):
    labels = np.concatenate([of_batch for _, _, of_batch in texts])
    return {'prior': np.bincount(labels, minlength=num_classes)}

  @nn.compact
  def __call__(self, pooled, tokens, mask, num_classes, dropout=None):
    self.param('prior', nn.initializers.zeros, (num_classes,), jnp.int32)
    return super().__call__(pooled, tokens, mask, num_classes, dropout)


def test_a_head_counts_the_texts_of_train_and_no_others(tmp_path, monkeypatch):
  monkeypatch.setitem(HEADS, 'prior', Prior)
  config = short_config()
  config.model.head.name = 'prior'
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  labels = loading.load(from_config(config).data, '').splits['train'].labels
  params = evaluation.restore_params(str(tmp_path / 'run'), 'best').params
  np.testing.assert_array_equal(params['head']['prior'], np.bincount(labels))


def naive_bayes(value):
  config = short_config()
  config.model.head.name = 'wide_and_deep'
  config.model.head.wide_and_deep.num_buckets = 50
  config.model.head.wide_and_deep.naive_bayes = value
  return config


@pytest.mark.slow
def test_ratios_of_a_source_are_kept_with_their_logits(tmp_path, capfd):
  """On other texts, for which others would be counted."""
  config = naive_bayes(True)
  config.data.vocabulary.name = 'byte'
  run_lib.run(config, str(tmp_path / 'source'), Signals())
  wanted = params(tmp_path / 'source', config)['head/ratio']
  config.data.seed = 7
  run_lib.run(config, str(tmp_path / 'counted'), Signals())
  assert (params(tmp_path / 'counted', config)['head/ratio'] != wanted).any()
  capfd.readouterr()
  config.train.init_from = str(tmp_path / 'source')
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert 'skipped parameters: none' in capfd.readouterr().err
  np.testing.assert_array_equal(
    params(tmp_path / 'run', config)['head/ratio'], wanted
  )


@pytest.mark.parametrize('value', [True, False])
def test_logits_with_and_without_ratios_are_not_exchanged(
  value, tmp_path, capfd
):
  run_lib.run(naive_bayes(not value), str(tmp_path / 'source'), Signals())
  config = naive_bayes(value)
  config.train.init_from = str(tmp_path / 'source')
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  lines = capfd.readouterr().err.splitlines()
  (skipped,) = [line for line in lines if line.startswith('skipped param')]
  assert 'head/embedding (beside other parameters of the head)' in skipped


@pytest.mark.parametrize('name', ['nbsvm', 'linear+nbsvm'])
def test_what_is_fitted_to_texts_is_never_that_of_a_source(
  name, tmp_path, capfd
):
  config = short_config()
  config.model.head.name = name
  config.model.head.nbsvm.max_features = 400
  run_lib.run(config, str(tmp_path / 'source'), Signals())
  config.model.head.nbsvm.c = 9.0
  run_lib.run(config, str(tmp_path / 'alone'), Signals())
  config.train.init_from = str(tmp_path / 'source')
  capfd.readouterr()
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert 'fitted_bias (fitted to the texts of train)' in capfd.readouterr().err
  source, alone, found = (
    next(
      leaf
      for key, leaf in params(tmp_path / each, config).items()
      if key.endswith('fitted_logits')
    )
    for each in ('source', 'alone', 'run')
  )
  assert np.abs(found - source).max() > 1e-3
  np.testing.assert_array_equal(found, alone)


def test_a_task_without_this_head_counts_nothing(tmp_path, capfd):
  config = naive_bayes(True)
  config.task.name = 'masked_tokens'
  config.checkpoint.best_metric = 'loss'
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert 'set from the texts' not in capfd.readouterr().err


def test_statistics_that_are_no_parameter_are_named(tmp_path, monkeypatch):
  for wrong in (
    {'ratios': np.ones((50, 2))},
    {'ratio': np.ones((49, 2))},
    {'ratio': np.ones(2)},
    {'ratio': np.full((50, 2), np.nan)},
    {'ratio': np.ones((50, 2), complex)},
    {'ratio': np.full((50, 2), 1e300)},
  ):
    monkeypatch.setattr(
      WideAndDeep, 'statistics', lambda *_, wrong=wrong: wrong
    )
    (name,) = wrong
    with pytest.raises(ValueError, match=f"statistics: '{name}', "):
      run_lib.run(naive_bayes(True), str(tmp_path / 'run'), Signals())


@pytest.mark.parametrize(
  ('value', 'dtype', 'fits'),
  [
    (3, np.uint32, True),
    (3.0, np.int32, True),
    (2.5, np.int32, False),
    (3_000_000_000, np.int32, False),
    (3_000_000_000, np.uint32, True),
    (1, np.bool_, True),
    (2, np.bool_, False),
    (2.5, jnp.bfloat16, True),
    (1e39, jnp.bfloat16, False),
  ],
)
def test_statistics_of_integers_are_not_changed(value, dtype, fits):
  assert transfer._fits(np.array([value]), dtype) == fits


def test_statistics_that_are_counts_become_numbers_of_the_parameter(
  tmp_path, monkeypatch
):
  """A checkpoint of another type would be refused after training."""
  ratio = np.arange(100).reshape(50, 2)
  monkeypatch.setattr(WideAndDeep, 'statistics', lambda *_: {'ratio': ratio})
  config = naive_bayes(True)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  found = params(tmp_path / 'run', config)['head/ratio']
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, ratio)


def test_frozen_parameters_that_are_none_are_named(tmp_path, monkeypatch):
  """Such as a submodule: its kernel would be trained."""
  monkeypatch.setattr(WideAndDeep, 'frozen_params', ('ratios',))
  with pytest.raises(ValueError, match=r"frozen_params has 'ratios', .* ratio"):
    run_lib.run(naive_bayes(True), str(tmp_path / 'run'), Signals())


def test_warnings_of_a_head_are_logged_and_others_stay(
  tmp_path, monkeypatch, capfd
):
  def warned(*_):
    warnings.warn('ratio = 1: as good as none', stacklevel=2)
    np.log(np.zeros(1))
    return {}

  monkeypatch.setattr(WideAndDeep, 'statistics', warned)
  with pytest.warns(RuntimeWarning, match='divide by zero') as found:
    run_lib.run(naive_bayes(True), str(tmp_path / 'run'), Signals())
  assert not any(each.category is UserWarning for each in found)
  assert (
    'WARNING: config.model.head: ratio = 1: as good as none\n'
    in capfd.readouterr().err
  )


def test_statistics_may_read_the_texts_twice(tmp_path, monkeypatch):
  counts = []

  def counted(self, texts, num_classes):
    counts.extend(
      sum(int(mask.any(axis=1).sum()) for _, mask, _ in texts) for _ in '12'
    )
    return {}

  monkeypatch.setattr(WideAndDeep, 'statistics', counted)
  config = naive_bayes(True)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  train = loading.load(from_config(config).data, '').splits['train']
  assert counts == [len(train)] * 2


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


def test_what_is_frozen_has_no_decay_and_no_state_of_the_optimizer():
  config = short_config()
  config.model.head.name = 'linear+nbsvm'
  config.model.head.nbsvm.max_features = 51
  settings = from_config(config)
  program = compiled.make(settings, Vocabulary(30, ()), 2)
  state = program.template
  assert state.params['head']['nbsvm']['fitted_logits'].shape == (51, 2)
  assert all(51 not in leaf.shape for leaf in jax.tree.leaves(state.optimizer))
  config.model.head.name = 'linear'
  without = compiled.make(from_config(config), Vocabulary(30, ()), 2)
  assert program.num_parameters == without.num_parameters


def test_what_is_frozen_cannot_decay(tmp_path):
  config = short_config()
  config.model.head.name = 'nbsvm'
  config.optimizer.weight_decay_names = ('fitted_logits',)
  with pytest.raises(UserError, match="has 'fitted_logits'") as error:
    run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert 'fitted' not in str(error.value).partition('are named')[2]
