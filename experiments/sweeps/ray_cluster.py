"""Engine `ray`: tasks of one trial each, or of a group on a cluster with GPUs.

A task lost with its node is restarted on another one and resumes from the last
checkpoint; the workdir must be in a bucket, or on a file system that all nodes
share. Ray is the extra `ray` of pyproject.toml.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from typing import Any

from experiments.command import provenance
from experiments.command.errors import Interrupted, UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, folder, plan
from experiments.sweeps.plan import Spec
from experiments.sweeps.watch import Watch
from experiments.workdir import buckets

_RETRIES = 5
_POLL = 1.0  # seconds between checks for signals


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Where tasks run, and what each of them asks for.

  Attributes:
    workdir: folder of the sweep.
    address: of the cluster; '' starts one on this machine.
    resources: amounts by name; {}: one CPU, and one GPU if the cluster has any.
  """

  workdir: str
  address: str
  resources: dict[str, float]


def train(
  specs: list[Spec],
  group_size: int,
  cluster: Cluster,
  watch: Watch,
  signals: Signals,
) -> None:
  """Trains all unfinished trials, as many at once as the cluster has room for.

  Args:
    group_size: largest number of trials of a task with an accelerator.
    watch: is told which trials end; the cluster says of none that it begins.

  Raises:
    UserError: there is no cluster at the address.
    Interrupted: a signal was received; running trials are killed, and resume
      from their last checkpoint.
  """
  # It is optional, so that a type checker may not know it.
  library: Any = importlib.import_module('ray')
  try:
    library.init(
      address=cluster.address or None,
      include_dashboard=False,
      log_to_driver=False,
    )
  except (ConnectionError, ValueError) as error:
    raise UserError(f'--ray_address={cluster.address}: {error}') from error
  try:
    _train_all(library, specs, group_size, cluster, watch, signals)
  finally:
    library.shutdown()


def _train_all(
  library,
  specs: list[Spec],
  group_size: int,
  cluster: Cluster,
  watch: Watch,
  signals: Signals,
) -> None:
  resources = cluster.resources or {
    'CPU': 1,
    'GPU': int(library.cluster_resources().get('GPU', 0) > 0),
  }
  _warn_if_lacking(resources, library.nodes())
  # A trial alone does not fill an accelerator.
  kinds = {name.split('-')[0] for name in resources if resources[name]}
  size = group_size if kinds & {'GPU', 'TPU'} else 1
  task = _task(library, resources)
  workdir, pending = buckets.origin(cluster.workdir), {}
  for group in plan.groups(specs, size):
    if engines.unfinished(group):
      names = [spec.name for spec in group]
      pending[task.remote(workdir, names, provenance.command())] = group
  while pending:
    done, _ = library.wait(list(pending), timeout=_POLL)
    for reference in done:
      group = pending.pop(reference)
      buckets.download(cluster.workdir, [spec.name for spec in group])
      try:
        library.get(reference)
      except library.exceptions.RayError as error:
        # A signal to the whole cluster kills tasks that have not failed.
        for spec in () if signals.received else group:
          engines.give_up(spec, str(error))
      for spec in group:
        engines.report(spec)
      watch.end(group)
    if signals.received:
      for reference in pending:
        library.cancel(reference, force=True)
      raise Interrupted(f'{signals.received}; run the same command again')


def _task(library, resources: dict[str, float]):
  """The remote function that trains trials with these resources."""
  others = {
    name: amount
    for name, amount in resources.items()
    if name not in ('CPU', 'GPU', 'memory')
  }
  share, environment = resources.get('GPU', 0), {}
  if 0 < share < 1:
    # Tasks that share a GPU preallocate their shares of its memory.
    environment['XLA_PYTHON_CLIENT_MEM_FRACTION'] = f'{0.9 * share:.3f}'
  return library.remote(
    num_cpus=resources.get('CPU', 1),
    num_gpus=share,
    memory=resources.get('memory'),
    resources=others,
    runtime_env={'env_vars': environment},
    max_retries=_RETRIES,
  )(_sent(provenance.ROOT))


def _sent(root: str):
  """`train_named` for a node, which has this code in the same folder.

  Ray sends a function that is inside of another one as code. It sends others by
  the name of their module, which a node may find in another package: it
  searches the working folder of this command first.
  """

  def train(*arguments: Any) -> None:
    sys.path.insert(0, root)
    module = importlib.import_module('experiments.sweeps.ray_cluster')
    module.train_named(*arguments)

  return train


def train_named(workdir: str, names: list[str], command: list[str]) -> None:
  """Trains some trials of a sweep, as the task of a node."""
  provenance.work_for(command)
  with buckets.staged(workdir, names) as path:
    specs = {spec.name: spec for spec in folder.read(path)}
    group = [specs[name] for name in names]
    engines.train(group, Signals(), engines.Shared())


def parse(amounts: list[str]) -> dict[str, float]:
  """The amounts of --ray_resources by name; UserError if one is no amount."""
  parsed = {}
  for text in amounts:
    name, _, amount = text.partition('=')
    # A whole amount above 1 is all that Ray accepts.
    match = re.fullmatch(r'0?\.\d+|\d+', amount)
    is_known = name not in ('', 'object_store_memory', *parsed)
    if not is_known or match is None or float(amount) == 0:
      raise UserError(
        f'--ray_resources={text} is not NAME=AMOUNT, such as CPU=4, GPU=0.5 or '
        'memory=1000000000 (bytes), an integer or a fraction below 1, each '
        'name once'
      )
    parsed[name] = float(amount)
  return parsed


def _warn_if_lacking(resources: dict[str, float], nodes: list[dict]) -> None:
  """Says that tasks wait for a node that has all that they ask for."""
  has_room = [
    all(node['Resources'].get(name, 0) >= resources[name] for name in resources)
    for node in nodes
    if node['Alive']
  ]
  if not any(has_room):
    asked = ', '.join(f'{name}={resources[name]:g}' for name in resources)
    log(f'WARNING: no node of the Ray cluster has {asked}; waiting for one')
