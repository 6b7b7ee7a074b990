"""experiments.predict with pipes, signals, large input, and bad input."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import jax
import pytest
from conftest import ROOT

ENVIRONMENT = os.environ | {'PYTHONPATH': str(ROOT)}
TEXTS = ['the plot was dull', '', *['the cast was fine'] * 39, 'fine ' * 65]


@pytest.fixture(scope='module')
def run(finished_run):
  return f'--workdir={finished_run}'


@pytest.fixture
def command(run):
  return [sys.executable, '-m', 'experiments.predict', run]


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'texts'
  path.write_text('\n'.join(TEXTS) + '\n')
  return path


@pytest.fixture
def started(command):
  """Starts the command with pipes; ends it after the test."""
  processes = []

  def start(*more):
    pipes = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.PIPE)
    processes.append(
      subprocess.Popen(
        [*command, *more], cwd=ROOT, env=ENVIRONMENT, text=True, **pipes
      )
    )
    return processes[-1]

  yield start
  for process in processes:
    process.kill()
    process.communicate()


def test_a_pipe_has_its_results_at_once_and_a_signal_ends_the_wait(started):
  process = started('--json')
  for text in ('fine', 'dull'):
    process.stdin.write(f'{text}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())['text'] == text
  process.send_signal(signal.SIGTERM)
  _, stderr = process.communicate(timeout=60)
  assert process.returncode == 75, stderr
  assert 'Traceback' not in stderr


@pytest.mark.slow
def test_a_reader_may_close_the_pipe(command, tmp_path):
  """Also in a locale that is not UTF-8."""
  path = tmp_path / 'texts'
  path.write_text('é € 😀\n' + 'the plot was dull\n' * 40_000)
  words = shlex.join([*command, f'--input={path}', '--json'])
  script = f'{words} | head -n 1; echo "${{PIPESTATUS[0]}}"'
  done = subprocess.run(
    ['bash', '-c', script],
    cwd=ROOT,
    env=ENVIRONMENT | {'PYTHONIOENCODING': 'latin-1'},
    capture_output=True,
    timeout=120,
    check=False,
  )
  first, code = done.stdout.decode('latin-1').splitlines()
  assert 'é \\u20ac' in first
  assert json.loads(first)['text'] == 'é € 😀'
  assert (code, done.stderr) == ('0', b'')


def test_each_text_has_a_line_in_order_and_the_last_one_is_json(
  run, file, call_command
):
  code, stdout, stderr = call_command(
    'predict', run, f'--input={file}', '--batch_size=1', cwd=ROOT
  )
  assert code == 0, stderr
  *lines, last = stdout.splitlines()
  assert [line.split('\t')[2] for line in lines] == [t.strip() for t in TEXTS]
  assert lines[1].startswith('(empty)\t')
  assert json.loads(last)['count'] == len(TEXTS)
  empty, truncated = stderr.splitlines()
  assert '1 of 42 texts are empty' in empty
  assert '1 of 42 texts are truncated to 64 tokens' in truncated


# `spans` is a key of answers of other tasks.
TABLE = (
  'id,text,spans\n07,"the plot, dull",x\n\n08,,y\n09,the cast was fine,z\n'
)


def test_an_answer_stands_beside_all_columns_of_its_row(
  run, call_command, tmp_path
):
  (tmp_path / 'a.csv').write_text(TABLE)
  (tmp_path / 'a.jsonl').write_text(
    '{"id": "07", "text": "the plot, dull", "spans": "x"}\n\n'
    '{"id": "08", "text": "", "spans": "y"}\n'
    '{"id": "09", "text": "the cast was fine", "spans": "z"}\n'
  )
  printed = []
  for name in ('a.csv', 'a.jsonl'):
    flags = [f'--input={name}', '--json']
    code, stdout, stderr = call_command('predict', run, *flags, cwd=tmp_path)
    assert code == 0, stderr
    printed.append(stdout)
  assert printed[0] == printed[1]
  rows = [json.loads(line) for line in printed[0].splitlines()]
  assert [(row.get('id'), row.get('spans')) for row in rows] == [
    ('07', 'x'),
    (None, None),
    ('08', 'y'),
    ('09', 'z'),
  ]
  has_answer = [row['prediction'] is not None for row in rows]
  assert has_answer == [True, False, False, True]
  _, stdout, _ = call_command('predict', run, '--input=a.csv', cwd=tmp_path)
  *lines, last = stdout.splitlines()
  for row, line in zip(rows, lines, strict=True):
    assert row['prediction'] in (line.split('\t')[0], None)
    assert line.split('\t')[2:3] == ([row['id']] if 'id' in row else [])
  assert json.loads(last)['count'] == len(rows)


KEYS = '--config.data.text.'


def test_a_table_unlike_those_of_the_run_is_read_as_flags_say(
  run, call_command, tmp_path
):
  content = 'prediction;Satz\nx;"fine; fine"\n'
  (tmp_path / 'a.csv').write_bytes(content.encode('utf-16'))
  flags = ['--input=a.csv', f'{KEYS}format=csv(delimiter=semicolon)']
  flags += [f'{KEYS}text_columns=Satz', f'{KEYS}encoding=utf-16']
  code, stdout, stderr = call_command('predict', run, *flags, cwd=tmp_path)
  assert code == 0, stderr
  assert stdout.splitlines()[0].split('\t')[2:] == ['x', 'fine; fine']


@pytest.mark.parametrize(
  ('flags', 'content', 'line'),
  [
    (['--input=nowhere'], '', '--input=nowhere: No such file'),
    ([f'{KEYS}format=xml'], '', "format = 'xml' is not one of"),
    ([f'{KEYS}format=hub(name=a)'], '', 'rows to predict are of one file'),
    (['--text=a', '--input=a'], '', 'exclude one another'),
    (['--text=a', f'{KEYS}format=csv'], '', '--text and .*format exclude'),
    (
      ['--input=a.csv'],
      'id,review\n7,a\n',
      # No key that this command does not have.
      "row 1: no column 'text' .* encoding, or config.data.text.text_columns$",
    ),
    (['--input=a.csv'], 'id,text\n7,a,b\n', 'a.csv row 1: 3 fields'),
    (['--input=a.csv'], 'id,text\n7\n', 'a.csv row 1: 1 fields'),
    ([f'{KEYS}format=class_folders'], '', 'rows to predict are of one file'),
    (['--input=a.jsonl'], '{"text": 1}\n\n[]\n', 'a.jsonl row 3: not a'),
    (['--input=a.jsonl'], '{"text": [1]}\n', r"row 1: column 'text' is \[1\]"),
    (
      ['--input=a.jsonl', '--json'],
      '{"text": "", "prediction": 1}\n',
      "row 1: 'prediction' is",
    ),
  ],
)
def test_wrong_input_is_one_line(
  flags, content, line, run, call_command, tmp_path
):
  for name in ('a.csv', 'a.jsonl'):
    (tmp_path / name).write_text(content)
  code, stdout, stderr = call_command('predict', run, *flags, cwd=tmp_path)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1), stderr
  assert re.search(line, stderr)


def test_several_processes_are_refused(run, call_command, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  code, stdout, stderr = call_command('predict', run, '--text=a', cwd=ROOT)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1), stderr


def test_json_says_whether_a_text_is_truncated(run, call_command, tmp_path):
  flags = ['--json', '--text=a film', f'--text={"a film " * 33}']
  code, stdout, stderr = call_command('predict', run, *flags, cwd=tmp_path)
  assert code == 0, stderr
  rows = map(json.loads, stdout.splitlines())
  assert [row['is_truncated'] for row in rows] == [False, True]


def test_a_number_that_is_not_finite_is_null(run, call_command, tmp_path):
  (tmp_path / 'a.jsonl').write_text(
    '{"x": NaN, "y": [-Infinity], "text": "a"}\n'
  )
  flags = ['--input=a.jsonl', '--json']
  code, stdout, stderr = call_command('predict', run, *flags, cwd=tmp_path)
  assert code == 0, stderr
  row = json.loads(stdout, parse_constant=pytest.fail)
  assert (row['x'], row['y']) == (None, [None])
