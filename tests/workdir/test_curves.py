"""The curves of a run in TensorBoard and in Weights & Biases."""

import importlib.machinery
import json
import struct
import sys
import types

import pytest
from conftest import ROOT, make_small_config

from experiments.command.errors import Diverged, UserError
from experiments.training import run as run_lib
from experiments.workdir import curves, metrics
from experiments.workdir.workdir import Workdir

CONFIG = {
  'seed': 3,
  'model.position': 'rotary',
  'checkpoint.best_metric': 'loss',
}


@pytest.fixture
def workdir(tmp_path):
  return Workdir(str(tmp_path), attempt=1)


@pytest.fixture
def project(monkeypatch):
  monkeypatch.setenv('WANDB_PROJECT', 'positions')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')


class Fake(types.ModuleType):
  """What of wandb is used, and the calls of it."""

  class Error(Exception):
    pass

  class Settings:
    def __init__(self, console):
      assert console == 'off'

  def __init__(self, fails=False):
    super().__init__('wandb')
    self.__spec__ = importlib.machinery.ModuleSpec('wandb', None, origin='x')
    self.runs, self.rows, self.fails = [], [], fails

  def init(self, **named):
    if self.fails:
      raise self.fails
    self.runs.append(named)
    return self

  def log(self, row, step):
    if row.get('loss') == 0:
      raise OSError('no connection')
    self.rows.append((step, row))

  def finish(self, exit_code):
    self.rows.append(f'finished {exit_code}')


def write(workdir, start, steps):
  writer = metrics.MetricWriter(workdir, CONFIG, start)
  for step in steps:
    writer.write(step, {'loss': 1.0 / step})
  writer.close()


def events(path):
  """What TensorBoard reads: records of a length and two check sums."""
  from tensorboardX.proto.event_pb2 import Event

  for file in sorted(path.iterdir(), key=lambda file: file.stat().st_mtime_ns):
    content, at = file.read_bytes(), 0
    while at < len(content):
      (length,) = struct.unpack_from('<Q', content, at)
      yield Event.FromString(content[at + 12 : at + 12 + length])
      at += length + 16


def test_tensorboard_has_curves_and_hyperparameters(workdir, tmp_path):
  from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

  write(workdir, 0, [1, 2])
  points, restarts, hyperparameters, metrics_of_runs = [], [], {}, []
  for event in events(tmp_path / 'tensorboard'):
    if event.HasField('session_log'):
      restarts.append(event.step)
    for value in event.summary.value:
      if not value.metadata.plugin_data.plugin_name:
        points.append((value.tag, event.step, value.simple_value))
        continue
      found = HParamsPluginData.FromString(value.metadata.plugin_data.content)
      for name, held in found.session_start_info.hparams.items():
        hyperparameters[name] = getattr(held, held.WhichOneof('kind'))
      metrics_of_runs += [m.name.tag for m in found.experiment.metric_infos]
  assert restarts == [1]
  assert points == [('loss', 1, 1.0), ('loss', 2, 0.5)]
  assert hyperparameters == CONFIG
  assert metrics_of_runs == ['validation/loss']


@pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_a_run_continues_when_curves_cannot_be_written(workdir, monkeypatch):
  from tensorboardX import event_file_writer

  def fail(*_):
    raise OSError('full')

  writer = metrics.MetricWriter(workdir, CONFIG, 0)
  monkeypatch.setattr(event_file_writer.EventsWriter, 'write_event', fail)
  for step in range(1, 100):
    writer.plot(step, {'loss': 1.0})
  writer.close()


def test_attempts_are_one_run_of_wandb(workdir, project, monkeypatch):
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  write(workdir, 0, [1, 2])
  write(workdir, 1, [2, 4])
  first, second = fake.runs
  assert first['id'] == second['id']
  assert first['resume'] == 'allow'
  assert first['config'] == CONFIG
  assert fake.rows == [
    (1, {'loss': 1.0}), (2, {'loss': 0.5}), 'finished 0',
    (2, {'loss': 0.5}), (4, {'loss': 0.25}), 'finished 0',
  ]  # fmt: skip


def test_two_workdirs_are_two_runs_of_wandb(tmp_path, project, monkeypatch):
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  for name in 'ab':
    (tmp_path / name).mkdir()
    write(Workdir(str(tmp_path / name), 1), 0, [1])
  assert fake.runs[0]['id'] != fake.runs[1]['id']
  assert [run['name'] for run in fake.runs] == ['a', 'b']


def test_wandb_knows_that_a_run_has_ended_early(workdir, project, monkeypatch):
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  config = make_small_config()
  config.optimizer.learning_rate = 1e30
  with pytest.raises(Diverged):
    run_lib.run(config, workdir.path)
  assert fake.rows[-1] == 'finished 1'
  assert (fake.runs[0]['config']['seed'], fake.runs[0]['dir']) == (
    0, workdir.path,
  )  # fmt: skip


@pytest.mark.parametrize('content', [None, ''])
def test_an_id_that_cannot_be_read_ends_no_run(
  content, workdir, tmp_path, project, monkeypatch, capfd
):
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  if content is None:
    (tmp_path / 'wandb').touch()
    write(workdir, 0, [1])
    assert 'no curves for Weights & Biases' in capfd.readouterr().err
  else:
    (tmp_path / 'wandb').mkdir()
    (tmp_path / 'wandb' / 'id').write_text(content)
    write(workdir, 0, [1])
    assert len(fake.runs[0]['id']) == 16


def test_only_the_environment_asks_for_wandb(workdir, monkeypatch):
  monkeypatch.delenv('WANDB_PROJECT', raising=False)
  monkeypatch.setitem(sys.modules, 'wandb', None)
  curves.check()
  write(workdir, 0, [1])


@pytest.mark.parametrize('error', [Fake.Error, ValueError])
def test_a_run_continues_without_wandb(
  error, workdir, project, monkeypatch, capfd
):
  monkeypatch.setitem(sys.modules, 'wandb', Fake(error('no\nkey')))
  write(workdir, 0, [1])
  assert 'no curves for Weights & Biases: no key\n' in capfd.readouterr().err
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  writer = metrics.MetricWriter(workdir, CONFIG, 0)
  writer.write(1, {'loss': 0.0})
  writer.close()
  assert fake.rows == ['finished 0']
  assert len(metrics.read_rows(workdir.file('metrics.jsonl'))) == 1


@pytest.mark.parametrize('command', ['train', 'sweep'])
def test_wandb_is_missing(
  command, project, monkeypatch, call_command, tmp_path
):
  if command == 'train':
    monkeypatch.setitem(sys.modules, 'wandb', None)
  else:
    # Its own folder, in the folder of the command, is a package of no file.
    monkeypatch.delitem(sys.modules, 'wandb', raising=False)
    (tmp_path / 'wandb').mkdir()
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  with pytest.raises(UserError, match='WANDB_PROJECT=positions is in'):
    curves.check()
  flags = ['--workdir=never', '--grid', 'config.seed=0,1']
  flags = flags[: 1 if command == 'train' else None]
  code, _, stderr = call_command(command, *flags, cwd=ROOT)
  assert code == 2
  assert stderr.count('\n') == 1
  assert 'pip install wandb' in stderr
  assert not (ROOT / 'never').exists()


def records(path):
  """The records of an offline run: a log of LevelDB after seven bytes."""
  from wandb.proto import wandb_internal_pb2

  content, at, parts = path.read_bytes(), 7, []
  while at < len(content):
    if 2**15 - at % 2**15 < 7:
      at += 2**15 - at % 2**15
      continue
    _, length, kind = struct.unpack_from('<IHB', content, at)
    parts.append(content[at + 7 : at + 7 + length])
    at += 7 + length
    if kind in (1, 4):
      yield wandb_internal_pb2.Record.FromString(b''.join(parts))
      parts = []


def test_offline_runs_of_wandb(tmp_path, workdir, project):
  """Needs the extra wandb: bash scripts/run.sh pip install wandb"""
  wandb = pytest.importorskip('wandb', reason='the extra wandb is missing')
  write(workdir, 0, [1, 2])
  write(workdir, 1, [2, 4])
  wandb.teardown()
  found = []
  for path in sorted(tmp_path.glob('wandb/offline-run-*/*.wandb')):
    for record in records(path):
      if record.HasField('run'):
        config = {
          item.key or '.'.join(item.nested_key): json.loads(item.value_json)
          for item in record.run.config.update
        }
        found.append((record.run.project, record.run.run_id))
        assert config.items() >= CONFIG.items()
      if record.HasField('history'):
        row = {
          item.key or '.'.join(item.nested_key): json.loads(item.value_json)
          for item in record.history.item
        }
        found.append((row['_step'], row['loss']))
  name = ('positions', (tmp_path / 'wandb' / 'id').read_text())
  assert found == [name, (1, 1.0), (2, 0.5), name, (2, 0.5), (4, 0.25)]
