"""Commands need no data that they do not use."""

import json
import operator
import os

import pytest
from conftest import ROOT, last_json, make_small_config
from test_train import arguments

pytestmark = pytest.mark.usefixtures('shared_programs')
ROWS = 'label\ttext\n' + ''.join(
  f'{label}\t{word} {number}\n'
  for number in range(20)
  for label, word in (('good', 'fine'), ('bad', 'dull'))
)


@pytest.fixture(scope='module')
def moved(tmp_path_factory):
  """A trained workdir, its command, and the new folder of its data."""
  base = tmp_path_factory.mktemp('moved')
  (base / 'then').mkdir()
  (base / 'then' / 'train.tsv').write_text(ROWS)
  config = make_small_config()
  config.data.source = 'text'
  config.data.dir = str(base / 'then')
  config.data.validation_fraction = config.data.test_fraction = 0.2
  config.model.num_layers = 1
  command = arguments(base / 'run', config)
  return base, command


@pytest.fixture(scope='module')
def trained(moved, printed_json):
  base, command = moved
  result = printed_json('train', *command)
  os.rename(base / 'then', base / 'now')
  return base, command, result


def test_a_finished_run_prints_its_result(trained, call_command):
  _, command, result = trained
  code, stdout, stderr = call_command('train', *command, cwd=ROOT)
  assert (code, last_json(stdout)) == (0, result), stderr
  assert 'WARNING: nobody knows whether the data' in stderr


def test_a_result_on_other_data_is_not_printed(trained, call_command, tmp_path):
  base, command, result = trained
  other = tmp_path / 'train.tsv'
  other.write_text(ROWS.replace('fine 3', 'fine and new'))
  flags = [flag for flag in command if '.data.dir=' not in flag]
  flags.append(f'--config.data.dir={tmp_path}')
  code, stdout, stderr = call_command('train', *flags, cwd=ROOT)
  assert (code, stdout) == (2, '')
  assert 'error: the data has changed since' in stderr
  assert 'rows as before, with other contents; restore it in config.' in stderr
  flags[-1] = f'--config.data.dir={base}/now'
  code, stdout, stderr = call_command('train', *flags, cwd=ROOT)
  assert (code, last_json(stdout)) == (0, result), stderr
  assert 'nobody knows' not in stderr
  other.unlink()
  flags[-1] = f'--config.data.dir={tmp_path}'
  code, stdout, stderr = call_command('train', *flags, cwd=ROOT)
  assert (code, last_json(stdout)) == (0, result), stderr
  assert 'nobody knows' in stderr


@pytest.mark.slow
def test_a_sweep_averages_no_results_of_other_data(call_command, tmp_path):
  data = tmp_path / 'data'
  data.mkdir()
  (data / 'train.tsv').write_text(ROWS)
  changes = {
    'data.source': 'text',
    'data.dir': data,
    'data.validation_fraction': 0.2,
    'data.test_fraction': 0.2,
    'train.steps': 1,
    'model.num_layers': 1,
  }
  flags = [f'--config.{key}={value}' for key, value in changes.items()]
  flags.append(f'--workdir={tmp_path}/sweep')
  one, two = (f'--grid=config.seed={seeds}' for seeds in ('0', '0,1'))
  code, _, stderr = call_command('sweep', *flags, one, cwd=ROOT)
  assert code == 0, stderr
  (data / 'train.tsv').write_text(ROWS.replace('fine 3', 'fine and new'))
  report = [flags[-1], '--report']
  for given in ([*flags, one], [*flags, two], report):
    code, stdout, stderr = call_command('sweep', *given, cwd=ROOT)
    assert (code, stdout) == (2, ''), given
    assert 'error: the data has changed since' in stderr
  assert len(list((tmp_path / 'sweep' / 'trials').iterdir())) == 1


def test_texts_are_predicted(trained, call_command):
  base, _, _ = trained
  code, stdout, stderr = call_command(
    'predict', f'--workdir={base}/run', '--text=fine 3', cwd=ROOT
  )
  assert code == 0, stderr
  assert last_json(stdout)['count'] == 1


def test_evaluation_needs_its_split(trained, call_command):
  base, _, result = trained
  flags = [f'--workdir={base}/run']
  code, _, stderr = call_command('evaluate', *flags, cwd=ROOT)
  assert code == 2
  assert stderr.startswith("error: config.data.dir = '")
  assert 'is not a folder; if it has moved, give --data_dir' in stderr
  flags.append(f'--data_dir={base}/now')
  code, stdout, stderr = call_command('evaluate', *flags, cwd=ROOT)
  assert code == 0, stderr
  assert last_json(stdout)['accuracy'] == result['accuracy']


NEW = 'text\tid\tlabel\nfine 3\t1\tgood\nfine\t2\tbad\ndull 9\t3\tbad\n'


def test_another_file_is_evaluated_without_the_data_of_the_run(
  trained, call_command, tmp_path
):
  """With the columns of the run, whatever their order."""
  base, _, _ = trained
  run, file = f'--workdir={base}/run', tmp_path / 'new.tsv'
  file.write_text(NEW)
  texts = ['--text=fine 3', '--text=fine', '--text=dull 9', '--json']
  _, stdout, _ = call_command('predict', run, *texts, cwd=ROOT)
  predicted = [json.loads(line)['prediction'] for line in stdout.splitlines()]
  labels = ['good', 'bad', 'bad']
  hits = sum(map(operator.eq, predicted, labels))
  code, stdout, stderr = call_command(
    'evaluate', run, f'--file={file}', cwd=ROOT
  )
  assert code == 0, stderr
  scores = last_json(stdout)
  assert (scores['file'], scores['count']) == (str(file), 3)
  assert scores['accuracy'] == pytest.approx(hits / 3)
