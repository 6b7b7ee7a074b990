"""Multi-process runs: joining the cluster, which jax finds.

Each process runs the same command. Without flags, the environment of Slurm or
of TPUs in Kubernetes says whether this is one of several processes; jax knows
other clusters, such as the hosts of a TPU VM, with --distributed=on.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from absl import flags

from experiments.command import command_line
from experiments.command.errors import Failed, Interrupted, UserError, one_line
from experiments.command.log import log
from experiments.command.signals import Signals

# Seconds for the others to end, too, after which they are left alone.
_FAREWELL = 10.0
# Seconds between looks at the name of a host.
_RETRY = 1.0
_joined = threading.Event()


def define(values: flags.FlagValues) -> None:
  """Adds the flags of multi-process runs."""
  command_line.define(
    values,
    ('distributed', 'auto', 'Whether this is one of several processes; auto: '
     'detected from Slurm or Kubernetes.', ('auto', 'on', 'off')),
    ('coordinator_address', None, 'HOST:PORT of process 0, the same for all '
     'processes.'),
    ('num_processes', None, 'Number of processes in the run.', 1),
    ('process_id', None, 'Index of this process, from 0 to num_processes - 1.',
     0),
    ('start_timeout', 300, 'Seconds to wait for all processes to start.', 1),
    ('peer_timeout', 60, 'Seconds without a heartbeat after which a process '
     'counts as dead.', 1),
  )  # fmt: skip


def find(
  values: flags.FlagValues, environ: Mapping[str, str]
) -> dict[str, Any] | None:
  """What the flags say of the cluster, by name of an argument of jax.

  {} if jax finds all of it; None for a single process. A UserError says which
  flags are missing, or contradict each other.
  """
  names = ('coordinator_address', 'num_processes', 'process_id')
  named: dict[str, Any] = {name: values[name].value for name in names}
  missing = [f'--{name}' for name, value in named.items() if value is None]
  if len(missing) == 3:
    how = values.distributed
    is_several = how == 'on' or (how == 'auto' and _has_several(environ))
    return {} if is_several else None
  if values.distributed == 'off':
    raise UserError(
      '--distributed=off is a single process, and excludes '
      f'{", ".join(f"--{name}" for name in names)}'
    )
  if missing:
    raise UserError(
      f'several processes also need {" and ".join(missing)}, in each of them'
    )
  address, count, index = named.values()
  if index >= count:
    raise UserError(
      f'--process_id={index} must be below --num_processes={count}'
    )
  if not re.fullmatch(r'.+:\d+', address):
    raise UserError(f'--coordinator_address={address} must be HOST:PORT')
  if index == 0:
    # The default of jax is every address of the host.
    named['coordinator_bind_address'] = address
  return named


def _has_several(environ: Mapping[str, str]) -> bool:
  """Whether this is a task of `srun`, or a host of TPU slices, of several."""
  tasks = environ.get('SLURM_STEP_NUM_TASKS', '1')
  if not tasks.isdecimal():
    raise UserError(
      f'SLURM_STEP_NUM_TASKS={tasks} must be a number, as srun sets it; unset '
      'it, or give --distributed=off'
    )
  hosts = environ.get('TPU_WORKER_HOSTNAMES', '').split(',')
  slices = environ.get('MEGASCALE_NUM_SLICES', '1')
  # The one task of several that has a terminal is a shell for a person.
  is_interactive = sys.stdin is not None and sys.stdin.isatty()
  is_task = int(tasks) > 1 and not is_interactive
  return is_task or len(hosts) > 1 or slices not in ('', '1')


def join(
  values: flags.FlagValues,
  cluster: Mapping[str, Any],
  signals: Signals | None = None,
) -> None:
  """Waits for all processes and initializes jax.distributed.

  Failed says that some did not start in time, or that they do not reach each
  other, which may pass; a UserError that jax finds no cluster.

  Args:
    values: flags of `define`, of which this reads the timeouts.
    cluster: what `find` returns.
    signals: end the wait in Interrupted; without them, they end Python.
  """
  start_timeout, peer_timeout = values.start_timeout, values.peer_timeout
  deadline = time.monotonic() + start_timeout
  if address := cluster.get('coordinator_bind_address'):
    with signals.at_once() if signals else contextlib.nullcontext():
      _wait_for_name(address, deadline)
    _check_free(address)
  log(f'waiting at most {start_timeout} s for all processes')
  done = concurrent.futures.Future()

  def start() -> None:
    try:
      _initialize(cluster, start_timeout, peer_timeout)
      _joined.set()
      done.set_result(None)
    except Exception as error:
      done.set_exception(error)

  # In a thread: jax waits where no signal is seen, and aborts the process after
  # its own timeout, which is longer.
  threading.Thread(target=start, daemon=True).start()
  try:
    with signals.at_once() if signals else contextlib.nullcontext():
      done.result(max(deadline - time.monotonic(), 1))
  except Interrupted:
    raise
  except TimeoutError as error:
    raise Failed(
      f'some processes have not started within {start_timeout} s '
      '(--start_timeout); run the same command for all of them, or give '
      '--distributed=off for a single one'
    ) from error
  except ValueError as error:
    raise UserError(
      f'jax finds no cluster: {one_line(error)}; give '
      '--coordinator_address, --num_processes and --process_id, or '
      '--distributed=off'
    ) from error
  except Exception as error:
    raise Failed(
      f'the processes do not form a cluster: {one_line(error)}'
    ) from error


def _wait_for_name(address: str, deadline: float) -> None:
  """Waits until the host of an address has one: a new pod has it later.

  Interrupted after the deadline, since the same command may then succeed.
  """
  host = address.rpartition(':')[0].strip('[]')
  while True:
    try:
      socket.getaddrinfo(host, None)
      return
    except (socket.gaierror, UnicodeError) as error:
      if time.monotonic() > deadline:
        raise Interrupted(
          f'--coordinator_address={address}: {one_line(error)}; after '
          '--start_timeout the host still has no address: run it again'
        ) from error
    time.sleep(_RETRY)


def _check_free(address: str) -> None:
  """UserError if process 0 cannot listen at HOST:PORT: jax may crash there."""
  host, _, port = address.rpartition(':')
  host = host.strip('[]')
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  try:
    socket.create_server((host, int(port)), family=family).close()
  except (OSError, OverflowError) as error:
    raise UserError(
      f'--coordinator_address={address}: process 0 cannot listen there: '
      f'{getattr(error, "strerror", None) or error}'
    ) from error


def _initialize(cluster, start_timeout: int, peer_timeout: int) -> None:
  # Late: commands that import jax late define these flags, too.
  import jax
  from jax.experimental import multihost_utils

  jax.distributed.initialize(
    **cluster,
    # All that this process sees; under Slurm jax would take only one.
    local_device_ids=[],
    cluster_detection_method='deactivate' if cluster else None,
    initialization_timeout=start_timeout + 60,
    heartbeat_timeout_seconds=peer_timeout,
  )
  multihost_utils.sync_global_devices('joined')


def is_one_of_several() -> bool:
  """Whether this process has begun to join others."""
  # Commands that do not import jax are alone.
  if 'jax' not in sys.modules:
    return False
  from jax.distributed import is_initialized

  return is_initialized()


def end(code: int) -> NoReturn:
  """Ends this process of several with an exit code.

  Others that did not come to the same end miss it after --peer_timeout.
  """
  import jax

  if _joined.is_set():
    # It waits for all others, and so for ever for one that does not end.
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(_FAREWELL)
  sys.stderr.flush()
  os._exit(code)
