"""Runs of several labels, and of numbers, from training to a page."""

import json

import numpy as np
import pytest
from conftest import make_small_config

from experiments import predict
from experiments.command.signals import Signals
from experiments.inspection import pages
from experiments.training import run as run_lib

# Each reads the runs of `paths`, which take a minute.
pytestmark = pytest.mark.slow
WORDS = ('red', 'green', 'blue', 'grey')


def write(folder, seed, count):
  rng = np.random.default_rng(seed)
  rows = ['text\tred\tblue\tnumber']
  for _ in range(count):
    words = rng.choice(WORDS, 5).tolist()
    marks = [int('red' in words), int('blue' in words)]
    cells = [' '.join(words), *marks, 100 + words.count('red')]
    rows.append('\t'.join(map(str, cells)))
  (folder / f'{seed}.tsv').write_text('\n'.join(rows))


@pytest.fixture(scope='module')
def paths(tmp_path_factory, shared_programs):
  """Workdirs of a seed of each task, and of another of several labels."""
  folder = tmp_path_factory.mktemp('texts')
  for seed, count in ((0, 400), (1, 60), (2, 60)):
    write(folder, seed, count)
  made = {'multilabel': [], 'regression': []}
  for task, of_seeds in made.items():
    for seed in range(1 + (task == 'multilabel')):
      config = make_small_config()
      config.task, config.seed = task, seed
      config.data.source, config.data.dir = 'text', str(folder)
      text = config.data.text
      text.train, text.validation, text.test = ['0.tsv'], ['1.tsv'], ['2.tsv']
      text.label_column = 'number'
      metric = 'rmse'
      if task == 'multilabel':
        text.label_columns, metric = ('red', 'blue'), 'micro_f1'
      config.checkpoint.best_metric = metric
      config.optimizer.learning_rate = 0.01
      config.train.steps = config.train.eval_every = 150
      config.train.log_every = config.checkpoint.every_steps = 150
      of_seeds.append(str(folder / f'{task}{seed}'))
      run_lib.run(config, of_seeds[-1], Signals())
  return made


@pytest.mark.parametrize('task', ['multilabel', 'regression'])
def test_evaluate_has_the_scores_of_training_and_a_baseline(
  task, paths, printed_json
):
  path = paths[task][0]
  with open(f'{path}/status.json') as file:
    trained = json.load(file)['result']
  result = printed_json('evaluate', f'--workdir={path}')
  metric = {'multilabel': 'micro_f1', 'regression': 'rmse'}[task]
  for name in trained.keys() - {'workdir', 'split'}:
    assert result[name] == pytest.approx(trained[name], rel=1e-5)
  is_better = result[metric] > result['baseline'][metric]
  assert is_better == (task == 'multilabel')


def test_predict_answers_a_set_and_its_probabilities(paths):
  several = predict.load(paths['multilabel'][0])
  both, none, empty = several(['red blue grey', 'grey green', ''])
  assert both.label == ['red', 'blue']
  assert list(both.probabilities) == ['red', 'blue']
  assert none.label == []
  assert empty.label is None


def test_predict_answers_a_number_in_the_units_of_the_data(
  paths, call_command, tmp_path
):
  where = f'--workdir={paths["regression"][0]}'
  flags = (where, '--json', '--text=red red red green', '--text=grey grey')
  code, stdout, stderr = call_command('predict', *flags, cwd=tmp_path)
  assert code == 0, stderr
  many, few = map(json.loads, stdout.splitlines())
  assert 99 < few['prediction'] < many['prediction'] < 105
  assert few['probabilities'] is None


def test_the_answer_of_several_runs_is_the_mean_of_theirs(paths):
  text = ['red blue grey']
  of_runs = [predict.load(path)(text)[0] for path in paths['multilabel']]
  (mean,) = predict.load(paths['multilabel'])(text)
  for name, probability in mean.probabilities.items():
    expected = np.mean([one.probabilities[name] for one in of_runs])
    assert probability == pytest.approx(expected)


def test_a_page_of_any_task_has_its_scores_and_predictions(
  paths, printed_json, tmp_path
):
  path, text = paths['regression'][0], 'red red red green'
  flags = (f'--workdir={path}', f'--output={tmp_path}')
  printed_json('inspect', *flags, '--num_examples=5', f'--text={text}')
  result = printed_json('evaluate', flags[0], '--split=validation')
  page = (tmp_path / 'index.html').read_text()
  assert f'{result["loss"]:.{pages.decimals([result["loss"]])}f}' in page
  (of_text,) = predict.load(path)([text])
  assert f'"predicted: {of_text.label:.4f}"' in page


def test_what_was_fitted_is_used_unless_told_not_to(paths, printed_json):
  path = paths['multilabel'][0]
  with open(f'{path}/calibration.json') as file:
    fit = json.load(file)
  assert fit['step'] == 150
  where = f'--workdir={path}'
  fitted = printed_json('evaluate', where)
  plain = printed_json('evaluate', where, '--nocalibrated')
  assert fitted['temperatures'] == [fit['temperature']]
  assert fitted['loss'] == plain['loss']
  assert fitted['calibration']['before'] == plain['calibration']['before']
  assert plain['calibration']['after'] == plain['calibration']['before']
  assert fitted['calibration']['after'] != plain['calibration']['after']
  text = ['red grey grey']
  (calibrated,) = predict.load(path)(text)
  (raw,) = predict.load(path, calibrated=False)(text)
  logits = [
    np.log(p / (1 - p))
    for p in (calibrated.probabilities['red'], raw.probabilities['red'])
  ]
  assert logits[1] / logits[0] == pytest.approx(fit['temperature'], rel=1e-4)
