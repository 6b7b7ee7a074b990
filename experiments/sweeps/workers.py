"""Engine `processes`: a process on each core, which trains trial after trial.

Operations of a small model gain little from several threads, and trials on
cores of their own gain all of them. A process keeps its data and its compiled
program for the next trial.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from experiments.command import provenance
from experiments.command.errors import Failed, Interrupted, one_line
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, folder, plan
from experiments.sweeps.plan import Spec
from experiments.sweeps.watch import Watch

_POLL = 0.2  # seconds between checks for signals


@dataclasses.dataclass(frozen=True)
class _Worker:
  """A process, and this end of the pipe between them."""

  process: BaseProcess
  pipe: Any


def train(
  specs: list[Spec], workdir: str, watch: Watch, signals: Signals
) -> None:
  """Trains all unfinished trials, as many at once as there are cores.

  A trial whose process dies is FAILED; another process has its core.

  Args:
    workdir: folder of the sweep.
    watch: is told which trials begin and end.

  Raises:
    Interrupted: a signal was received; the running trials have saved.
  """
  programs = plan.programs_of(engines.unfinished(specs)).values()
  pending = collections.deque(spec for same in programs for spec in same)
  cores = provenance.cores()
  idle: list[_Worker] = []
  busy: dict[Any, tuple[_Worker, Spec]] = {}
  try:
    while pending or busy:
      while pending and len(busy) < cores:
        worker = idle.pop() if idle else _start(workdir)
        try:
          worker.pipe.send(pending[0].name)
        except ConnectionError:
          # It was killed while it had nothing to do.
          continue
        spec = pending.popleft()
        log(f'trial {spec.index} {spec.name}: {plan.describe(spec.overrides)}')
        busy[worker.pipe] = worker, spec
        watch.begin([spec])
      for pipe in wait(list(busy), _POLL):
        worker, spec = busy.pop(pipe)
        if _has_trained(worker, spec, signals):
          idle.append(worker)
        watch.end([spec])
      # The time left goes on.
      watch.bar.add(0)
      if signals.received:
        raise Interrupted(f'{signals.received}; run the same command again')
  finally:
    _stop([worker for worker, _ in busy.values()])
    for worker in idle:
      worker.pipe.close()


def _start(workdir: str) -> _Worker:
  here, there = multiprocessing.Pipe()
  # Forked, it would wait for locks of threads that it does not have.
  spawn = multiprocessing.get_context('spawn')
  command = provenance.command()
  process = spawn.Process(target=_work, args=(workdir, there, command))
  # Ctrl-C reaches all processes of a terminal; this one tells the others.
  blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    process.start()
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
  # Otherwise the pipe would not end with the process.
  there.close()
  return _Worker(process, here)


def _stop(workers: list[_Worker]) -> None:
  """Has the trials of all save, and waits until they have."""
  for worker in workers:
    worker.process.terminate()
  for worker in workers:
    worker.process.join()


def _has_trained(worker: _Worker, spec: Spec, signals: Signals) -> bool:
  """Reports a trial that has ended; whether its process has not."""
  answer = _answer(worker)
  lives = isinstance(answer, str)
  if lives and answer:
    log(answer)
  if isinstance(answer, Failed) and not signals.received:
    engines.give_up(spec, str(answer))
  engines.report(spec)
  return lives


def _answer(worker: _Worker) -> str | Failed | None:
  """What a process says of its trial, or why it has failed.

  None: after a signal to itself alone it has saved, and ended.
  """
  try:
    return worker.pipe.recv()
  # A ConnectionError if it has not read the name of the trial.
  except (EOFError, ConnectionError):
    worker.process.join()
    code = worker.process.exitcode
    return Failed(f'its process ended with exit code {code}') if code else None


def _work(workdir: str, pipe: Any, command: list[str]) -> None:
  """Trains the trials whose names come through the pipe, with one thread.

  Each has a log in its workdir. What is said of one that is not done goes back
  through the pipe, since lines of several would be mixed on standard error. So
  does the Failed with which the process ends after an exception.
  """
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
  provenance.work_for(command)
  # Read when jax makes its devices.
  os.environ['PJRT_NPROC'] = '1'
  signals = Signals()
  signals.install()
  threading.Thread(target=_end_with_parent, daemon=True).start()
  try:
    _train_named(workdir, pipe, signals)
  except (Interrupted, EOFError):
    pass
  except Exception as error:
    pipe.send(Failed(f'its process ended: {one_line(error)}'))


def _train_named(workdir: str, pipe: Any, signals: Signals) -> None:
  """Trains until a signal, Interrupted, or the end of the pipe, EOFError."""
  specs = {spec.name: spec for spec in folder.read(workdir)}
  shared = engines.Shared()
  while True:
    spec = specs[pipe.recv()]
    with contextlib.redirect_stderr(io.StringIO()) as said:
      engines.train([spec], signals, shared)
    is_done = not engines.unfinished([spec])
    pipe.send('' if is_done else said.getvalue().strip())


def _end_with_parent() -> None:
  """Saves and stops when the process that started this one is killed."""
  parent = multiprocessing.parent_process()
  assert parent is not None, 'only a worker calls this'
  parent.join()
  os.kill(os.getpid(), signal.SIGTERM)
