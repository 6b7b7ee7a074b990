"""Several processes, each of which trains one trial after another.

The parent sends the name of a trial over a pipe, and waits for the line that
says it is over. A process that dies takes only its trial with it. Nothing is
ever forked: jax runs threads, which a fork would tear.

    python -m experiments.sweeps.processes WORKDIR CORES UNTIL
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading

from experiments import launch
from experiments import workdir as workdir_lib
from experiments.launch import log
from experiments.signals import Interrupted, Signals
from experiments.sweeps import engines, folder, plan
from experiments.sweeps.plan import Spec

# Seconds between two looks at whether a signal has come.
_POLL = 0.2


def processes(
  specs: list[Spec], options: engines.Options, signals: Signals
) -> None:
  """Trains all trials that wait, options.max_parallel of them at once.

  Raises:
    Interrupted: a signal came; every process has saved its state.
  """
  ordered = [s for same in plan.programs_of(specs).values() for s in same]
  waiting = collections.deque(
    spec for spec in ordered if engines.is_waiting(spec, options.until)
  )
  count = min(options.max_parallel, len(waiting))
  cores = sorted(os.sched_getaffinity(0))
  running: list[subprocess.Popen] = []
  threads = []
  for index in range(count):
    share = cores[index % len(cores) :: count] or cores
    arguments = (waiting, share, count, options, signals, running)
    threads.append(threading.Thread(target=_feed, args=arguments))
    threads[-1].start()
  while any(thread.is_alive() for thread in threads):
    threads[0 if threads[0].is_alive() else -1].join(_POLL)
    if signals.received:
      for process in running:
        process.send_signal(signal.SIGTERM)
      for thread in threads:
        thread.join()
      raise Interrupted(f'{signals.received}; run the same command again')


def _feed(waiting, cores, count, options, signals, running) -> None:
  """Starts a process, and gives it trials until none waits."""
  process = None
  while waiting and not signals.received:
    try:
      spec = waiting.popleft()
    except IndexError:  # another thread was faster
      break
    if process is None:
      process = _start(cores, count, options)
      running.append(process)
    log(f'trial {spec.index} {spec.name}: {plan.describe(spec.overrides)}')
    try:
      process.stdin.write(spec.name + '\n')
      process.stdin.flush()
      answer = process.stdout.readline()
    except BrokenPipeError:
      answer = ''
    if answer:
      engines.tell(spec)
    else:
      code = process.wait()
      running.remove(process)
      process = None
      if code != launch.INTERRUPTED:
        reason = f'its process ended with {code}; see {spec.path}.txt'
        workdir_lib.give_up(spec.path, spec.config, reason)
        log(f'trial {spec.index} {spec.name} failed: {reason}')
  if process is not None:
    process.stdin.close()
    process.wait()
    running.remove(process)


def _start(cores, count, options) -> subprocess.Popen:
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
    text=True,
    # Where processes share an accelerator, each may take its part of what is
    # free at the start, and no more.
    env=os.environ | {'XLA_PYTHON_CLIENT_MEM_FRACTION': f'{0.9 / count:.3f}'},
  )


def main() -> None:
  """Trains the trials named on standard input, one line each."""
  workdir, cores, until = sys.argv[1:]
  # Before the first computation, which counts the cores for its threads.
  os.sched_setaffinity(0, map(int, cores.split(',')))
  signals, shared = Signals(), engines.Shared()
  signals.install()
  specs = {spec.name: spec for spec in folder.read(workdir)}
  stop_at = int(until) if until else None
  for line in sys.stdin:
    spec = specs[line.strip()]
    os.makedirs(os.path.dirname(spec.path), exist_ok=True)
    _redirect(f'{spec.path}.txt')
    try:
      engines.run([spec], stop_at, signals, shared)
    except Interrupted as error:
      log(f'interrupted: {error}')
      sys.exit(launch.INTERRUPTED)
    print('over', flush=True)


def _redirect(path: str) -> None:
  """Sends standard error to the end of a file."""
  file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
  os.dup2(file, sys.stderr.fileno())
  os.close(file)


if __name__ == '__main__':
  main()
