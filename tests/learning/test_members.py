"""An ensemble is its members, each as it would be alone."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import scipy.special
from conftest import last_json, make_small_config
from test_train import restored

from experiments.command.signals import Signals
from experiments.data import encoding, loading
from experiments.data.batches import TrainBatches, eval_batches
from experiments.data.vocabularies import Vocabulary
from experiments.inspection import head_analysis
from experiments.learning import ensembles
from experiments.settings.settings import from_config
from experiments.training import build, compiled
from experiments.training import run as run_lib
from experiments.training.evaluation import restore_params

pytestmark = pytest.mark.usefixtures('shared_programs')
COUNT = 3


def make_config():
  """Three members, with every kind of dropout on."""
  config = make_small_config()
  config.model.num_members = COUNT
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.optimizer.clip_norm = 0.1  # of each member by itself
  return config


def close(a, b, **tolerance):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def make_batches(loaded):
  """As the loop has them."""
  return TrainBatches(
    loaded.splits['train'],
    16,
    0,
    loaded.bucket_lengths,
    num_members=COUNT,
  )


def of_one(settings):
  """The settings of one model."""
  model = dataclasses.replace(settings.model, num_members=1)
  return dataclasses.replace(settings, model=model)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Workdir and result of a run to the end."""
  path = tmp_path_factory.mktemp('members') / 'run'
  return path, run_lib.run(make_config(), str(path), Signals())


def test_members_train_as_they_would_alone():
  config = make_config()
  # Adam would make steps out of rounding, where a gradient is zero.
  config.optimizer.name = 'sgd'
  config.optimizer.learning_rate = 0.1
  settings = from_config(config)
  loaded = loading.load(settings.data, '')
  batches = make_batches(loaded)
  all_of_them = compiled.make(settings, loaded.vocabulary, 2)
  one = compiled.make(of_one(settings), loaded.vocabulary, 2)
  hparams = build.hparams(settings)
  own = [hparams.replace(key=key) for key in ensembles.keys(hparams, COUNT)]
  state = all_of_them.init(hparams)
  states = [one.init(numbers) for numbers in own]
  for step in range(3):
    state, metrics = all_of_them.train_step(state, batches(step), hparams)
    found = []
    for index, (each, numbers) in enumerate(zip(states, own, strict=True)):
      batch = jax.tree.map(lambda x, i=index: x[i::COUNT], batches(step))
      found.append(one.train_step(each, batch, numbers))
    states = [each for each, _ in found]
    for name, value in metrics.items():
      mean = np.mean([other[name] for _, other in found])
      assert float(value) == pytest.approx(mean, rel=1e-5)
  assert state.step == 3
  for index, each in enumerate(states):
    picked = ensembles.pick(state.params, index, COUNT)
    close(picked, each.params, rtol=1e-4, atol=1e-5)
  first, second, _ = state.params['head']['kernel']
  assert abs(first - second).max() > 1e-3


def test_a_group_of_ensembles_trains_each_as_alone():
  config = make_config()
  trials = []
  for seed in (4, 5):
    config.seed = seed
    trials.append(from_config(config))
  loaded = loading.load(trials[0].data, '')
  batches = make_batches(loaded)
  group = compiled.make(trials[0], loaded.vocabulary, 2, num_trials=2)
  one = compiled.make(trials[0], loaded.vocabulary, 2)
  hparams = group.hparams(trials)
  _, metrics = group.train_step(group.init(hparams), batches(0), hparams)
  for index, settings in enumerate(trials):
    hparams = build.hparams(settings)
    _, alone = one.train_step(one.init(hparams), batches(0), hparams)
    for name, value in alone.items():
      assert float(metrics[name][index]) == pytest.approx(
        float(value), rel=1e-5
      )


def test_what_an_ensemble_predicts_is_the_mean_of_probabilities(trained):
  path, _ = trained
  settings, program, _, params = restore_params(str(path), 'last')
  examples = loading.load(settings.data, str(path)).splits['test']
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  one = compiled.make(of_one(settings), vocabulary, 2)
  for rows, batch in eval_batches(examples, 8, (17,)):
    losses, logits = program.eval_step(params, batch)
    each = [
      np.float64(
        one.eval_step(head_analysis.of_member(settings, index, params), batch)[
          1
        ]
      )
      for index in range(COUNT)
    ]
    mean = np.mean(scipy.special.softmax(each, axis=-1), axis=0)
    np.testing.assert_allclose(np.exp(logits), mean, rtol=1e-5)
    expected = -np.log(mean[np.arange(len(mean)), batch.labels])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert len(rows)


def test_an_ensemble_resumes_bit_for_bit(trained, tmp_path):
  whole, result = trained
  config = make_config()
  settings = from_config(config)
  loaded = loading.load(settings.data, '')
  program = compiled.make(settings, loaded.vocabulary, 2)
  path = tmp_path / 'run'
  runs = [(config.to_dict(), settings, str(path))]
  assert run_lib.run_group(runs, loaded, program, Signals(), until=5) == [None]
  (resumed,) = run_lib.run_group(runs, loaded, program, Signals())
  assert resumed | {'workdir': ''} == result | {'workdir': ''}
  ours, theirs = (
    restored(p, config, config.train.steps) for p in (path, whole)
  )
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  assert (path / 'metrics.jsonl').read_text() == (
    whole / 'metrics.jsonl'
  ).read_text()


@pytest.mark.slow
def test_commands_answer_for_all_and_look_into_one(
  trained, call_command, tmp_path
):
  path, result = trained
  code, printed, said = call_command(
    'evaluate', f'--workdir={path}', cwd=tmp_path
  )
  assert code == 0, said
  assert last_json(printed)['loss'] == pytest.approx(result['loss'], rel=1e-6)
  weights = []
  for member in (0, 2):
    folder = tmp_path / str(member)
    code, _, said = call_command(
      'inspect',
      f'--workdir={path}',
      f'--member={member}',
      '--text=the cast was weak',
      f'--output={folder}',
      cwd=tmp_path,
    )
    assert code == 0, said
    found = json.loads((folder / 'numbers.json').read_text())
    weights.append(np.array(found['attention-0']['weights']))
    page = (folder / 'index.html').read_text()
    assert f'Attention of member {member} of 3' in page
  assert abs(weights[0] - weights[1]).max() > 1e-4


def test_a_member_that_is_not_there_is_refused(trained, call_command, tmp_path):
  path, _ = trained
  for member in (-1, COUNT):
    code, _, said = call_command(
      'inspect', f'--workdir={path}', f'--member={member}', cwd=tmp_path
    )
    assert code == 2
    (line,) = said.splitlines()
    assert f'--member={member}' in line
    assert 'config.model.num_members' in line
