"""The real command line: wrong input is one line and exit code 2."""

import contextlib
import io
import json
import os

import pytest
from conftest import ROOT, exit_code, last_json

from experiments import doctor

GOOD_TSV = 'text\tlabel\n' + ''.join(
  f'good film {n}\t1\nbad film {n}\t0\n' for n in range(9)
)


# Name: command, arguments, words of the error line. FILES is a folder.
CASES = {
  'key': (
    'train', ['--config.modle.pool=max'],
    ['--config.modle.pool', 'did you mean model.pool?'],
  ),
  'section': ('train', ['--config.model=3'], ['is a section']),
  'flag': ('train', ['--workdri=x'], ['did you mean workdir?']),
  'end of a key': ('train', ['--steps=9'], ['mean config.train.steps?']),
  'type': (
    'train', ['--config.train.steps=1e3'],
    ['--config.train.steps=1e3', 'int', '2000'],
  ),
  'bool': (
    'train', ['--config.train.shuffle_by_seed=maybe'],
    ['shuffle_by_seed=maybe', 'True or False'],
  ),
  'config file': ('train', ['--config=no.py'], ['--config=no.py']),
  'config code': (
    'train', ['--config=FILES/bad.py'], ['bad.py line 2', 'nothing'],
  ),
  'unset workdir': ('train', ['--workdir='], ['--workdir is empty']),
  'home': (
    'evaluate', ['--workdir=~/no/run'],
    [os.path.expanduser('~/no/run/config.json')],
  ),
  'no data folder': (
    'train', ['--config.data.source=text'], ['config.data.dir'],
  ),
  'short row': (
    'train',
    [
      '--config.data.source=text', '--config.data.dir=FILES',
      "--config.data.text.test=('train.tsv',)",
    ],
    ['train.tsv row 19'],
  ),
  'not a workdir': (
    'train', ['--workdir=FILES'], ['holds files but no run'],
  ),
  'another engine': (
    'sweep',
    ['--workdir=no', '--grid=config.seed=0,1', '--ray_resources=CPU=4'],
    ['--ray_resources is for --engine=ray'],
  ),
  'the default of a key beside a workdir': (
    'inspect', ['--workdir=x', '--config.seed=0'],
    ['--workdir=x has its own config; drop --config'],
  ),
  'a config beside a workdir': (
    'inspect', ['--workdir=x', '--config=configs/default.py'],
    ['--workdir=x has its own config; drop --config'],
  ),
  'no workdir': ('evaluate', [], ['--workdir is required']),
  'weights of a label that there is not': (
    'train',
    ['--workdir=x', "--config.task=classify(class_weights='c=0,a=1')"],
    ['config.task', "'c' is not one of"],
  ),
  'split': (
    'evaluate', ['--workdir=x', '--split=dev'],
    ['--split=dev', 'train', 'validation', 'test'],
  ),
  # A flag of one value that is repeated.
  **{
    f'repeated {name}': (command, words, [f'--{name} is given 2 times'])
    for command, name, words in (
      ('train', 'workdir', ['--workdir=a', '--workdir', 'b']),
      ('train', 'config', ['--config=configs/mr.py', '-config=configs/r8.py']),
      ('train', 'config.seed', ['--config.seed=1', '--config.seed=1']),
      ('sweep', 'dry_run', ['--dry_run', '--nodry_run']),
      ('sweep', 'sweep', ['--sweep=seeds', '--sweep=positions']),
    )
  },
}  # fmt: skip
FILES = {
  'train.tsv': GOOD_TSV + 'no label here\n',
  'bad.py': 'def get_config():\n  return nothing\n',
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """That of the files."""
  path = tmp_path_factory.mktemp('cases')
  for name, text in FILES.items():
    (path / name).write_text(text)
  return path


def case(name, folder):
  command, words, said = CASES[name]
  return command, [w.replace('FILES', str(folder)) for w in words], said


def assert_refused(code, stdout, stderr, said):
  assert code == 2, stderr
  assert stdout == ''
  (line,) = stderr.strip().splitlines()
  assert line.startswith('error: ')
  for part in said:
    assert part in line


@pytest.mark.parametrize('name', CASES)
def test_wrong_input_is_one_line_and_exit_code_2(
  name, folder, tmp_path, call_command
):
  command, words, said = case(name, folder)
  before = {p: p.stat().st_mtime_ns for p in folder.rglob('*') if p.is_file()}
  assert_refused(*call_command(command, *words, cwd=tmp_path), said)
  assert not any(path.is_file() for path in tmp_path.rglob('*'))
  after = {p: p.stat().st_mtime_ns for p in folder.rglob('*') if p.is_file()}
  assert before == after


def test_help_needs_no_docstrings(call_command, monkeypatch, tmp_path):
  """As with PYTHONOPTIMIZE=2."""
  monkeypatch.setattr(doctor, '__doc__', None)
  code, stdout, stderr = call_command('doctor', '--help', cwd=tmp_path)
  assert (code, stderr) == (0, '')
  assert stdout


def test_the_installed_command_prints_the_same_line(
  folder, tmp_path, run_command
):
  command, words, said = case('short row', folder)
  done = run_command(command, *words, cwd=tmp_path)
  assert_refused(done.returncode, done.stdout, done.stderr, said)


def test_help_lists_flags_first_and_every_key(call_command):
  code, stdout, _ = call_command('train', '--help', cwd=ROOT)
  assert code == 0
  lines = stdout.splitlines()
  flags = [line.strip() for line in lines if line.startswith('  --')]
  assert flags[0].startswith('--config:')
  assert any(flag.startswith('--workdir:') for flag in flags[:4])
  # Each with its meaning, and lists as they are typed.
  assert '--config.model.num_layers=2: layers of the encoder' in flags
  assert any(
    flag.startswith('--config.optimizer.weight_decay_names=kernel: ')
    for flag in flags
  )
  # Two screens: options of entries are those of --help=NAME.
  assert len(flags) == len(set(flags)) < 90
  assert not any('alsologtostderr' in flag for flag in flags)  # absl's own


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A small trained workdir, and what its training printed."""
  path = tmp_path_factory.mktemp('trained') / 'run'
  flags = [
    f'--workdir={path}',
    '--config.data.source=word_order(train_pairs=40, validation_pairs=10,'
    ' test_pairs=12)',
    '--config.data.num_buckets=1',
    '--config.model.num_layers=1',
    '--config.model.embed_dim=12',
    '--config.train.steps=6',
    '--config.train.eval_every=3',
    '--config.optimizer.warmup_steps=2',
  ]
  with (
    contextlib.redirect_stdout(io.StringIO()) as stdout,
    contextlib.redirect_stderr(io.StringIO()) as stderr,
  ):
    assert exit_code('train', *flags, cwd=ROOT) == 0
  return path, stdout.getvalue(), stderr.getvalue()


def test_training_logs_and_ends_with_json(trained):
  path, stdout, stderr = trained
  (line,) = stdout.splitlines()
  assert json.loads(line)['split'] == 'test'
  assert 'step 6/6' in stderr
  assert len(stderr.splitlines()) < 40
  assert f' experiments.export --workdir={path} ' in stderr.splitlines()[-1]
  (attempt,) = json.loads((path / 'env.json').read_text())
  name, *words = attempt['command']
  assert name == 'experiments.train'
  assert {f'--workdir={path}', '--config.train.steps=6'} <= set(words)


def test_evaluate_agrees_with_training(trained, call_command):
  path, printed, _ = trained
  printed = last_json(printed)
  code, stdout, stderr = call_command('evaluate', f'--workdir={path}', cwd=ROOT)
  assert code == 0, stderr
  result = last_json(stdout)
  assert result['count'] == 24
  for name in ('accuracy', 'loss', 'macro_f1', 'step'):
    assert result[name] == pytest.approx(printed[name], rel=1e-6)
  assert sum(map(sum, result['confusion'])) == 24
  assert 'precision' in stderr


def test_evaluate_reads_any_split_and_checkpoint(trained, call_command):
  flags = [f'--workdir={trained[0]}', '--split=train', '--checkpoint=last']
  _, stdout, _ = call_command('evaluate', *flags, cwd=ROOT)
  result = last_json(stdout)
  assert (result['split'], result['count'], result['step']) == ('train', 80, 6)
  flags[2] = '--checkpoint=5'
  code, _, stderr = call_command('evaluate', *flags, cwd=ROOT)
  assert code == 2
  assert 'checkpoint' in stderr
