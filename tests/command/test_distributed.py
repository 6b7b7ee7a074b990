"""Multi-process runs: equal losses, and all processes end together."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

import jax
import pytest
from conftest import ROOT, last_json, make_small_config
from test_train import SLOW, arguments, rows, wait_for_rows

from experiments.command import distributed, processes
from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.training import run as run_lib

# Of `srun`, where jax finds the rest.
SLURM = {'SLURM_STEP_NUM_TASKS': '4', 'SLURM_NTASKS': '4'}


ALL = {
  'coordinator_address': '127.0.0.1:99', 'num_processes': 2, 'process_id': 1,
}  # fmt: skip


def flags(**changed):
  values = dict.fromkeys(ALL) | {'distributed': 'auto'} | changed
  holder = {n: types.SimpleNamespace(value=v) for n, v in values.items()}

  class Values(dict):
    distributed = values['distributed']

  return Values(holder)


@pytest.mark.parametrize(
  ('changed', 'environ', 'cluster'),
  [
    ({}, {}, None),
    ({}, SLURM, {}),
    ({'distributed': 'off'}, SLURM, None),
    # A shell, a batch script, or one task of a job of several.
    ({}, {'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'}, None),
    ({}, SLURM | {'SLURM_STEP_NUM_TASKS': '1'}, None),
    ({}, {'TPU_WORKER_HOSTNAMES': 'x.y,z.y', 'TPU_WORKER_ID': '1'}, {}),
    ({}, {'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_WORKER_ID': '0'}, None),
    # One host of each slice.
    ({}, {'MEGASCALE_NUM_SLICES': '2', 'TPU_WORKER_HOSTNAMES': 'x.y'}, {}),
    ({}, {'MEGASCALE_NUM_SLICES': '1', 'TPU_WORKER_HOSTNAMES': 'x.y'}, None),
    # Kaggle and Colab.
    ({}, {'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_NAME': 'local'}, None),
    (ALL, SLURM, ALL),
    (ALL | {'process_id': 0}, {}, ALL | {
      'process_id': 0, 'coordinator_bind_address': '127.0.0.1:99',
    }),
    ({'distributed': 'on'}, {}, {}),
  ],
)  # fmt: skip
def test_a_cluster_is_detected_where_there_is_one(changed, environ, cluster):
  assert distributed.find(flags(**changed), environ) == cluster


def test_a_shell_on_one_of_several_nodes_is_alone(monkeypatch):
  """As of `srun --pty bash`."""
  monkeypatch.setattr(sys, 'stdin', types.SimpleNamespace(isatty=lambda: True))
  assert distributed.find(flags(), SLURM) is None


@pytest.mark.parametrize(
  ('changed', 'line'),
  [
    ({'process_id': 0}, 'also need .*coordinator_address and --num_processes'),
    (ALL | {'process_id': 2}, '--process_id=2 must be below --num_processes=2'),
    (ALL | {'coordinator_address': 'host'}, 'must be HOST:PORT'),
    (ALL | {'distributed': 'off'}, '--distributed=off .* excludes'),
  ],
)
def test_incomplete_flags_of_a_cluster_are_refused(changed, line):
  with pytest.raises(UserError, match=line):
    distributed.find(flags(**changed), {})


def free_address():
  with socket.create_server(('127.0.0.1', 0)) as server:
    return f'127.0.0.1:{server.getsockname()[1]}'


def busy_config(**changes):
  config = make_small_config()
  config.model.embed_dim = 16
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.train.eval_batch_size = 5  # padded for two
  config.train.fsdp_min_size = 20
  config.train.update(changes)
  return config


def start(paths, config, *more, command=('-m', 'experiments.train')):
  """Starts one process of training per path."""
  return start_each(
    [[*command, *arguments(path, config), *more] for path in paths]
  )


def start_alone(command):
  return subprocess.Popen(
    [sys.executable, *command],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def start_each(commands):
  """Starts the processes of a cluster."""
  address = free_address()
  return [
    start_alone(
      [
        *command,
        f'--coordinator_address={address}',
        f'--num_processes={len(commands)}',
        f'--process_id={index}',
      ]
    )
    for index, command in enumerate(commands)
  ]


def ends(started, timeout=180):
  """(exit code, stdout, stderr) of each process."""
  with concurrent.futures.ThreadPoolExecutor(len(started)) as pool:
    try:
      texts = list(pool.map(lambda p: p.communicate(timeout=timeout), started))
    finally:
      for process in started:
        process.kill()
  return [(p.returncode, *t) for p, t in zip(started, texts, strict=True)]


@pytest.mark.slow
def test_resuming_with_another_number_of_processes_changes_nothing(tmp_path):
  config = busy_config(eval_every=6)
  config.checkpoint.every_steps = 6
  alone = tmp_path / 'alone'
  result = run_lib.run(config, str(alone), Signals())

  path = tmp_path / 'run'
  started = start([path, path], config, command=('-c', SLOW))
  wait_for_rows(started[0], path, 2)
  started[1].send_signal(signal.SIGUSR1)
  codes, _, said = zip(*ends(started), strict=True)
  assert codes == (75, 75), said
  assert 'received SIGUSR1' in said[1]
  reached = rows(path)[-1]['step']
  assert reached < 12
  for index in range(2):
    log = (path / f'log-{index}.txt').read_text()
    assert f'saved after step {reached}' in log

  config.train.fsdp_min_size = 0
  resumed = run_lib.run(config, str(path), Signals())
  assert resumed['accuracy'] == result['accuracy']
  ours, theirs = rows(path), rows(alone)
  assert [row['step'] for row in ours] == list(range(1, 13))
  for mine, its in zip(ours, theirs, strict=True):
    assert mine == pytest.approx(its, rel=1e-4, abs=1e-6)
    assert mine['train/loss'] == pytest.approx(its['train/loss'], rel=1e-5)
  attempts = json.loads((path / 'env.json').read_text())
  assert [len(attempt['devices']) for attempt in attempts] == [2, 1]


@pytest.mark.pod
def test_four_processes_train_and_evaluate_as_one(tmp_path, printed_json):
  config = busy_config()
  path, alone = tmp_path / 'four', tmp_path / 'alone'
  four = start([path] * 4, config)
  codes, printed, said = zip(*ends(four, timeout=400), strict=True)
  assert codes == (0, 0, 0, 0), said
  result = run_lib.run(config, str(alone), Signals())
  assert last_json(printed[0])['accuracy'] == result['accuracy']
  for mine, its in zip(rows(path), rows(alone), strict=True):
    assert mine == pytest.approx(its, rel=1e-4, abs=1e-6)

  flags = ['--batch_size=5', f'--workdir={path}']
  four = [['-m', 'experiments.evaluate', *flags]] * 4
  ended = ends(start_each(four), timeout=400)
  codes, printed, said = zip(*ended, strict=True)
  assert codes == (0, 0, 0, 0), said
  one = printed_json('evaluate', *flags)
  four = last_json(printed[0])
  assert four.pop('loss') == pytest.approx(one.pop('loss'), rel=1e-5)
  # Of probabilities, which differ as the loss does.
  del one['calibration'], four['calibration']
  assert four == one


@pytest.mark.pod
def test_three_commands_at_once_train_a_sweep_as_one(tmp_path, printed_json):
  three, one = tmp_path / 'three', tmp_path / 'one'
  flags = ['--engine=serial', '--grid=config.seed=0,1,2']
  flags += ['--grid=config.model.mlp_dim=8,16']
  flags += arguments(three, make_small_config())[2:]
  command = ['-m', 'experiments.sweep', *flags, f'--workdir={three}']
  started = [
    start_alone([*command, f'--trial_ids={2 * index},{2 * index + 1}'])
    for index in range(3)
  ]
  codes, _, said = zip(*ends(started, timeout=400), strict=True)
  assert codes == (0, 0, 0), said
  together = printed_json('sweep', *flags, f'--workdir={three}')
  alone = printed_json('sweep', *flags, f'--workdir={one}')
  assert together['table'] == alone['table']
  attempts = [
    json.loads(file.read_text())['attempt']
    for file in three.glob('trials/*/status.json')
  ]
  assert attempts == [1] * 6


def test_a_process_waits_for_the_others_at_most_start_timeout(tmp_path):
  path = tmp_path / 'run'
  flags = ['--num_processes=2', '--process_id=1', '--start_timeout=1']
  address = f'--coordinator_address={free_address()}'
  command = ['-m', 'experiments.train', *arguments(path, busy_config())]
  ((code, _, said),) = ends([start_alone([*command, address, *flags])])
  # It may pass: the other host may only be late.
  assert code == 1
  assert 'not started within 1 s (--start_timeout)' in said
  assert not path.exists()


def test_a_signal_ends_the_wait_for_the_others(tmp_path):
  address = f'--coordinator_address={free_address()}'
  command = ['-m', 'experiments.train', f'--workdir={tmp_path}', address]
  process = start_alone([*command, '--num_processes=2', '--process_id=0'])
  for line in process.stderr:
    if line.startswith('waiting'):
      break
  process.send_signal(signal.SIGTERM)
  ((code, _, said),) = ends([process], timeout=30)
  assert code == 75
  assert 'nothing to save' in said


def test_a_port_in_use_is_refused():
  with socket.create_server(('127.0.0.1', 0)) as server:
    address = f'127.0.0.1:{server.getsockname()[1]}'
    values = types.SimpleNamespace(start_timeout=1, peer_timeout=1)
    with pytest.raises(UserError, match='process 0 cannot listen there'):
      distributed.join(values, {'coordinator_bind_address': address})


def test_processes_of_different_settings_are_refused(monkeypatch):
  other = {'config.seed': 4, 'config.train.steps': 7}
  monkeypatch.setattr(processes, 'gather', lambda values: [values, other])
  processes.check_same(other)
  with pytest.raises(UserError, match='seed is 3 on process 0, and 4 on proce'):
    processes.check_same(other | {'config.seed': 3})


# Process 1 fails, or waits to be killed, and process 0 waits for it.
PEERS = """
import sys, time
from absl import flags
from experiments.command import app, distributed, processes
from experiments.command.errors import UserError

def main(values):
  cluster = distributed.find(values, {})
  distributed.join(values, cluster)
  if values.process_id == 1:
    if values.distributed == 'on':
      raise UserError('only here')
    print('joined', flush=True)
    time.sleep(600)
  processes.wait_for_all('never')

app.run(main, distributed.define, '')
"""


@pytest.mark.slow
@pytest.mark.parametrize('is_killed', [False, True])
def test_the_end_of_one_process_ends_the_others(is_killed):
  """Even if the others wait for it, in a computation of all."""
  command = ['-c', PEERS, '--peer_timeout=10']
  command += [] if is_killed else ['--distributed=on']
  begin = time.monotonic()
  started = start_each([command] * 2)
  if is_killed:
    # The library speaks, too.
    assert 'joined\n' in started[1].stdout
    started[1].kill()
  (code, _, _), (other, _, said) = ends(started)
  assert other == (-signal.SIGKILL if is_killed else 2), said
  assert code != 0
  assert time.monotonic() - begin < 60


def test_a_host_without_an_address_yet_is_waited_for(monkeypatch):
  calls = []

  def look(host, port):
    del port
    calls.append(host)
    if len(calls) < 3:
      raise socket.gaierror(-2, 'unknown')

  monkeypatch.setattr(socket, 'getaddrinfo', look)
  monkeypatch.setattr(distributed, '_RETRY', 0.0)
  distributed._wait_for_name('pod:1', time.monotonic() + 60)
  assert calls == ['pod'] * 3
  calls.clear()
  with pytest.raises(Interrupted, match='start_timeout'):
    distributed._wait_for_name('pod:1', time.monotonic() - 1)


def test_a_host_of_several_that_is_alone_is_refused(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(UserError, match='--distributed=on'):
    processes.require_joined()


def test_a_number_of_tasks_that_is_none_is_one_line():
  with pytest.raises(UserError, match='SLURM_STEP_NUM_TASKS=foo must be'):
    distributed._has_several({'SLURM_STEP_NUM_TASKS': 'foo'})
