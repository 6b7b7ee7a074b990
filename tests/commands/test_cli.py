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


def write(folder, name, text):
  path = folder / name
  path.write_text(text)
  return path


def text_flags(folder, *more):
  return (f'--config.data.dir={folder}', '--config.data.source=text', *more)


def cases(tmp):
  """Name: (command, arguments, words of the error line)."""
  for name, text in {
    'short_row': GOOD_TSV + 'no label here\n',
    'long_row': GOOD_TSV + 'too\tmany\tfields\n',
    'no_column': GOOD_TSV.replace('label', 'class'),
    'good': GOOD_TSV,
    'unseen': GOOD_TSV.replace('\t0', '\t7'),
    'one_class': GOOD_TSV.replace('\t0', '\t1'),
    'header_only': 'text\tlabel\n',
  }.items():
    (tmp / name).mkdir()
    write(tmp / name, 'train.tsv', text)
    write(tmp / name, 'test.tsv', GOOD_TSV)
  tests = "--config.data.text.test=('test.tsv',)"
  (tmp / 'used').mkdir()
  write(tmp / 'used', 'notes.txt', 'not a run')
  bad_config = write(tmp, 'bad.py', 'def get_config():\n  return nothing\n')
  importing = write(tmp, 'importing.py', 'import no_such_module\n')
  corrupt = tmp / 'corrupt'
  corrupt.mkdir()
  write(corrupt, 'config.json', '{"seed": 0')
  return {
    'method': (
      'train',
      ['--config.model.position=sinusoidl'],
      ['config.model.position', 'sinusoidl', 'did you mean sinusoidal?'],
    ),
    'key': (
      'train',
      ['--config.modle.pool=max'],
      ['--config.modle.pool', 'did you mean model.pool?'],
    ),
    'section': ('train', ['--config.model=3'], ['is a section']),
    'flag': ('train', ['--workdri=x'], ['workdri', 'workdir']),
    'type': (
      'train',
      ['--config.train.steps=1e3'],
      ['--config.train.steps=1e3', 'int', '2000'],
    ),
    'bool': (
      'train',
      ['--config.data.text.header=maybe'],
      ['header=maybe', 'True or False'],
    ),
    'heads': (
      'train',
      ['--config.model.num_heads=5'],
      ['config.model.embed_dim', 'config.model.num_heads', 'try 60 or 65'],
    ),
    'argument': ('train', ['max'], ["unexpected argument 'max'"]),
    'config file': ('train', ['--config=no.py'], ['--config=no.py']),
    'config code': (
      'train',
      [f'--config={bad_config}'],
      ['bad.py line 2', 'nothing'],
    ),
    'argument of a config': (
      'train',
      [f'--config={bad_config}:large'],
      ["takes no argument such as 'large'", '--config.KEY=VALUE'],
    ),
    'module of a config': (
      'train',
      [f'--config={importing}'],
      ['importing.py line 1', "No module named 'no_such_module'"],
    ),
    'unset workdir': ('train', ['--workdir='], ['--workdir is empty']),
    'home': (
      'evaluate',
      ['--workdir=~/no/run'],
      [os.path.expanduser('~/no/run/config.json')],
    ),
    'no data folder': (
      'train',
      ['--config.data.source=text'],
      ['config.data.dir'],
    ),
    'missing folder': (
      'train',
      text_flags(tmp / 'nowhere'),
      ['config.data.dir', 'nowhere'],
    ),
    'missing file': (
      'train',
      text_flags(tmp / 'good', "--config.data.text.test=('dev.tsv',)"),
      ['config.data.text.test', 'dev.tsv'],
    ),
    'short row': (
      'train',
      text_flags(tmp / 'short_row', tests),
      ['train.tsv row 19'],
    ),
    'long row': (
      'train',
      text_flags(tmp / 'long_row', tests),
      ['train.tsv', 'row 19'],
    ),
    'no column': (
      'train',
      text_flags(tmp / 'no_column', tests),
      ['train.tsv', "no column 'label'", 'label_column'],
    ),
    'unseen label': (
      'train',
      text_flags(tmp / 'unseen', tests),
      ['test.tsv row 2', "label '0'", 'test texts'],
    ),
    'one class': (
      'train',
      text_flags(tmp / 'one_class', tests),
      ['is not one of'],
    ),
    'no rows': (
      'train',
      text_flags(tmp / 'header_only', tests),
      ['train split is empty'],
    ),
    'decay': (
      'train',
      [
        '--config.optimizer.weight_decay_names=kernels',
        '--config.data.source=word_order(train_pairs=40)',
      ],
      [
        'config.optimizer.weight_decay_names',
        "'kernels'",
        'did you mean kernel?',
      ],
    ),
    'no test split': (
      'train',
      text_flags(tmp / 'good'),
      ['test split is empty', 'config.data.test_fraction'],
    ),
    'not a workdir': (
      'train',
      [f'--workdir={tmp / "used"}'],
      ['holds files but no run'],
    ),
    'corrupt config': (
      'evaluate',
      [f'--workdir={corrupt}'],
      ['config.json is not JSON'],
    ),
    'no workdir': ('evaluate', [], ['--workdir is required']),
    'empty workdir': (
      'evaluate',
      [f'--workdir={tmp / "nothing"}'],
      ['config.json does not exist'],
    ),
    'split': (
      'evaluate',
      ['--workdir=x', '--split=dev'],
      ['--split=dev', 'train', 'validation', 'test'],
    ),
    'predict nothing': ('predict', ['--text=x'], ['--workdir is required']),
    'two sources': (
      'predict',
      ['--workdir=x', '--text=a', '--input=b'],
      ['exclude one another'],
    ),
  }


NAMES = (
  'method', 'key', 'section', 'flag', 'type', 'bool', 'heads', 'argument',
  'config file', 'config code', 'argument of a config',
  'module of a config', 'unset workdir', 'home', 'no data folder',
  'missing folder',
  'missing file', 'short row', 'long row', 'no column', 'unseen label',
  'one class', 'no rows', 'decay', 'no test split', 'not a workdir',
  'corrupt config', 'no workdir', 'empty workdir', 'split', 'predict nothing',
  'two sources',
)  # fmt: skip


@pytest.fixture(scope='module')
def table(tmp_path_factory):
  """The cases, and the folder of their files."""
  tmp = tmp_path_factory.mktemp('cases')
  found = cases(tmp)
  assert tuple(found) == NAMES
  return found, tmp


def assert_refused(code, stdout, stderr, wanted):
  assert code == 2, stderr
  assert stdout == ''
  (line,) = stderr.strip().splitlines()
  assert line.startswith('error: ')
  for part in wanted:
    assert part in line


@pytest.mark.parametrize('name', NAMES)
def test_wrong_input_is_one_line_and_exit_code_2(
  name, table, tmp_path, call_command
):
  found, folder = table
  command, arguments, wanted = found[name]
  before = {p: p.stat().st_mtime_ns for p in folder.rglob('*') if p.is_file()}
  assert_refused(*call_command(command, *arguments, cwd=tmp_path), wanted)
  assert list(tmp_path.rglob('*')) == []
  after = {p: p.stat().st_mtime_ns for p in folder.rglob('*') if p.is_file()}
  assert before == after


def test_help_needs_no_docstrings(call_command, monkeypatch, tmp_path):
  """As with PYTHONOPTIMIZE=2."""
  monkeypatch.setattr(doctor, '__doc__', None)
  code, stdout, stderr = call_command('doctor', '--help', cwd=tmp_path)
  assert (code, stderr) == (0, '')
  assert stdout


def test_the_installed_command_prints_the_same_line(
  table, tmp_path, run_command
):
  command, arguments, wanted = table[0]['short row']
  done = run_command(command, *arguments, cwd=tmp_path)
  assert_refused(done.returncode, done.stdout, done.stderr, wanted)
  assert list(tmp_path.rglob('*')) == []


@pytest.mark.parametrize(
  ('command', 'name', 'words'),
  [
    ('train', 'workdir', ['--workdir=a', '--workdir', 'b']),
    ('train', 'config', ['--config=configs/trec.py', '-config=configs/mr.py']),
    ('train', 'config.seed', ['--config.seed=1', '--config.seed=1']),
    (
      'train',
      'config.data.text.labels',
      ['--config.data.text.labels=a', '--config.data.text.labels=b,c'],
    ),
    ('sweep', 'dry_run', ['--dry_run', '--nodry_run']),
    ('sweep', 'sweep', ['--sweep=seeds', '--sweep=positions']),
    ('benchmark', 'lengths', ['--lengths=8', '--lengths=16']),
  ],
)
def test_a_flag_of_one_value_is_not_repeated(
  command, name, words, call_command
):
  said = [f'--{name} is given 2 times']
  assert_refused(*call_command(command, *words, cwd=ROOT), said)


@pytest.mark.parametrize(
  ('flags', 'shown'),
  [
    (['--config.data.text.labels=good,bad'], "['good', 'bad']"),
    (['--config.data.text.labels="a=x,y",b'], "['x,y', 'b']"),
  ],
)
def test_a_tuple_is_parsed_as_values_of_a_grid_are(
  flags, shown, tmp_path, call_command
):
  write(tmp_path, 'train.tsv', GOOD_TSV)
  arguments = text_flags(tmp_path, '--config.data.text.test=train.tsv', *flags)
  code, _, stderr = call_command('train', *arguments, cwd=tmp_path)
  assert code == 2
  assert f'is not one of {shown}' in stderr


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
  _, stdout, stderr = trained
  (line,) = stdout.splitlines()
  assert json.loads(line)['split'] == 'test'
  assert 'step 6/6' in stderr
  assert len(stderr.splitlines()) < 40


def test_a_workdir_of_another_config_is_refused(trained, call_command):
  path, *_ = trained
  flags = [f'--workdir={path}', '--config.seed=5']
  code, _, stderr = call_command('train', *flags, cwd=ROOT)
  assert code == 2
  (line,) = stderr.splitlines()
  for part in ('config.seed was 0, is 5', str(path), '--workdir'):
    assert part in line


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


def test_predict_reads_flags_and_files(trained, call_command, tmp_path):
  path, *_ = trained
  texts = ['the plot was dull but the cast was fine', 'zzz', '']
  file = write(tmp_path, 'texts', '\n'.join(texts) + '\n')
  flags = [f'--text={text}' for text in texts]
  command = ['predict', f'--workdir={path}', '--json']
  code, stdout, stderr = call_command(*command, *flags, cwd=ROOT)
  assert code == 0, stderr
  assert call_command(*command, f'--input={file}', cwd=ROOT)[1] == stdout
  rows = [json.loads(line) for line in stdout.splitlines()]
  assert [row['text'] for row in rows] == texts
  empty = {'text': '', 'prediction': None, 'probabilities': None}
  assert rows.pop() == empty
  for row in rows:
    assert sum(row['probabilities'].values()) == pytest.approx(1)
    best = max(row['probabilities'], key=row['probabilities'].get)
    assert row['prediction'] == best


def test_the_command_of_each_attempt_can_be_typed_again(trained):
  path, *_ = trained
  (attempt,) = json.loads((path / 'env.json').read_text())
  assert attempt['command'][0] == 'experiments.train'
  assert f'--workdir={path}' in attempt['command']
  assert '--config.train.steps=6' in attempt['command']
