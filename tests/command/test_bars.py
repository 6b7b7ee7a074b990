"""Bars on a terminal, which are played on a pseudo terminal; none elsewhere."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap

import pytest
from conftest import ROOT

# What moves the cursor, hides it, or colours.
ESCAPE = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
SHOWN, HIDDEN = '\x1b[?25h', '\x1b[?25l'
ERASED = f'\r\x1b[2K{SHOWN}\r'
# Bars that are drawn at each count, where the text of a test begins.
BEGIN = """
import os, signal, sys
from experiments.command import app, log
from experiments.command.log import Reporter
from experiments.command.signals import Signals
log._REFRESH = 0
"""
WORK = """
with Reporter('{} things', 2000, has_lines=False) as report:
  for _ in range(20):
    report.add(100)
"""
# Ten seconds of two reporters, of which one has lines.
LINES = """
import time
lines = Reporter('read {} rows')
quiet = Reporter('{} things', 5000, has_lines=False)
start = time.monotonic()
time.monotonic = lambda: start + 10.1
for report in (lines, quiet):
  list(report.counted([[0] * 2000]))
"""


def environment(**more):
  names = {'NO_COLOR', 'FORCE_COLOR', 'TTY_COMPATIBLE', 'TTY_INTERACTIVE'}
  names |= {'COLORTERM', 'COLUMNS', 'LINES'}
  kept = {k: v for k, v in os.environ.items() if k not in names}
  return kept | {'PYTHONPATH': str(ROOT), 'TERM': 'xterm'} | more


@pytest.fixture
def on_terminal():
  """Runs Python text on a terminal of 80 columns: (exit code, what it has)."""

  def run(text, **more):
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0))
    process = subprocess.Popen(
      [sys.executable, '-c', BEGIN + textwrap.dedent(text)],
      stdin=theirs,
      stdout=theirs,
      stderr=theirs,
      env=environment(**more),
    )
    os.close(theirs)
    written = b''
    # EIO, once the process has closed the other end.
    try:
      while part := os.read(ours, 65536):
        written += part
    except OSError:
      pass
    finally:
      os.close(ours)
    return process.wait(60), written.decode()

  return run


def lines(written):
  """All lines that a terminal has had, without colours."""
  return [ESCAPE.sub('', line) for line in re.split(r'[\r\n]+', written)]


def test_a_bar_has_count_and_time_left_in_80_columns_and_goes(on_terminal):
  code, written = on_terminal(WORK)
  assert code == 0
  bars = [line for line in lines(written) if 'things' in line]
  assert any(
    re.fullmatch(r'1,000/2,000 things \S+ 0:00:0\d', bar) for bar in bars
  )
  assert {len(bar) for bar in bars} == {80}
  assert written.endswith(ERASED)


@pytest.mark.parametrize(
  ('term', 'colour'), [('xterm', '90'), ('xterm-256color', '38;5;243')]
)
def test_what_is_not_done_is_grey_on_any_background(term, colour, on_terminal):
  """rich's own is nearly black; bright black may be the background."""
  _, written = on_terminal(WORK, TERM=term)
  assert f'\x1b[{colour}m━' in written


def test_a_line_of_the_log_is_whole_above_a_bar(on_terminal):
  _, written = on_terminal("""
    with Reporter('{} things', 9) as report:
      report.add(1)
      log.log('[word] ' * 30)
      report.add(1)
  """)
  assert ('[word] ' * 30).rstrip() in [line.rstrip() for line in lines(written)]
  assert '2/9 things' in written.split('[word]')[-1]


def test_a_table_stands_below_its_bar_and_goes_with_it(on_terminal):
  _, written = on_terminal("""
    with Reporter('{} trials', 4) as outer:
      outer.table = lambda: [['setting', 'ended'], ['[1, 2]', '1/2']]
      outer.show()
      with Reporter('{} steps', 5) as inner:
        inner.add(3)
    log.log('end')
  """)
  shown = lines(written)
  last = max(n for n, line in enumerate(shown) if '3/5 steps' in line)
  assert [line.split() for line in shown[last + 1 : last + 3]] == [
    ['setting', 'ended'],
    ['[1,', '2]', '1/2'],
  ]
  assert '0/4 trials' in shown[last - 1]
  assert written.endswith('end\r\n')


@pytest.mark.parametrize('columns', ['40', '80'])
def test_nothing_is_cut(columns, on_terminal):
  work = """
    name = 'position=rotary(base=500)+t5(num_buckets=16), learning_rate=0.001'
    row = [name, '1/3', '', '0.6543', 'trial 3, trial 4']
    score = 'mean best validation/accuracy'
    header = ['setting', 'done', 'failed', score, 'running']
    with Reporter('{} trials', 8) as outer:
      outer.table = lambda: [header, row]
      outer.show()
      best = 'best recall_of_the_first_sentence 1.234'
      text = '{} steps  loss 1.234  ' + best + '  135.7 steps/s'
      with Reporter(text, 200000) as inner:
        inner.add(1)
        inner.add(99999)
  """
  _, written = on_terminal(work, COLUMNS=columns)
  assert '…' not in written
  shown = '\n'.join(lines(written))
  assert 'steps/s' in shown
  assert re.search(r'100,000/200,000 steps .*━{4,}\S* \d:\d\d:\d\d\n', shown)


def test_the_cursor_is_never_left_hidden(on_terminal):
  code, written = on_terminal("""
    with Reporter('{} things', 9) as report:
      report.add(1)
      os.kill(os.getpid(), signal.SIGKILL)
  """)
  assert code == -9
  assert '1/9 things' in written
  assert written.rindex(SHOWN) > written.rindex(HIDDEN)


def test_messages_of_signals_are_read_below_bars(on_terminal):
  code, written = on_terminal("""
    Signals().install()
    with Reporter('{} things', 9) as report:
      report.add(1)
      os.kill(os.getpid(), signal.SIGINT)
      report.add(1)
      os.kill(os.getpid(), signal.SIGINT)
  """)
  assert code == 130
  first, second = (
    next(line for line in lines(written) if text in line)
    for text in ('saving', 'second')
  )
  assert first == 'received SIGINT: saving after this step'
  assert second.startswith('second SIGINT: exiting at once')
  # Nothing erases them.
  assert ESCAPE.sub('', written).endswith('files\r\n')


@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_signal_while_a_bar_begins_is_received_behind_it(on_terminal, when):
  """Its handler hides the bar, of which a half would stay."""
  code, written = on_terminal(f"""
    import rich.live
    Signals().install()
    begin = rich.live.Live.start

    def start(live):
      {'os.kill(os.getpid(), signal.SIGTERM)' if when == 'before' else ''}
      begin(live)
      {'os.kill(os.getpid(), signal.SIGTERM)' if when == 'after' else ''}
      print('started')

    rich.live.Live.start = start
    with Reporter('{{}} things', 9) as report:
      report.add(1)
    log.log(type(sys.stderr).__name__)
  """)
  assert code == 0
  said = [line for line in lines(written) if line]
  assert 'received SIGTERM: saving after this step' in said
  assert said.index('started') < said.index(
    'received SIGTERM: saving after this step'
  )
  assert said[-1] == 'TextIOWrapper'
  assert written.rindex(SHOWN) > written.rindex(HIDDEN)


def test_a_process_without_standard_output_has_bars(on_terminal):
  code, written = on_terminal(
    f"sys.stdout = None\n{WORK}app.print_lines(['a'])"
  )
  assert code == 0
  assert '1,000/2,000 things' in written


def test_the_time_left_goes_down_between_two_counts(on_terminal):
  """As where each of three trials takes an hour."""
  _, written = on_terminal("""
    import time
    now = time.monotonic()
    time.monotonic = lambda: now
    with Reporter('{} trials', 3) as report:
      report.show()
      now += 3600
      report.add(1)
      now += 1800
      report.add(0)
      now += 90000
      report.add(0)
  """)
  left = re.findall(r'/3 trials \S+ ?(\S*)', ESCAPE.sub('', written))
  assert left == ['', '2:00:00', '1:30:00', '0:00:00']


def test_standard_output_on_the_same_terminal_is_as_printed(on_terminal):
  _, written = on_terminal("""
    with Reporter('{} things', 9) as report:
      report.add(1)
      app.print_lines(['a\\tb ' + 'c' * 100])
      report.add(1)
  """)
  assert 'a\tb ' + 'c' * 100 in lines(written)


def test_an_error_is_read_after_a_bar(on_terminal):
  code, written = on_terminal("""
    from experiments.command.errors import UserError

    def main(values):
      with Reporter('{} things', 9) as report:
        report.add(1)
        raise UserError('too wide')

    sys.argv = ['name']
    app.run(main, lambda values: None, 'Doc.')
  """)
  assert code == 2
  assert written.endswith(f'{ERASED}error: too wide\r\n')


@pytest.mark.parametrize(
  ('text', 'more'),
  [
    (LINES, {'TERM': 'dumb'}),
    # Another process than the first one of several.
    (
      'from types import SimpleNamespace as Fake\n'
      "sys.modules['jax'] = Fake()\n"
      "name = 'experiments.command.processes'\n"
      'sys.modules[name] = Fake(is_first=lambda: False)\n' + LINES,
      {},
    ),
  ],
)
def test_lines_take_the_place_of_bars_on(on_terminal, text, more):
  assert on_terminal(text, **more) == (0, 'read 2,000 rows\r\n')


def test_a_terminal_without_colours_has_bars(on_terminal):
  _, written = on_terminal(WORK, NO_COLOR='1')
  assert '1,000/2,000 things' in written
  assert not re.search(r'\x1b\[[0-9;]*m', written)


def test_a_pipe_has_lines_alone_and_does_not_wait_for_rich():
  done = subprocess.run(
    [sys.executable, '-c', f"{BEGIN}{LINES}assert 'rich' not in sys.modules"],
    capture_output=True,
    text=True,
    env=environment(),
    check=False,
  )
  assert (done.returncode, done.stdout) == (0, ''), done.stderr
  assert done.stderr == 'read 2,000 rows\n'
