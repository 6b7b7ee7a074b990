"""An ensemble is its runs, whose probabilities are averaged."""

import json
import shutil

import numpy as np
import pytest
import scipy.special
from conftest import make_small_config

from experiments import predict
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.training import compiled, ensembles, evaluation
from experiments.training import run as run_lib

pytestmark = pytest.mark.usefixtures('shared_programs')
TEXTS = ['the plot was dull but the cast fine', '', 'the cast was dull']


@pytest.fixture(scope='module')
def paths(tmp_path_factory, shared_programs):
  """Workdirs of two seeds, each with its own order of examples."""
  del shared_programs
  folder = tmp_path_factory.mktemp('ensemble')
  found = []
  for seed in (0, 1):
    config = make_small_config()
    config.train.steps = config.train.eval_every = 4
    config.optimizer.learning_rate = 0.01
    config.seed = seed
    config.train.shuffle_by_seed = True
    found.append(str(folder / f'seed{seed}'))
    run_lib.run(config, found[-1], Signals())
  return found


def outputs(path):
  """Losses and logits on test, and the labels."""
  run = evaluation.restore_params(path, 'best')
  loaded = evaluation.load_data(run.settings, path, None)
  examples = loaded.splits['test']
  found = evaluation.evaluate(
    run.program, run.params, examples, 8, loaded.bucket_lengths
  )
  return *found, examples.labels


def test_a_prediction_is_the_mean_of_those_of_the_runs(paths):
  together = predict.load(paths)(TEXTS)
  of_runs = [predict.load(path)(TEXTS) for path in paths]
  assert together[1] == of_runs[0][1]
  for answer, *alone in zip(together, *of_runs, strict=True):
    if answer.label is not None:
      each = [list(one.probabilities.values()) for one in alone]
      mean = np.mean(each, axis=0)
      assert abs(each[0][0] - each[1][0]) > 1e-3
      np.testing.assert_allclose(
        list(answer.probabilities.values()), mean, rtol=1e-6
      )
      assert answer.label == list(answer.probabilities)[mean.argmax()]


def test_scores_are_of_the_mean_of_softmaxes(paths, printed_json):
  result = printed_json('evaluate', f'--workdir={",".join(paths)}')
  of_runs = [outputs(path) for path in paths]
  labels = of_runs[0][-1]
  each = [scipy.special.softmax(logits, axis=-1) for _, logits, _ in of_runs]
  mean = np.mean(each, axis=0)
  loss = -np.log(mean[np.arange(len(labels)), labels]).mean()
  assert result['loss'] == pytest.approx(loss, rel=1e-6)
  assert result['accuracy'] == (mean.argmax(axis=-1) == labels).mean()
  assert [of_run['accuracy'] for of_run in result['of_runs']] == [
    (one.argmax(axis=-1) == labels).mean() for one in each
  ]
  assert result['steps'] == [4, 4]


def changed(path, target, name, change):
  """A copy of a run with a JSON file of it changed."""
  shutil.copytree(path, target)
  content = json.loads((target / name).read_text())
  change(content)
  (target / name).write_text(json.dumps(content))
  return str(target)


@pytest.mark.parametrize(
  ('name', 'change', 'what'),
  [
    ('data.json', lambda facts: facts['labels'].reverse(), 'labels'),
    ('data.json', lambda facts: facts.update(fingerprint=''), 'data'),
    (
      'tokenizer.json',
      lambda tokens: tokens['model']['vocab'].update(new=9999),
      'vocabulary',
    ),
    (
      'config.json',
      lambda config: config['data'].update(max_length=9),
      'config.data.max_length',
    ),
  ],
)
def test_runs_that_differ_are_refused_in_one_line(
  name, change, what, paths, tmp_path, call_command
):
  other = changed(paths[0], tmp_path / 'other', name, change)
  workdir = f'--workdir={paths[1]},{other}'
  code, _, said = call_command('evaluate', workdir, cwd=tmp_path)
  assert code == 2
  (line,) = said.splitlines()
  assert all(text in line for text in (paths[1], other, what))
  if what == 'data':
    # Folds of one data set may predict together.
    predict.load([paths[1], other])
  else:
    with pytest.raises(UserError, match=what):
      predict.load([paths[1], other])


def test_runs_that_predict_tokens_are_no_ensemble(paths, tmp_path):
  def change(config):
    config['task'] = 'next_token'
    config['model']['encoder'] = 'attention(causal=True)'

  other = changed(paths[0], tmp_path / 'other', 'config.json', change)
  ensembles.check([other])
  with pytest.raises(UserError, match='next_token'):
    ensembles.check([other, other])


def test_runs_that_can_share_a_program_do(paths, monkeypatch):
  make, made = compiled.make, []

  def counted(*arguments):
    made.append(arguments)
    return make(*arguments)

  monkeypatch.setattr(compiled, 'make', counted)
  runs = list(ensembles.restored(paths, 'best'))
  assert [run.settings.seed for run in runs] == [0, 1]
  assert len(made) == 1
