"""Engine `processes`: workers, each of which trains one trial after another.

The parent sends the name of a trial over a pipe, and waits for a line when it
has ended. A worker that dies fails only its current trial. Workers are spawned,
not forked: jax is multithreaded, and a forked child may deadlock.

    python -m experiments.sweeps.processes WORKDIR CORES UNTIL
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

from experiments.command import app, invocation
from experiments.command.errors import Interrupted
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, folder, plan
from experiments.sweeps.plan import Spec
from experiments.workdir import buckets

# Seconds between checks for signals.
_POLL = 0.2


def processes(
  specs: list[Spec], options: engines.Options, signals: Signals
) -> None:
  """Trains all unfinished trials, options.max_parallel of them in parallel.

  Raises:
    Interrupted: a signal was received; every worker has saved its state.
  """
  ordered = [s for same in plan.programs_of(specs).values() for s in same]
  queue = collections.deque(
    spec for spec in ordered if engines.is_unfinished(spec, options.until)
  )
  count = min(options.max_parallel, len(queue))
  cores = engines.available_cores()
  workers = _Workers(options, count, signals)
  log(f'logs of trials: {buckets.origin(options.workdir)}/trials/NAME.txt')
  with concurrent.futures.ThreadPoolExecutor(max(count, 1)) as pool:
    feeding = [
      pool.submit(_feed, queue, cores[n % len(cores) :: count], workers)
      for n in range(count)
    ]
    while not all(future.done() for future in feeding):
      concurrent.futures.wait(feeding, timeout=_POLL)
      if signals.received:
        workers.end()
        break
  for future in feeding:
    future.result()
  if signals.received and any(
    engines.is_unfinished(spec, options.until) for spec in ordered
  ):
    raise Interrupted(f'{signals.received}; run the same command again')


class _Workers:
  """The worker processes; none is started after a signal."""

  def __init__(self, options: engines.Options, count: int, signals: Signals):
    self.signals = signals
    self._options, self._count = options, count
    self._running: list[subprocess.Popen] = []
    self._lock = threading.Lock()

  def start(self, cores: list[int], log_fd: int) -> subprocess.Popen | None:
    """Starts a worker on some cores; None after a signal.

    Args:
      log_fd: file descriptor of its standard error.
    """
    with self._lock:
      if self.signals.received:
        return None
      self._running.append(_start(cores, self._count, self._options, log_fd))
      return self._running[-1]

  def end(self) -> None:
    """Sends SIGTERM to all workers, after which they save and exit."""
    with self._lock:
      for process in self._running:
        process.send_signal(signal.SIGTERM)


def _feed(queue, cores: list[int], workers: _Workers) -> None:
  """Starts a worker, and sends it trials until the queue is empty."""
  process = None
  while queue and not workers.signals.received:
    try:
      spec = queue.popleft()
    except IndexError:  # another thread was faster
      break
    # Opened here, so that it exists even if the worker dies in its imports.
    with _log_of(spec) as file:
      process = process or workers.start(cores, file.fileno())
    if process is None:
      break
    log(f'trial {spec.index} {spec.name}: {plan.describe(spec.overrides)}')
    try:
      process.stdin.write(spec.name + '\n')
      process.stdin.flush()
      has_ended = bool(process.stdout.readline())
    except BrokenPipeError:
      has_ended = False
    if has_ended:
      engines.log_result(spec)
      continue
    code, process = _end(process), None
    # A worker that ends after a signal has not failed, whatever its code.
    if code != app.INTERRUPTED and not workers.signals.received:
      path = buckets.origin(f'{spec.path}.txt')
      reason = f'its process ended with {code}; see {path}'
      engines.give_up(spec, reason)
  if process is not None:
    _end(process)


def _end(process: subprocess.Popen) -> int:
  """Closes the pipes of a worker, and returns its exit code."""
  # A worker that died may not have read its last trial.
  with contextlib.suppress(BrokenPipeError), process:
    pass
  return process.returncode


def _start(cores, count, options, log_fd: int) -> subprocess.Popen:
  # A child inherits the signal mask. A signal that arrives during its imports
  # is delivered once its handlers are installed.
  before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
  try:
    return subprocess.Popen(
      [
        sys.executable,
        '-m',
        'experiments.sweeps.processes',
        options.workdir,
        ','.join(map(str, cores)),
        str(options.until or ''),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=log_fd,
      text=True,
      # Workers that share an accelerator preallocate equal fractions of its
      # memory.
      env=os.environ
      | {'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.9 / count:.3f}'}
      | {invocation.COMMAND: json.dumps(invocation.command())},
    )
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
  """Trains the trials named on standard input, one per line."""
  with contextlib.redirect_stderr(app.Unbreakable(sys.stderr)):
    _main(*sys.argv[1:])


def _main(workdir: str, cores: str, until: str) -> None:
  # Before the first computation, which creates one thread per core.
  if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, map(int, cores.split(',')))
  signals, shared = Signals(), engines.Shared()
  signals.install()
  signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
  specs = {spec.name: spec for spec in folder.read(workdir)}
  stop_at = int(until) if until else None
  for line in sys.stdin:
    spec = specs[line.strip()]
    with _log_of(spec) as file:
      os.dup2(file.fileno(), sys.stderr.fileno())
    try:
      engines.run([spec], stop_at, signals, shared)
    except Interrupted as error:
      log(f'interrupted: {error}')
      sys.exit(app.INTERRUPTED)
    print('over', flush=True)


def _log_of(spec: Spec):
  """The log of a trial, to append to."""
  os.makedirs(os.path.dirname(spec.path), exist_ok=True)
  return open(f'{spec.path}.txt', 'ab')


if __name__ == '__main__':
  main()
