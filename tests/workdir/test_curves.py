"""The curves of a run in TensorBoard and in Weights & Biases."""

import importlib.machinery
import struct
import sys
import types

import pytest

from experiments.workdir import metrics
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


def write(workdir, start, steps, has_failed=False):
  writer = metrics.MetricWriter(workdir, CONFIG, start)
  for step in steps:
    writer.write(step, {'loss': 1.0 / step})
  writer.close(has_failed)


def events(path):
  """What TensorBoard reads: records of a length and two check sums."""
  from tensorboardX.proto.event_pb2 import Event

  for file in sorted(path.iterdir(), key=lambda file: file.stat().st_mtime_ns):
    content, at = file.read_bytes(), 0
    while at < len(content):
      (length,) = struct.unpack_from('<Q', content, at)
      yield Event.FromString(content[at + 12 : at + 12 + length])
      at += length + 16


def test_tensorboard_has_curves_of_all_attempts(workdir, tmp_path):
  write(workdir, 0, [1, 2])
  points, restarts = [], []
  for event in events(tmp_path / 'tensorboard'):
    if event.HasField('session_log'):
      restarts.append(event.step)
    points += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
  assert restarts == [1]
  assert points == [('loss', 1, 1.0), ('loss', 2, 0.5)]


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


def test_attempts_are_one_run_of_wandb(workdir, tmp_path, project, monkeypatch):
  (tmp_path / 'other').mkdir()
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  write(workdir, 0, [1, 2], has_failed=True)
  write(workdir, 1, [2, 4])
  write(Workdir(str(tmp_path / 'other'), 1), 0, [])
  first, second, other = fake.runs
  assert first['id'] == second['id'] != other['id']
  assert (first['dir'], other['name']) == (workdir.path, 'other')
  assert first['resume'] == 'allow'
  assert first['config'] == CONFIG
  assert fake.rows == [
    (1, {'loss': 1.0}), (2, {'loss': 0.5}), 'finished 1',
    (2, {'loss': 0.5}), (4, {'loss': 0.25}), 'finished 0', 'finished 0',
  ]  # fmt: skip


@pytest.mark.parametrize('kind', [Fake.Error, ValueError, None])
def test_a_run_continues_without_wandb(
  kind, workdir, project, monkeypatch, capfd
):
  # A module that is None is not installed.
  wandb = kind and Fake(kind('no\nkey'))
  monkeypatch.setitem(sys.modules, 'wandb', wandb)
  write(workdir, 0, [1])
  reason = 'no key\n' if kind else 'import of wandb halted'
  assert f'no curves for Weights & Biases: {reason}' in capfd.readouterr().err
  fake = Fake()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  writer = metrics.MetricWriter(workdir, CONFIG, 0)
  writer.write(1, {'loss': 0.0})
  writer.close()
  assert fake.rows == ['finished 0']
  assert len(metrics.read_rows(workdir.file('metrics.jsonl'))) == 1
