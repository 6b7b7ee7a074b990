"""A workdir in a bucket is the same as one on a disk."""

import contextlib
import json
import os
import pathlib
import shutil
import time
from threading import Event, Thread

import pytest
from conftest import ROOT, last_json, make_small_config
from fsspec.implementations.local import LocalFileSystem
from test_train import StopAt, rows

from experiments.command.errors import Failed, Interrupted, UserError
from experiments.command.signals import Signals
from experiments.data import published
from experiments.training import run as run_lib
from experiments.workdir import buckets
from experiments.workdir.workdir import Workdir

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture
def bucket(tmp_path, monkeypatch):
  """A folder that is treated as a bucket."""
  path = tmp_path / 'bucket'
  monkeypatch.setattr(buckets, 'SCHEMES', (str(path),))
  return path


def run(address, signals, **changes):
  config = make_small_config()
  config.train.update(changes)
  with buckets.staged(str(address)) as folder:
    assert not folder.startswith(str(address))
    return run_lib.run(config, folder, signals)


def names(folder):
  return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


@pytest.mark.slow
def test_a_run_in_a_bucket_is_interrupted_resumed_and_evaluated(
  bucket, tmp_path, call_command
):
  address = bucket / 'run'
  with pytest.raises(Interrupted):
    run(address, StopAt(6))
  status = json.loads((address / 'status.json').read_text())
  assert (status['status'], status['step']) == ('INTERRUPTED', 4)
  assert rows(address)[-1]['step'] == 4
  assert {'3', '4'} == {p.name for p in (address / 'checkpoints').iterdir()}
  # Rows that were not copied because of a kill are computed again.
  result = run(address, Signals())
  assert result['workdir'] == str(address)
  whole = tmp_path / 'whole'
  run_lib.run(make_small_config(), str(whole), Signals())
  assert (address / 'metrics.jsonl').read_text() == (
    whole / 'metrics.jsonl'
  ).read_text()
  assert {n for n in names(address) if '/' not in n} == {
    n for n in names(whole) if '/' not in n
  }
  before = {p: p.stat().st_mtime_ns for p in address.rglob('*')}
  assert run(address, Signals()) == result
  code, out, err = call_command(
    'evaluate', f'--workdir={address}', cwd=tmp_path
  )
  assert code == 0, err
  assert last_json(out)['accuracy'] == pytest.approx(result['accuracy'])
  assert {p: p.stat().st_mtime_ns for p in address.rglob('*')} == before


def test_corrupt_checkpoints_stay_in_the_bucket(bucket):
  (bucket / 'run' / 'corrupt' / '3').mkdir(parents=True)
  (bucket / 'run' / 'corrupt' / '3' / 'array').write_text('half')
  (bucket / 'run' / 'config.json').write_text('{}')
  with buckets.staged(str(bucket / 'run')) as folder:
    assert os.listdir(folder) == ['config.json']


def small_files(folder):
  """Files beside the checkpoints, without those named by time and host."""
  result = {name for name in names(folder) if '/checkpoints/' not in name}
  return {name for name in result if 'tfevents' not in name}


SWEEP = """
import sys
sys.path.insert(0, TESTS)
from conftest import make_small_config as get_config

def sweep_seeds():
  for seed in range(2):
    yield {'seed': seed}
"""


@pytest.fixture
def sweep(tmp_path):
  """Flags of a sweep of two small trials."""
  config = tmp_path / 'small.py'
  config.write_text(SWEEP.replace('TESTS', repr(str(ROOT / 'tests'))))
  return [f'--config={config}', '--sweep=seeds']


@pytest.mark.slow
def test_a_sweep_in_a_bucket_is_that_of_a_disk(
  bucket, tmp_path, sweep, call_command
):
  address, disk = bucket / 'sweep', tmp_path / 'disk'
  flags = [*sweep, '--engine=vectorized']
  code, out, err = call_command(
    'sweep', *flags, f'--workdir={address}', cwd=ROOT
  )
  assert code == 0, err
  result = last_json(out)
  code, out, _ = call_command('sweep', *flags, f'--workdir={disk}', cwd=ROOT)
  assert code == 0
  assert result['table'] == last_json(out)['table']
  assert result['workdir'] == str(address)
  assert result['best_run']['workdir'].startswith(f'{address}/trials/')
  assert small_files(address) == small_files(disk)
  assert len(list(address.glob('trials/*/checkpoints/12'))) == 2
  before = {p: p.stat().st_mtime_ns for p in address.glob('trials/**/*')}
  code, out, err = call_command(
    'sweep', *flags, f'--workdir={address}', cwd=ROOT
  )
  assert (code, last_json(out)['table']) == (0, result['table'])
  assert 'none of 2 trials has steps left' in err
  assert {
    p: p.stat().st_mtime_ns for p in address.glob('trials/**/*')
  } == before


def test_a_process_sees_what_another_has_pushed_meanwhile(bucket, sweep):
  trial = 'trials/one/status.json'
  with (
    buckets.staged(str(bucket)) as one,
    buckets.staged(str(bucket), ['two']) as other,
  ):
    for folder, text in ((one, 'first'), (other, 'second')):
      path = os.path.join(folder, trial)
      assert buckets.origin(path) == str(bucket / trial)
      os.makedirs(os.path.dirname(path), exist_ok=True)
      with open(path, 'w') as file:
        file.write(text)
    buckets.upload(one)
    buckets.download(other, ['two'])
    with open(os.path.join(other, trial)) as file:
      assert file.read() == 'second'
    buckets.download(other, ['one'])
    with open(os.path.join(other, trial)) as file:
      assert file.read() == 'first'
    # What came from the bucket is not copied back.
    (bucket / trial).write_text('third')
    buckets.upload(other)
    assert (bucket / trial).read_text() == 'third'


@pytest.fixture
def put(monkeypatch):
  """put(FUNCTION): instead of each copy, FUNCTION(NAME, TARGET, COPY)."""

  def replace(function):
    def called(self, name, target, **_):
      function(name, target, lambda: copy(self, name, target))

    monkeypatch.setattr(LocalFileSystem, 'put_file', called)

  copy = LocalFileSystem.put_file
  return replace


def test_a_kill_while_files_are_copied_leaves_a_run_or_nothing(bucket, put):
  copied = []

  def killed(name, target, copy):
    copied.append(os.path.basename(name))
    if len(copied) > count:
      raise KeyboardInterrupt

  put(killed)
  with buckets.staged(str(bucket)) as folder:
    os.makedirs(folder)
    for name in ('status.json', 'a', 'config.json', 'data.json'):
      with open(os.path.join(folder, name), 'w') as file:
        file.write(name)
    for count in (0, 1, 4):
      copied.clear()
      with contextlib.suppress(KeyboardInterrupt):
        buckets.upload(folder)
      buckets._uploaded.clear()
      assert copied[0] == 'config.json'
      assert (copied[-1] == 'status.json') == (count == 4)


def test_training_does_not_wait_for_files_and_a_checkpoint_does(
  bucket, monkeypatch
):
  upload, started, may_end = buckets.upload, Event(), Event()

  def slow(folder, *more):
    if os.path.exists(os.path.join(folder, 'metrics.jsonl')):
      started.set()
      assert may_end.wait(60), 'training waited for an upload'
    upload(folder, *more)

  class Look(Signals):
    def check(self):
      folder = bucket / 'checkpoints'
      if not seen and folder.exists() and list(folder.iterdir()):
        assert started.wait(60)
        seen.extend(path.name for path in folder.iterdir())
        may_end.set()
      super().check()

  seen = []
  monkeypatch.setattr(buckets, 'upload', slow)
  run(bucket, Look())
  assert seen
  assert not any(name.isdecimal() for name in seen)
  assert '12' in os.listdir(bucket / 'checkpoints')


def test_a_checkpoint_whose_files_could_not_be_copied_is_none(bucket, put):
  def fail(name, target, copy):
    if target.endswith('metrics.jsonl'):
      raise OSError('quota')
    copy()

  put(fail)
  with pytest.raises(Failed, match='could not be written: quota'):
    run(bucket, Signals())
  assert not any(
    path.name.isdecimal() for path in (bucket / 'checkpoints').iterdir()
  )


def test_a_status_is_copied_after_what_it_speaks_of(bucket, put):
  begun, seen = Event(), []

  def slow(name, target, copy):
    copy()
    begun.set()
    if target.endswith('metrics.jsonl'):
      time.sleep(0.5)
    if target.endswith('status.json'):
      rows = (bucket / 'metrics.jsonl').read_text().splitlines()
      status = json.loads((bucket / 'status.json').read_text())['status']
      seen.append((status, rows))

  put(slow)
  with buckets.staged(str(bucket)) as folder:
    os.makedirs(folder)
    workdir = Workdir(folder, attempt=1)
    with open(workdir.file('metrics.jsonl'), 'w') as file:
      print('one', file=file, flush=True)
      workdir.set_status('RUNNING', 3, uploads=False)
      other = Thread(target=buckets.upload, args=[folder])
      other.start()
      assert begun.wait(60)
      print('two', file=file, flush=True)
    workdir.set_status('DIVERGED', 3)
    other.join()
  assert seen == [('RUNNING', ['one']), ('DIVERGED', ['one', 'two'])]


@pytest.mark.parametrize(
  ('path', 'said'),
  [
    ('', 'is empty'),
    ('runs/lr[1e-3]', 'has a'),
    ('s3://bucket/run', 'is a folder, or an address of gs://'),
  ],
)
def test_a_place_where_no_run_can_be_is_refused(path, said):
  with (
    pytest.raises(UserError, match=f'^--workdir.* {said}'),
    buckets.staged(path),
  ):
    pass


def test_a_local_workdir_is_not_remote(tmp_path):
  assert buckets.origin(str(tmp_path / 'run')) == str(tmp_path / 'run')
  with buckets.staged('runs/first') as folder:
    assert folder == 'runs/first'


def test_a_published_model_in_a_bucket_is_copied_once(bucket, published_bert):
  address = bucket / 'bert'
  shutil.copytree(published_bert, address)
  folder = published.folder(str(address))
  assert folder != str(address)
  assert names(pathlib.Path(folder)) == names(address)
  assert published.folder(str(address)) == folder
