"""Results of a sweep do not depend on engines and interruptions."""

import functools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, last_json, make_small_config

from experiments.command import provenance
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.sweeps import engines
from experiments.training import compiled
from experiments.training import run as run_lib

pytestmark = pytest.mark.usefixtures('shared_programs')

# The small config of all tests, with fewer steps, and generators.
CONFIG = """
import sys
sys.path.insert(0, TESTS)
from conftest import make_small_config

def get_config():
  config = make_small_config()
  config.train.steps = 8
  return config

def sweep_rates():
  for rate in (1e-3, 1e-2):
    yield {'optimizer.learning_rate': rate}

def sweep_seeds():
  for seed in range(2):
    yield {'seed': seed}

def sweep_wrong():
  yield {'model.position': 'rotory'}
  yield {'model.embed_dim': 13}
  yield {'data.source': 'text', 'seed': 3}

def sweep_missing():
  yield {'data.source': 'text', 'data.dir': '/nowhere'}

def sweep_diverging():
  for rate in (1e-3, 1e30):
    yield {'optimizer.learning_rate': rate, 'optimizer.clip_norm': 0.0}
"""


@pytest.fixture(scope='module')
def config_path(tmp_path_factory):
  path = tmp_path_factory.mktemp('config') / 'small.py'
  path.write_text(CONFIG.replace('TESTS', repr(str(ROOT / 'tests'))))
  return path


@pytest.fixture(scope='module')
def arguments(config_path):
  return ['--sweep=rates,seeds', f'--config={config_path}']


def table(path):
  """results.csv without the column of seconds."""
  lines = (path / 'results.csv').read_text().splitlines()
  names = lines[0].split(',')
  drop = names.index('seconds')
  return [
    line.split(',')[:drop] + line.split(',')[drop + 1 :] for line in lines
  ]


@pytest.fixture(scope='module')
def whole(tmp_path_factory, printed_json, arguments):
  """An uninterrupted sweep."""
  path = tmp_path_factory.mktemp('whole') / 'sweep'
  flags = [f'--workdir={path}', '--engine=serial']
  return path, printed_json('sweep', *arguments, *flags)


@pytest.fixture(scope='module')
def grouped(tmp_path_factory, printed_json, arguments):
  """The same trials, trained as one group."""
  path = tmp_path_factory.mktemp('grouped') / 'sweep'
  flags = [f'--workdir={path}', '--engine=vectorized']
  printed_json('sweep', *arguments, *flags)
  return path


@pytest.fixture
def sweep(call_command):
  """Runs the command within this process: (exit code, stdout, stderr)."""
  return functools.partial(call_command, 'sweep', cwd=ROOT)


def test_a_sweep_writes_tables_and_a_workdir_per_trial(whole, call_command):
  path, result = whole
  assert result['trials'] == {'DONE': 4}
  assert [entry['n'] for entry in result['table']] == [2, 2]
  assert result['best_setting'] == result['table'][0]
  assert result['baseline'] == 'learning_rate=0.001'
  assert result['conclusion'] in (path / 'table.md').read_text()
  assert set(os.listdir(path)) == {
    'results.csv',
    'results.json',
    'sweep.json',
    'table.md',
    'trials',
  }
  rows = json.loads((path / 'results.json').read_text())['trials']
  assert len({row['name'] for row in rows}) == 4
  best = max(rows, key=lambda row: row['best/validation/accuracy'])
  assert result['best_run']['name'] == best['name']
  for row in rows:
    assert row['parameters'] > 0
    assert row['seconds'] > 0
    trial = path / 'trials' / row['name']
    done = json.loads((trial / 'status.json').read_text())['result']
    assert done['accuracy'] == row['best/test/accuracy']
    last = json.loads((trial / 'metrics.jsonl').read_text().splitlines()[-1])
    assert last['validation/loss'] == row['last/validation/loss']
  flags = [f'--workdir={trial}', '--split=test']
  _, printed, _ = call_command('evaluate', *flags, cwd=ROOT)
  assert last_json(printed)['accuracy'] == row['best/test/accuracy']


def test_a_published_table_says_command_commit_machine_and_seeds(
  whole, sweep, tmp_path
):
  path, output = tmp_path / 'sweep', tmp_path / 'results/seeds.json'
  shutil.copytree(whole[0], path)
  flags = [f'--workdir={path}', '--report', f'--output={output}']
  code, _, said = sweep(*flags)
  assert code == 0, said
  published = json.loads(output.read_text())
  (command,) = published['commands']
  assert command.startswith('experiments.sweep --sweep=rates,seeds --config=')
  assert command.endswith('--workdir=PATH --engine=serial')
  assert str(whole[0]) not in output.read_text()
  assert published['commits'] == [provenance.commit()]
  assert published['machines'] == [provenance.machine()]
  assert published['devices'] == ['cpu']
  assert published['seed'] == [0, 1]
  assert published['trials'] == {'DONE': 4}
  table = json.loads((path / 'results.json').read_text())['table']
  assert published['table'] == table
  next((path / 'trials').glob('*/env.json')).write_text('[')
  code, _, said = sweep(*flags)
  assert code == 2
  assert 'env.json is not JSON' in said.splitlines()[-1]
  assert json.loads(output.read_text()) == published


def test_a_page_of_a_sweep_has_its_tables(whole, call_command, tmp_path):
  flags = [f'--workdir={whole[0]}', f'--output={tmp_path}']
  code, stdout, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 0, stderr
  assert last_json(stdout)['files'] == ['index.html']
  text = (tmp_path / 'index.html').read_text()
  settings, trials, origin, config = re.findall(
    '<table.*?>(.*?)</table>', text, re.DOTALL
  )
  for table in (settings, trials):
    for rate in ('0.001', '0.01'):
      assert f'>learning_rate={rate}<' in table
  assert trials.count('>DONE<') == 4
  assert 'config.model.embed_dim' in config
  assert 'config.optimizer.learning_rate' not in config
  assert text.count('<figure ') == 2
  assert '4 DONE' in origin
  for link in re.findall('href="(.*?)"', trials):
    assert (tmp_path / link / 'status.json').exists()
  code, _, stderr = call_command('inspect', *flags, '--text=a', cwd=tmp_path)
  assert code == 2
  assert '--text does not apply to a sweep' in stderr


def configs(count):
  for index in range(count):
    config = make_small_config()
    config.train.steps = 100
    config.train.log_every = 5
    config.train.eval_every = 100
    config.checkpoint.every_steps = 100
    config.seed = index
    config.optimizer.learning_rate = 1e-3 * (index + 1)
    config.model.dropout_rate = 0.1 * (index + 1)
    config.optimizer.label_smoothing = 0.05 * index
    yield config


def losses(path):
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  return np.array([row['train/loss'] for row in rows])


@pytest.mark.slow
def test_a_group_equals_its_trials_alone_over_100_steps(tmp_path):
  runs = []
  for index, config in enumerate(configs(3)):
    settings = settings_lib.from_config(config)
    runs.append((config.to_dict(), settings, str(tmp_path / f'group{index}')))
  loaded = loading.load(settings.data, '')
  group = compiled.make(settings, loaded.vocabulary, loaded.label_facts, 3)
  together = run_lib.run_group(runs, loaded, group, Signals())
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  for index, (config, settings, _) in enumerate(runs):
    run = config, settings, str(tmp_path / f'alone{index}')
    (alone,) = run_lib.run_group([run], loaded, program, Signals())
    assert together[index]['accuracy'] == alone['accuracy']
    np.testing.assert_allclose(
      losses(tmp_path / f'group{index}' / 'metrics.jsonl'),
      losses(tmp_path / f'alone{index}' / 'metrics.jsonl'),
      rtol=1e-5,
    )


def test_finished_trials_are_unchanged(whole, sweep, arguments):
  path, result = whole
  files = [f for f in (path / 'trials').rglob('*') if f.is_file()]
  before = {file: file.stat().st_mtime_ns for file in files}
  flags = [*arguments, f'--workdir={path}', '--engine=serial']
  code, printed, said = sweep(*flags)
  assert code == 0, said
  assert last_json(printed) == result
  assert {f: f.stat().st_mtime_ns for f in before} == before
  _, printed, _ = sweep(f'--workdir={path}', '--report')
  assert last_json(printed) == result


def kill(command, path, rng, kills, seconds):
  """Kills a command soon after its first save, then at random moments."""
  for killed in range(kills):
    process = subprocess.Popen(
      command,
      cwd=ROOT,
      env=os.environ | {'PYTHONPATH': str(ROOT)},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    if killed:
      time.sleep(rng.uniform(*seconds))
    is_saved = False
    while not is_saved and process.poll() is None:
      is_saved = bool(list(path.glob('trials/*/checkpoints/[0-9]*')))
      time.sleep(0.05)
    if process.poll() is not None:
      assert killed, 'it ended before the first signal'
      return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
  ('engine', 'kills'),
  [
    pytest.param('serial', 1, marks=pytest.mark.slow),
    pytest.param('serial', 20, marks=pytest.mark.faults),
    pytest.param('vectorized', 20, marks=pytest.mark.faults),
  ],
)
def test_a_sweep_killed_at_random_moments_has_the_same_table(
  engine, kills, tmp_path, arguments, request, sweep
):
  path = tmp_path / 'killed'
  flags = [*arguments, f'--workdir={path}', f'--engine={engine}']
  command = [sys.executable, '-m', 'experiments.sweep', *flags]
  kill(command, path, random.Random(kills), kills, (2.0, 7.0))
  code, _, said = sweep(*flags)
  assert code == 0, said
  if engine == 'vectorized':
    assert table(path) == table(request.getfixturevalue('grouped'))
  else:
    assert table(path) == table(request.getfixturevalue('whole')[0])


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('wrong', ("'rotory' is not one of", 'trial 1 (model.embed_dim=13)',
               "config.data.dir = ''")),
    ('missing', ('trial 0', '/nowhere')),
  ],
)  # fmt: skip
def test_invalid_trials_are_all_listed_and_nothing_starts(
  name, said, tmp_path, config_path, sweep
):
  path = tmp_path / 'sweep'
  flags = [f'--config={config_path}', f'--sweep={name}', f'--workdir={path}']
  code, _, stderr = sweep(*flags)
  assert code == 2
  (line,) = stderr.splitlines()
  assert [words for words in said if words not in line] == []
  assert not path.exists()


@pytest.mark.slow
def test_a_diverging_trial_does_not_affect_its_group(
  tmp_path, config_path, sweep
):
  path = tmp_path / 'sweep'
  code, printed, said = sweep(
    f'--config={config_path}',
    '--sweep=diverging,seeds',
    f'--workdir={path}',
    '--engine=vectorized',
  )
  assert code == 0, said
  assert last_json(printed)['trials'] == {'DONE': 2, 'DIVERGED': 2}
  for row in json.loads((path / 'results.json').read_text())['trials']:
    saved = path / 'trials' / row['name'] / 'checkpoints'
    if row['status'] == 'DIVERGED':
      assert 'is nan' in row['reason'] or 'is inf' in row['reason']
      assert '8' not in os.listdir(saved)
    else:
      assert '8' in os.listdir(saved)


@pytest.mark.slow
def test_a_failing_trial_stops_no_other_and_can_be_retried(
  tmp_path, config_path, sweep
):
  path = tmp_path / 'sweep'
  config = make_small_config()
  config.train.steps = 4
  flags = [f'--config={config_path}', '--config.train.steps=4', '--sweep=seeds']
  flags += [f'--workdir={path}', '--engine=serial']
  sweep(*flags, '--trial_ids=0')
  victim = next((path / 'trials').glob('*/checkpoints')).parent
  shutil.rmtree(victim)
  # A file in place of its checkpoint folder.
  victim.mkdir()
  (victim / 'config.json').write_text(stored.as_text(config.to_dict()))
  (victim / 'checkpoints').write_text('in the way')
  code, printed, said = sweep(*flags)
  assert code == 1
  assert last_json(printed)['trials'] == {'DONE': 1, 'FAILED': 1}
  told, _, line = said.splitlines()[-1].partition('; to retry: ')
  assert told == 'failed: 1 of 2 trials'
  # That of another command is none of this one.
  assert sweep(*flags, '--trial_ids=1')[0] == 0
  (victim / 'checkpoints').unlink()
  _, printed, _ = sweep(*flags)
  assert last_json(printed)['trials'] == {'DONE': 1, 'FAILED': 1}
  program, name, *flags = shlex.split(line)[1:]
  assert (program, name) == ('scripts/run.sh', 'experiments.sweep')
  code, printed, said = sweep(*flags)
  assert code == 0, said
  assert last_json(printed)['trials'] == {'DONE': 2}


@pytest.mark.slow
def test_trials_that_all_diverge_are_no_success_and_can_be_retried(
  tmp_path, config_path, sweep
):
  flags = [f'--config={config_path}', f'--workdir={tmp_path}/sweep']
  flags += ['--grid=config.optimizer.learning_rate=1e30,1e35']
  for attempt, more in enumerate(([], ['--retry']), 1):
    code, printed, said = sweep(*flags, *more)
    assert code == 3, said
    assert said.splitlines()[-1] == 'diverged: all 2 trials'
    assert last_json(printed)['trials'] == {'DIVERGED': 2}
    statuses = list((tmp_path / 'sweep' / 'trials').glob('*/status.json'))
    attempts = [json.loads(s.read_text())['attempt'] for s in statuses]
    assert attempts == [attempt, attempt]


def test_the_last_of_several_commands_writes_the_results(
  tmp_path, config_path, sweep
):
  path = tmp_path / 'sweep'
  flags = [f'--config={config_path}', '--config.train.steps=4', '--sweep=seeds']
  flags += [f'--workdir={path}', '--engine=serial']
  code, printed, said = sweep(*flags, '--trial_ids=1')
  assert code == 0, said
  assert last_json(printed)['trials'] == {'DONE': 1, 'PENDING': 1}
  assert not (path / 'results.csv').exists()
  code, printed, said = sweep(*flags, '--trial_ids=0')
  assert code == 0, said
  assert last_json(printed)['trials'] == {'DONE': 2}
  assert last_json(printed)['best_run']
  assert (path / 'results.csv').exists()


def test_a_dry_run_prints_trials_and_programs(tmp_path, arguments, sweep):
  path = tmp_path / 'sweep'
  code, _, said = sweep(*arguments, f'--workdir={path}', '--dry_run')
  assert code == 0, said
  assert not path.exists()
  *trials, last = said.splitlines()
  assert last == '4 trials, 1 programs'
  assert 'optimizer.learning_rate=0.01, seed=1' in trials[3]


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--sweep=rate'], 'did you mean rates?'),
    ([], '--sweep or --grid is required'),
    (['--sweep=seeds', '--output='], 'is not the name of a file'),
    *(
      (['--sweep=seeds', '--group_size=2', f'--engine={engine}'], engine)
      for engine in ('serial', 'processes')
    ),
    (['--sweep=seeds', '--trial_ids=2'], '--trial_ids=2 is not the id'),
    (['--sweep=seeds', '--trial_ids='], '--trial_ids= has no id'),
    (['--sweep=seeds', '--baseline=x=1'], '--baseline=x=1 is not one of all'),
  ],
)
def test_wrong_flags_are_one_line(flags, said, tmp_path, config_path, sweep):
  path = tmp_path / 'sweep'
  code, _, stderr = sweep(
    f'--config={config_path}', f'--workdir={path}', *flags
  )
  assert code == 2
  (line,) = stderr.splitlines()
  assert said in line
  assert not path.exists()


def test_a_report_of_no_sweep_is_one_line(tmp_path, sweep):
  code, _, stderr = sweep(f'--workdir={tmp_path / "sweep"}', '--report')
  assert code == 2
  (line,) = stderr.splitlines()
  assert 'sweep.json does not exist' in line


def test_a_report_without_a_class_of_ones_own_is_the_last_one(
  tmp_path, sweep, monkeypatch
):
  def gone(_):
    raise UserError('mine of mine.py, which is gone')

  monkeypatch.setattr(stored, 'search_modules', gone)
  (tmp_path / 'results.json').write_text('{"table": [{"setting": "mine"}]}')
  (tmp_path / 'table.md').write_text('| mine | 0.5 |')
  flags = ('--report', f'--workdir={tmp_path}')
  code, stdout, stderr = sweep(*flags)
  assert (code, last_json(stdout)['table']) == (0, [{'setting': 'mine'}])
  assert 'WARNING: mine of mine.py, which is gone; this is the last' in stderr
  assert '| mine | 0.5 |' in stderr
  # Nothing can be ranked anew.
  code, _, stderr = sweep(*flags, '--metric=loss')
  assert (code, stderr) == (2, 'error: mine of mine.py, which is gone\n')


def test_a_finished_sweep_needs_no_data(
  tmp_path, whole, arguments, sweep, monkeypatch
):
  def gone(*_):
    raise UserError('the data is gone')

  monkeypatch.setattr(loading, 'load', gone)
  path = tmp_path / 'sweep'
  shutil.copytree(whole[0], path)
  workdir = f'--workdir={path}'
  flags = [*arguments, workdir, '--engine=serial']
  for given in (
    flags,
    [*flags, '--retry'],
    [workdir, '--report'],
    [*flags, '--dry_run'],
  ):
    code, printed, said = sweep(*given)
    assert code == 0, said
  parameters = json.loads((path / 'results.json').read_text())['trials'][0][
    'parameters'
  ]
  assert last_json(printed)['parameters'] == dict.fromkeys('0123', parameters)
  shutil.rmtree(next((path / 'trials').iterdir()))
  code, _, said = sweep(*flags)
  assert code == 2
  assert said.startswith('error: 1 of 1 trials are invalid')


def test_a_sweep_with_unfinished_trials_asks_to_be_run_again(
  tmp_path, arguments, sweep, monkeypatch
):
  """As when another process trains them."""
  monkeypatch.setattr(engines, 'train', lambda *_: None)
  output = f'--output={tmp_path / "table.json"}'
  flags = [f'--workdir={tmp_path / "sweep"}', '--engine=serial', output]
  code, printed, said = sweep(*arguments, *flags)
  assert code == 75
  assert f'4 of 4 trials are unfinished: results and {output} are' in said
  assert not (tmp_path / 'table.json').exists()
  assert last_json(printed)['trials'] == {'PENDING': 4}
  last = said.splitlines()[-1]
  assert last.startswith('interrupted: 4 trials are unfinished')


@pytest.mark.parametrize(
  'flag',
  [
    '--grid=config.seed=0',
    '--sweep=x',
    '--retry',
    '--trial_ids=9',
    '--dry_run',
    '--engine=serial',
    '--config.seed=3',
  ],
)
def test_a_report_refuses_what_it_would_ignore(flag, tmp_path, sweep):
  code, _, said = sweep(f'--workdir={tmp_path}', '--report', flag)
  assert code == 2
  assert '--report' in said
