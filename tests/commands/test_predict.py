"""experiments.predict with pipes, large input, bad input and --output."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import ROOT, last_json
from pyarrow import parquet

from experiments import predict

ENVIRONMENT = os.environ | {'PYTHONPATH': str(ROOT)}
TEXTS = ['the plot was dull', '', *['the cast was fine'] * 39, 'fine ' * 65]


@pytest.fixture(scope='module')
def command(finished_run):
  module = 'experiments.predict'
  return [sys.executable, '-m', module, f'--workdir={finished_run}']


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


def test_a_pipe_has_its_first_results_before_its_end(started):
  process = started('--json')
  for text in ('fine', 'dull'):
    process.stdin.write(f'{text}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())['text'] == text
  stdout, stderr = process.communicate(timeout=60)
  assert (process.returncode, stdout, stderr) == (0, '', '')


def test_ctrl_c_is_said_and_leaves_no_file(started, tmp_path):
  process = started(f'--output={tmp_path}/new/found.jsonl')
  process.stdin.write('fine\n')
  process.stdin.flush()
  while not list(tmp_path.glob('new/*.tmp-*')):
    assert process.poll() is None
  process.send_signal(signal.SIGINT)
  _, stderr = process.communicate(timeout=60)
  assert process.returncode == 75
  # While it waits for texts; before it, or while it computes.
  assert stderr.removeprefix('received SIGINT: stopping\n') in (
    'interrupted: SIGINT; nothing to save\n',
    'interrupted: SIGINT\n',
  )
  assert os.listdir(tmp_path / 'new') == []


@pytest.mark.parametrize('name', ['SIGTERM', 'SIGINT'])
@pytest.mark.parametrize('more', ['attention', 'distributed', 'file'])
def test_a_signal_ends_predict_while_it_waits(started, tmp_path, name, more):
  """For a text to draw, for other processes, for a writer of a pipe."""
  os.mkfifo(tmp_path / 'pipe')
  given = {
    'attention': [f'--attention={tmp_path}/map.png'],
    'distributed': [
      '--text=fine',
      '--distributed=on',
      '--num_processes=2',
      '--process_id=0',
      '--coordinator_address=127.0.0.1:0',
    ],
    'file': [f'--file={tmp_path}/pipe'],
  }[more]
  if more == 'distributed':
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      given[-1] = f'--coordinator_address=127.0.0.1:{free.getsockname()[1]}'
  process = started(*given)
  # It has started when Python has replaced the handler of signals.
  number = signal.Signals[name]
  while not catches(process.pid, number):
    assert process.poll() is None
  time.sleep(1)
  process.send_signal(number)
  _, stderr = process.communicate(timeout=60)
  assert process.returncode == 75, stderr
  assert stderr.endswith(f'interrupted: {name}; nothing to save\n'), stderr
  assert 'Traceback' not in stderr


def catches(pid, number):
  with open(f'/proc/{pid}/status') as file:
    (mask,) = [line for line in file if line.startswith('SigCgt')]
  # Python itself catches SIGINT, so SIGTERM says when all are.
  return int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize('more', [[], ['--json']])
def test_a_reader_may_close_the_pipe(tmp_path, command, more):
  path = tmp_path / 'texts'
  path.write_text('the plot was dull\n' * 20_000)
  words = shlex.join([*command, f'--file={path}', *more])
  script = f'{words} | head -n 1; echo "${{PIPESTATUS[0]}}"'
  done = subprocess.run(
    ['bash', '-c', script],
    cwd=ROOT,
    env=ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  first, code = done.stdout.splitlines()
  assert 'the plot was dull' in first
  assert (code, done.stderr) == ('0', '')


def test_windows_are_printed_in_order_with_one_summary(
  finished_run, file, call_command, monkeypatch
):
  monkeypatch.setattr(predict, '_EVERY', 0)
  flags = [f'--workdir={finished_run}', f'--file={file}', '--batch_size=1']
  code, stdout, stderr = call_command('predict', *flags, cwd=ROOT)
  assert code == 0, stderr
  *lines, last = stdout.splitlines()
  shown = [line.split('  ')[-1].strip() for line in lines]
  assert shown == ['(empty)' if not t else t.strip() for t in TEXTS]
  assert json.loads(last)['count'] == len(TEXTS)
  *progress, empty, truncated = stderr.splitlines()
  assert [line.partition(', ')[0] for line in progress] == [
    '16 texts',
    '32 texts',
  ]
  assert all(line.endswith(' texts/s') for line in progress)
  assert empty == (
    'WARNING: 1 of 42 texts are empty and have no label, first: text 2'
  )
  assert truncated == (
    '1 of 42 texts are truncated to 64 tokens (config.data.max_length)'
  )


def read(path):
  if path.suffix == '.parquet':
    return parquet.read_table(path).to_pylist()
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize('ending', ['jsonl', 'parquet'])
def test_output_holds_what_json_prints(
  ending, finished_run, file, tmp_path, call_command
):
  path = tmp_path / 'new' / f'found.{ending}'
  flags = ['predict', f'--workdir={finished_run}', f'--file={file}']
  code, stdout, stderr = call_command(*flags, f'--output={path}', cwd=ROOT)
  assert code == 0, stderr
  assert len(stdout.splitlines()) == 1
  result = last_json(stdout)
  assert (result['count'], result['output']) == (len(TEXTS), str(path))
  _, stdout, _ = call_command(*flags, '--json', cwd=ROOT)
  assert read(path) == [json.loads(line) for line in stdout.splitlines()]
  assert os.listdir(path.parent) == [path.name]
  code, stdout, stderr = call_command(*flags, f'--output={path}', cwd=ROOT)
  assert (code, stdout) == (2, '')
  assert stderr == (
    f'error: --output={path} exists; remove it, or give another name\n'
  )


@pytest.mark.parametrize('more', [[], ['--output=found.jsonl']])
def test_a_line_that_is_not_utf8_is_named_after_the_results_before_it(
  more, finished_run, tmp_path, call_command
):
  (tmp_path / 'texts').write_bytes(b'fine\ndull\nb\xffd\nfine\n')
  flags = [f'--workdir={finished_run}', '--file=texts', *more]
  code, stdout, stderr = call_command('predict', *flags, cwd=tmp_path)
  assert code == 2
  assert len(stdout.splitlines()) == (0 if more else 2)
  assert stderr == (
    'error: cannot read texts: --file=texts line 3 is not UTF-8: invalid start '
    'byte 0xff\n'
  )
  assert os.listdir(tmp_path) == ['texts']


def test_a_missing_file_is_refused(finished_run, call_command):
  code, stdout, stderr = call_command(
    'predict', f'--workdir={finished_run}', '--file=nowhere', cwd=ROOT
  )
  assert (code, stdout) == (2, '')
  (line,) = stderr.splitlines()
  assert line.startswith('error: cannot read texts: ')
  assert 'nowhere' in line
