"""Multi-process runs: finding the cluster and joining it.

Each process runs the same command. Without flags, the cluster is detected from
the environment (Slurm, TPUs of Kubernetes); only --distributed=on lets jax
detect others, such as the hosts of a TPU VM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping

from absl import flags

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.signals import Signals

# Seconds between attempts to reach process 0, and to wait for its reply.
_RETRY, _REPLY = 0.2, 5.0
# Port of process 0 where the cluster defines none; the default of jax.
_PORT = 8476


@dataclasses.dataclass(frozen=True)
class Cluster:
  """A cluster, and one of its processes; None: detected by jax.

  Attributes:
    address: HOST:PORT of process 0.
    count: number of processes.
    index: id of this process, from 0.
    source: where the values come from, for messages.
  """

  address: str | None
  count: int | None
  index: int | None
  source: str


def define(values: flags.FlagValues) -> None:
  """Adds the flags of multi-process runs."""
  flags.DEFINE_enum(
    'distributed',
    'auto',
    ['auto', 'on', 'off'],
    'Whether this is one of several processes; auto: detected from Slurm or '
    'Kubernetes.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'coordinator_address',
    None,
    'HOST:PORT of process 0, the same for all processes.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'num_processes',
    None,
    'Number of processes in the run.',
    1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'process_id',
    None,
    'Index of this process, from 0 to num_processes - 1.',
    0,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'start_timeout',
    300,
    'Seconds to wait for all processes to start.',
    1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'peer_timeout',
    60,
    'Seconds without a heartbeat after which a process counts as dead.',
    1,
    flag_values=values,
  )


def find(
  values: flags.FlagValues, environ: Mapping[str, str]
) -> Cluster | None:
  """The cluster given by flags or the environment; None: a single process.

  Raises:
    UserError: some of the flags are missing, or contradict each other.
  """
  given = {
    name: values[name].value
    for name in ('coordinator_address', 'num_processes', 'process_id')
  }
  missing = [f'--{name}' for name, value in given.items() if value is None]
  if values.distributed == 'off':
    if len(missing) < 3:
      raise UserError(
        '--distributed=off excludes --coordinator_address, --num_processes and '
        '--process_id'
      )
    return None
  if missing and len(missing) < 3:
    raise UserError(
      f'{" and ".join(missing)} required: give --coordinator_address, '
      '--num_processes and --process_id, or none of them'
    )
  if not missing:
    address, count, index = given.values()
    if index >= count:
      raise UserError(
        f'--process_id={index} must be below --num_processes={count}'
      )
    if not re.fullmatch(r'.+:\d+', address):
      raise UserError(f'--coordinator_address={address} must be HOST:PORT')
    return Cluster(address, count, index, 'flags')
  found = _slurm(environ) or _gke(environ)
  if found is None and values.distributed == 'on':
    return Cluster(None, None, None, 'jax')
  return found


def _slurm(environ) -> Cluster | None:
  """The cluster of an srun step; None in a shell or a batch script."""
  names = ['JOB_ID', 'STEP_NODELIST', 'NTASKS', 'PROCID']
  values = [environ.get(f'SLURM_{name}') for name in names]
  if None in values or int(values[2]) < 2:
    return None
  job, nodes, count, index = values
  # Derived from the job id, so that two jobs on a host do not collide.
  port = 61440 + int(job) % 4096
  return Cluster(
    f'{_first_node(nodes)}:{port}', int(count), int(index), 'Slurm'
  )


def _first_node(nodes: str) -> str:
  """`a` of `a,b`; `a01` of `a[01-03,7],b`."""
  found = re.match(r'([^,\[]+)(?:\[([^,\-\]]+))?', nodes)
  return found[1] + (found[2] or '')


def _gke(environ) -> Cluster | None:
  hosts = environ.get('TPU_WORKER_HOSTNAMES', '').split(',')
  index = environ.get('TPU_WORKER_ID')
  if len(hosts) < 2 or index is None:
    return None
  return Cluster(f'{hosts[0]}:{_PORT}', len(hosts), int(index), 'Kubernetes')


def join(
  cluster: Cluster,
  start_timeout: int,
  peer_timeout: int,
  signals: Signals | None = None,
) -> None:
  """Waits for all processes and initializes jax.distributed.

  Args:
    cluster: of `find`.
    start_timeout, peer_timeout: the flags.
    signals: those that end this before the others have started, unless jax
      detects the processes; None: those that end Python.

  Raises:
    UserError: some did not start in time, or the port is in use.
    Interrupted: a signal was received.
  """
  # Late: commands that import jax late define these flags, too.
  import jax
  from jax.experimental import multihost_utils

  if cluster.count is not None:
    log(
      f'process {cluster.index} of {cluster.count} ({cluster.source}), '
      f'coordinator {cluster.address}; waiting for all processes, at most '
      f'{start_timeout} s'
    )
    with signals.at_once() if signals else contextlib.nullcontext():
      roll_call(cluster, start_timeout)
  else:
    log(
      f'waiting at most {start_timeout} s for the processes that jax detects; '
      'run this command on every host'
    )
  try:
    with _printing_to_stderr():
      jax.distributed.initialize(
        cluster.address,
        cluster.count,
        cluster.index,
        cluster_detection_method=(
          None if cluster.count is None else 'deactivate'
        ),
        coordinator_bind_address=(
          cluster.address if cluster.index == 0 else None
        ),
        initialization_timeout=start_timeout,
        heartbeat_timeout_seconds=peer_timeout,
      )
      multihost_utils.sync_global_devices('joined')
  except (RuntimeError, ValueError) as error:
    raise UserError(
      f'--distributed={"on" if cluster.count is None else "auto"}: jax cannot '
      f'form a cluster: {str(error).splitlines()[0]}; give '
      '--coordinator_address, --num_processes and --process_id, or '
      '--distributed=off'
    ) from error


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
  """A block in which libraries in C++ print to standard error.

  Gloo says on standard output, which is for results, what it is connected to.
  """
  sys.stdout.flush()
  saved = os.dup(1)
  os.dup2(2, 1)
  try:
    yield
  finally:
    os.dup2(saved, 1)
    os.close(saved)


def roll_call(cluster: Cluster, seconds: float) -> None:
  """Returns when all processes have started.

  jax waits as well, but aborts the process on a timeout, without naming the
  missing ones.

  Raises:
    UserError: on all processes that started; names the missing ones.
  """
  host, _, port = cluster.address.rpartition(':')
  deadline = time.monotonic() + seconds
  if cluster.index == 0:
    missing = _collect(cluster, (host, int(port)), deadline)
  else:
    missing = _report(cluster, (host, int(port)), deadline)
  if missing:
    names = ', '.join(map(str, missing))
    raise UserError(
      f'timed out after {seconds:g} s (--start_timeout) waiting for processes '
      f'{names} of {cluster.count}; run the same command for every '
      f'--process_id from 0 to {cluster.count - 1}'
    )


def _collect(cluster: Cluster, address, deadline: float) -> list[int]:
  try:
    server = socket.create_server(address)
  except OSError as error:
    raise UserError(
      f'--coordinator_address={cluster.address}: process 0 cannot listen '
      f'there: {error.strerror or error}'
    ) from error
  present = {0: None}
  with server:
    while not _are_all(present, cluster.count):
      server.settimeout(max(0.01, deadline - time.monotonic()))
      try:
        connection, _ = server.accept()
        connection.settimeout(_REPLY)
        index = int(connection.makefile().readline())
        # One that has ended, whose place this one takes.
        if (earlier := present.get(index)) is not None:
          earlier.close()
        present[index] = connection
      except (TimeoutError, ValueError):
        if time.monotonic() >= deadline:
          break
    missing = sorted(set(range(cluster.count)) - set(present))
    for connection in present.values():
      if connection is not None:
        with connection:
          connection.sendall((json.dumps(missing) + '\n').encode())
  return missing


def _are_all(present: dict[int, socket.socket | None], count: int) -> bool:
  """Whether all have reported; removes those that have ended since."""
  for index, connection in list(present.items()):
    if connection is not None and _is_closed(connection):
      connection.close()
      del present[index]
  return len(present) == count


def _is_closed(connection: socket.socket) -> bool:
  connection.setblocking(False)
  try:
    return connection.recv(1, socket.MSG_PEEK) == b''
  except BlockingIOError:
    return False
  except OSError:
    return True
  finally:
    connection.settimeout(_REPLY)


def _report(cluster: Cluster, address, deadline: float) -> list[int]:
  while True:
    left = deadline - time.monotonic()
    if left <= 0:
      return [0]
    try:
      with socket.create_connection(address, timeout=left) as connection:
        connection.sendall(f'{cluster.index}\n'.encode())
        # Process 0 replies when all have connected, or at its own timeout.
        connection.settimeout(left + _REPLY)
        return json.loads(connection.makefile().readline())
    except (OSError, ValueError):
      time.sleep(_RETRY)
