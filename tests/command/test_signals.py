"""Handling of preemption signals."""

import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT

NAMES = ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGUSR2', 'SIGHUP')


def run(text):
  start = """
    import os, signal, sys
    from experiments.command.signals import Interrupted, Signals
    signals = Signals()
    signals.install()
    def send(name):
      os.kill(os.getpid(), signal.Signals[name])
  """
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(start) + textwrap.dedent(text)],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=60,
    check=False,
  )


@pytest.mark.parametrize('name', NAMES)
def test_each_signal_is_recorded_until_a_check(name):
  done = run(f"""
    signals.check()
    send({name!r})
    print('the update goes on')
    try:
      signals.check()
    except Interrupted as error:
      print(error)
  """)
  assert done.stdout.splitlines() == ['the update goes on', name], done.stderr
  assert done.stderr == f'received {name}: saving after this step\n'


def test_a_second_sigint_exits_at_once():
  done = run("""
    send('SIGINT')
    send('SIGINT')
    print('never')
  """)
  assert (done.returncode, done.stdout) == (130, '')


def test_other_signals_twice_do_not_prevent_a_save():
  done = run("""
    for name in ('SIGUSR1', 'SIGTERM', 'SIGTERM'):
      send(name)
    print('saved')
  """)
  assert (done.returncode, done.stdout) == (0, 'saved\n')


def test_a_block_without_state_ends_at_once():
  done = run("""
    try:
      with signals.at_once():
        send('SIGTERM')
        print('never')
    except Interrupted as error:
      print(error)
    send('SIGTERM')
    print('only remembered again')
  """)
  assert done.stdout.splitlines() == [
    'SIGTERM; nothing to save',
    'only remembered again',
  ]


def test_a_block_without_state_does_not_begin_after_a_signal():
  done = run("""
    send('SIGTERM')
    try:
      with signals.at_once():
        print('never')
    except Interrupted as error:
      print(error)
  """)
  assert done.stdout == 'SIGTERM; nothing to save\n', done.stderr


def test_a_signal_counts_though_a_library_raises_something_else():
  """As jax does if it cannot read the traceback of the handler's exception."""
  done = run("""
    try:
      with signals.at_once():
        try:
          send('SIGINT')
        except Exception:
          raise TypeError
    except Interrupted as error:
      print(error)
    try:
      with Signals().at_once():
        raise TypeError
    except TypeError:
      print('without a signal it stays')
  """)
  assert done.stdout.splitlines() == [
    'SIGINT; nothing to save',
    'without a signal it stays',
  ], done.stderr


def test_a_signal_ends_predict_between_computations():
  """An exception in the middle of one would pass through code of jax."""
  done = run("""
    from experiments.training.answers import interruptible
    def texts():
      yield ['fine']
      send('SIGUSR1')
      print('never')
    windows = interruptible(texts(), signals)
    try:
      for _ in windows:
        print('computed')
    except Interrupted as error:
      print(error)
    signals.received = None
    try:
      for _ in interruptible(iter([['fine'], ['dull']]), signals):
        send('SIGUSR1')
        print('computed')
    except Interrupted as error:
      print(error)
  """)
  assert done.stdout.splitlines() == [
    'computed',
    'SIGUSR1; nothing to save',
    'computed',
    'SIGUSR1; nothing to save',
  ], done.stderr


def test_several_processes_stop_at_the_same_check():
  """With a mock of the preemption service that answers yes at check 3."""
  done = run("""
    send('SIGUSR2')
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append('SIGTERM'))
    signals.share(lambda look: look == 3)
    for look in (1, 2):
      signals.check()
    try:
      signals.check()
    except Interrupted as error:
      print(error, told)
    with signals.at_once():
      send('SIGUSR1')
    print(told)
  """)
  assert done.stdout.splitlines() == [
    "SIGUSR2 ['SIGTERM']",
    "['SIGTERM', 'SIGTERM']",
  ], done.stderr


def test_an_ignored_signal_stays_ignored():
  """As under nohup, for a run that outlives its terminal."""
  done = run("""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    other = Signals()
    other.install()
    send('SIGHUP')
    other.check()
    send('SIGTERM')
    print(other.received)
  """)
  assert done.stdout == 'SIGTERM\n', done.stderr


def test_a_signal_is_recorded_though_standard_error_is_closed():
  done = run("""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)
    send('SIGINT')
    print(signals.received)
  """)
  assert done.stdout == 'SIGINT\n'
