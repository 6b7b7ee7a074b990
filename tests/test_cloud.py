"""What is typed for a cloud machine is what its tools are given.

Stand-ins record the calls of gcloud, srun and scontrol, and run what is meant
for another host here, in a home of its own.
"""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

SCRIPTS = ROOT / 'scripts'

GCLOUD = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  *" describe "*)
    kind=vm; [[ "$*" == *queued-resources* ]] && kind=queue
    [[ -s "$STATES/$kind" ]] ||
      { echo "ERROR: ${SAYS:-NOT_FOUND: Resource}" >&2; exit 1; }
    cat "$STATES/$kind" ;;
  *" delete "*) rm -f "$STATES/vm" "$STATES/queue" ;;
  *"tpu-vm create "*) echo READY >"$STATES/vm" ;;
  *"queued-resources create "*) echo ACCEPTED >"$STATES/queue" ;;
  *" ssh "*)
    for word in "$@"; do
      case "$word" in --command=*) command="${word#--command=}" ;; esac
    done
    [[ "$command" == *astral.sh* ]] && exit 0
    for worker in 0 1; do
      mkdir -p "$HOSTS/$worker"
      HOME="$HOSTS/$worker" bash -c "$command" || exit $?
    done ;;
esac
"""

# Mock of the run on a host: it exits with 75 on SIGTERM.
RUN = """#!/usr/bin/env bash
echo "running $*"
trap 'echo asked; exit 75' TERM
for _ in $(seq 300); do sleep 0.1; done
"""


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  """Calls a command of tpu_vm.sh: (exit code, output, calls of gcloud)."""
  bin_folder, states = tmp_path / 'bin', tmp_path / 'states'
  hosts, calls = tmp_path / 'hosts', tmp_path / 'calls'
  for folder in (bin_folder, states):
    folder.mkdir()
  (bin_folder / 'gcloud').write_text(GCLOUD)
  (bin_folder / 'gcloud').chmod(0o755)
  for worker in '01':
    path = hosts / worker / 'selfattn' / 'scripts'
    path.mkdir(parents=True)
    (path / 'run.sh').write_text(RUN)
  for name, value in {
    'PATH': f'{bin_folder}:{os.environ["PATH"]}',
    'CALLS': str(calls),
    'STATES': str(states),
    'HOSTS': str(hosts),
    'ZONE': 'z',
    'TYPE': 'v5litepod-16',
  }.items():
    monkeypatch.setenv(name, value)

  def call(*arguments):
    calls.write_text('')
    done = subprocess.run(
      ['bash', str(SCRIPTS / 'tpu_vm.sh'), *arguments],
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )
    made = calls.read_text().splitlines()
    changing = [c for c in made if ' describe ' not in c]
    return done.returncode, done.stdout + done.stderr, changing

  call.states = states
  call.hosts = hosts
  yield call
  for pid in hosts.glob('*/selfattn-run/pid'):
    # A run that has just been started may not have written it yet.
    wait_for(pid, '\n')
    with contextlib.suppress(ProcessLookupError):
      os.kill(int(pid.read_text()), signal.SIGKILL)


VM = 'compute tpus tpu-vm'
QUEUE = 'compute tpus queued-resources'


def test_create_recreates_missing_and_preempted_machines(cloud):
  create = (
    f'{VM} create a --accelerator-type=v5litepod-16 '
    '--version=v2-alpha-tpuv5-lite --spot --zone=z'
  )
  assert cloud('create', 'a', '--spot')[2] == [create]
  assert cloud('create', 'a', '--spot')[1:] == ('a is there: READY\n', [])
  (cloud.states / 'vm').write_text('PREEMPTED\n')
  assert cloud('create', 'a', '--spot')[2] == [
    f'{VM} delete a --quiet --zone=z',
    create,
  ]


def test_a_stopped_machine_is_not_there_to_run(cloud):
  (cloud.states / 'vm').write_text('STOPPED\n')
  code, _, calls = cloud('create', 'a')
  assert (code, calls) == (2, [])


def test_a_queued_slice_is_requested_once(cloud, monkeypatch):
  monkeypatch.setenv('PROJECT', 'p')
  monkeypatch.setenv('TYPE', 'v6e-8')
  create = (
    f'{QUEUE} create a --node-id=a --accelerator-type=v6e-8 '
    '--runtime-version=v2-alpha-tpuv6e --zone=z --project=p'
  )
  assert cloud('create', 'a', '--queued')[2] == [create]
  assert cloud('create', 'a', '--queued')[2] == []
  (cloud.states / 'queue').write_text('SUSPENDED\n')
  delete = f'{QUEUE} delete a --force --quiet --zone=z --project=p'
  assert cloud('create', 'a', '--queued')[2] == [delete, create]
  assert cloud('delete', 'a')[2] == [delete]
  assert cloud('delete', 'a')[1] == 'a is not there\n'


@pytest.mark.parametrize('command', ['create', 'status', 'delete'])
def test_a_machine_that_gcloud_cannot_see_is_not_missing(
  cloud, command, monkeypatch
):
  monkeypatch.setenv('SAYS', 'Reauthentication required')
  code, said, calls = cloud(command, 'a')
  assert code == 1
  assert 'Reauthentication required' in said
  assert calls == []


def wait_for(path, text):
  deadline = time.monotonic() + 30
  while time.monotonic() < deadline:
    if path.exists() and text in path.read_text():
      return
    time.sleep(0.05)
  raise AssertionError(f'{path} never held {text!r}')


def test_a_run_is_started_once_on_every_worker_and_saves_when_stopped(cloud):
  cloud('create', 'a')
  assert cloud('status', 'a')[1].count('nothing was run') == 2
  command = ('run', 'a', 'experiments.train', "--config.data.dir=a b'c")
  code, said, _ = cloud(*command)
  assert (code, said.count('started on')) == (0, 2)
  folders = [cloud.hosts / worker / 'selfattn-run' for worker in '01']
  for folder in folders:
    wait_for(
      folder / 'log', "running experiments.train --config.data.dir=a b'c"
    )
  assert cloud(*command)[1].count('runs already on') == 2
  assert cloud('status', 'a')[1].count('running') == 2
  assert cloud('stop', 'a')[1].count('told to save and exit') == 2
  for folder in folders:
    wait_for(folder / 'code', '75')
    assert (folder / 'log').read_text().count('running') == 1
    assert 'asked' in (folder / 'log').read_text()
  deadline = time.monotonic() + 10
  while time.monotonic() < deadline:
    said = cloud('status', 'a')[1]
    if said.count('ended with exit code 75') == 2:
      break
  assert said.count('ended with exit code 75') == 2
  assert cloud('stop', 'a')[1].count('nothing runs') == 2
  assert cloud(*command)[1].count('started on') == 2


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    (('create', 'A_b'), 'NAME=A_b must be'),
    (('create', 'a', '--spott'), 'create does not know --spott'),
    (('run', 'a'), 'run needs what to run'),
    (('fly', 'a'), 'bash scripts/tpu_vm.sh create NAME'),
    (('create',), 'bash scripts/tpu_vm.sh create NAME'),
  ],
)
def test_a_wrong_call_is_refused_before_gcloud_is(cloud, arguments, line):
  code, said, calls = cloud(*arguments)
  assert code == 2
  assert line in said
  assert calls == []


SRUN = """#!/usr/bin/env bash
trap 'exit 75' USR1 TERM
echo "$*" >>"$CALLS"
echo up >>"$CALLS.up"
for _ in $(seq "${WAIT:-0}"); do sleep 0.1; done
exit "${CODE:-0}"
"""


SCONTROL = '#!/usr/bin/env bash\necho "scontrol $*" >>"$CALLS"\n'


def start_slurm(folder, srun, **variables):
  """Starts slurm.sh with stand-ins for srun and scontrol: (process, calls)."""
  folder.mkdir()
  for name, text in {'srun': srun, 'scontrol': SCONTROL}.items():
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
  calls = folder / 'calls'
  process = subprocess.Popen(
    ['bash', str(SCRIPTS / 'slurm.sh'), 'experiments.train', '--workdir=a b'],
    env=os.environ
    | {
      'PATH': f'{folder}:{os.environ["PATH"]}',
      'CALLS': str(calls),
      'SLURM_JOB_ID': '17',
      'SLURM_SUBMIT_DIR': '/repo',
    }
    | variables,
  )
  return process, calls


# Exit code of the run, a signal, earlier restarts; whether it is requeued.
ENDS = {
  (0, None, 0): False,
  (2, None, 0): False,
  (75, None, 0): True,
  (75, None, 50): False,
  (0, signal.SIGUSR1, 0): True,
  (0, signal.SIGTERM, 0): True,
}


def test_slurm_requeues_interrupted_runs(tmp_path):
  # All at once: each takes a second.
  started = {
    (code, sent, restarts): start_slurm(
      tmp_path / f'{code}-{sent}-{restarts}',
      SRUN,
      CODE=str(code),
      WAIT='100' if sent else '0',
      SLURM_RESTART_COUNT=str(restarts),
    )
    for code, sent, restarts in ENDS
  }
  for (_, sent, _), (process, calls) in started.items():
    if sent:
      wait_for(calls.with_name('calls.up'), 'up')
      process.send_signal(sent)
  for case, (process, calls) in started.items():
    code, sent, _ = case
    assert process.wait(timeout=30) == (75 if sent else code), case
    first, *rest = calls.read_text().splitlines()
    assert first.endswith(
      '/repo/scripts/run.sh experiments.train --workdir=a b'
    )
    assert rest == (['scontrol requeue 17'] if ENDS[case] else []), case


def test_slurm_requeues_runs_that_are_preempted_before_they_start(tmp_path):
  """Before srun is started, or before its process id is known."""
  # As srun before it has signal handlers: signals kill it.
  srun = '#!/bin/sh\necho srun >>"$CALLS"\nexec sleep 4\n'
  started = []
  for line, name in itertools.product(('srun*', 'child=??'), ('USR1', 'TERM')):
    setup = tmp_path / f'setup-{len(started)}'
    # Sourced by bash, which calls the trap before each command.
    setup.write_text(
      f"trap '[[ $BASH_COMMAND == {line} && -z ${{sent:-}} ]] "
      f"&& sent=1 && kill -s {name} $$' DEBUG\n"
    )
    folder = tmp_path / str(len(started))
    started.append(start_slurm(folder, srun, BASH_ENV=str(setup)))
  for process, calls in started:
    assert process.wait(timeout=10) == 75
    assert calls.read_text().splitlines()[-1] == 'scontrol requeue 17'


def test_shellcheck_finds_nothing():
  shellcheck = pathlib.Path(sys.executable).with_name('shellcheck')
  files = [*SCRIPTS.glob('*.sh'), ROOT / '.ci' / 'run']
  done = subprocess.run(
    [shellcheck, *files], capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stdout) == (0, ''), done.stderr


@pytest.mark.parametrize(
  ('kind', 'state', 'flags'),
  [
    ('vm', 'DELETING', ()),
    ('queue', 'SUSPENDING', ('--queued',)),
    ('queue', 'DELETING', ('--queued',)),
  ],
)
def test_what_ends_is_not_there(kind, state, flags, cloud):
  (cloud.states / kind).write_text(f'{state}\n')
  code, said, calls = cloud('create', 'a', *flags)
  assert (code, calls) == (2, [])
  assert state in said


def test_the_node_of_a_request_is_not_deleted_alone(cloud):
  (cloud.states / 'vm').write_text('PREEMPTED\n')
  (cloud.states / 'queue').write_text('ACTIVE\n')
  code, said, calls = cloud('create', 'a')
  assert (code, calls) == (2, [])
  assert '--queued' in said


def test_srun_has_the_cpus_of_the_job(tmp_path):
  process, calls = start_slurm(tmp_path / 'a', SRUN, SLURM_CPUS_PER_TASK='7')
  process.wait(timeout=30)
  assert '--cpus-per-task=7' in calls.read_text()


def test_sync_removes_what_is_gone(cloud):
  home, script = cloud.hosts / '0', (SCRIPTS / 'tpu_vm.sh').read_text()
  on_each = script.split("on_all 'set -e\n")[1].split('command -v')[0]
  source = home / 'source'
  source.mkdir()
  for names in (['a.py', 'b c.py'], ['a.py']):
    for name in names:
      (source / name).write_text('x')
    archive = ['tar', '-C', source, '-czf', home / 'selfattn.tar.gz', *names]
    subprocess.run(archive, check=True)
    environment = os.environ | {'HOME': str(home)}
    subprocess.run(['bash', '-ec', on_each], env=environment, check=True)
  kept = [path.name for path in (home / 'selfattn').glob('*.py')]
  assert kept == ['a.py']
