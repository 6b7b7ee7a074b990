"""Handling of preemption signals, which are raised in this process."""

import os
import signal

import pytest

from experiments.command.signals import Interrupted, Signals
from experiments.training.answers import interruptible

NAMES = ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGUSR2', 'SIGHUP')


def send(*names):
  for name in names:
    signal.raise_signal(signal.Signals[name])


@pytest.fixture
def signals():
  """Installed; afterwards, signals are handled as before."""
  numbers = [signal.Signals[name] for name in NAMES]
  handlers = {number: signal.getsignal(number) for number in numbers}
  for number in numbers:
    # The tests may run under nohup.
    signal.signal(number, signal.SIG_DFL)
  made = Signals()
  made.install()
  yield made
  for number, handler in handlers.items():
    signal.signal(number, handler)


@pytest.mark.parametrize('name', NAMES)
def test_each_signal_is_recorded_until_a_check(name, signals, capfd):
  signals.check()
  send(name)
  with pytest.raises(Interrupted, match=f'^{name}$'):
    signals.check()
  said = f'received {name}: saving after this step\n'
  assert capfd.readouterr().err == said


def test_only_a_second_sigint_exits_at_once(signals, monkeypatch):
  codes = []
  monkeypatch.setattr(os, '_exit', codes.append)
  send('SIGUSR1', 'SIGTERM', 'SIGTERM')
  assert codes == []
  send('SIGINT')
  assert codes == [130]


def test_a_block_without_state_ends_at_once_and_does_not_begin(signals, capfd):
  with pytest.raises(Interrupted, match='nothing to save'), signals.at_once():
    send('SIGTERM')
  assert capfd.readouterr().err == ''
  send('SIGTERM')
  assert capfd.readouterr().err.startswith('received SIGTERM')
  with pytest.raises(Interrupted, match='nothing to save'), signals.at_once():
    pytest.fail('the block begins')


def test_a_signal_counts_though_a_library_raises_something_else(signals):
  """As jax does if it cannot read the traceback of the handler's exception."""
  with pytest.raises(TypeError), signals.at_once():
    raise TypeError

  def library():
    try:
      send('SIGINT')
    except Interrupted:
      raise TypeError from None

  with pytest.raises(Interrupted, match='SIGINT'), signals.at_once():
    library()


def test_a_signal_ends_predict_between_computations(signals):
  """An exception in the middle of one would pass through code of jax."""

  def texts():
    yield ['fine']
    send('SIGUSR1')
    pytest.fail('it reads on')

  windows = interruptible(texts(), signals)
  assert next(windows) == ['fine']
  with pytest.raises(Interrupted, match='SIGUSR1; nothing to save'):
    next(windows)
  signals.received = None
  windows = interruptible(iter([['fine'], ['dull']]), signals)
  next(windows)
  send('SIGUSR1')
  with pytest.raises(Interrupted, match='SIGUSR1; nothing to save'):
    next(windows)


def test_several_processes_stop_at_the_same_check(signals, monkeypatch):
  """With a mock of the preemption service that answers yes at check 3."""
  told = []
  monkeypatch.setattr(os, 'kill', lambda _, number: told.append(number))
  send('SIGUSR2')
  signals.share(lambda look: look == 3)
  signals.check()
  signals.check()
  with pytest.raises(Interrupted, match='SIGUSR2'):
    signals.check()
  with signals.at_once():
    send('SIGUSR1')
  assert told == [signal.SIGTERM] * 2


def test_an_ignored_signal_stays_ignored(signals):
  """As under nohup, for a run that outlives its terminal."""
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  other = Signals()
  other.install()
  send('SIGHUP')
  other.check()
  send('SIGTERM')
  assert other.received == 'SIGTERM'


def test_a_signal_is_recorded_though_standard_error_is_closed(
  signals, monkeypatch
):
  def closed(*_):
    raise OSError('closed')

  monkeypatch.setattr(os, 'write', closed)
  send('SIGINT')
  assert signals.received == 'SIGINT'
