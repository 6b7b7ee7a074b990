"""Engine `ray`: tasks of one trial each, or of a group on a cluster with GPUs.

A task lost with its node is restarted on another one and resumes from the last
checkpoint; the workdir must be on a file system shared by all nodes. Ray is the
extra `ray` of pyproject.toml.
"""

from __future__ import annotations

import importlib.util

from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.sweeps import engines, folder, plan
from experiments.sweeps.plan import Spec

_RETRIES = 5
_POLL = 1.0  # seconds between checks for signals


def unsupported_reason() -> str | None:
  """Why this engine cannot be used, or None."""
  if importlib.util.find_spec('ray') is None:
    return 'Ray is not installed: bash scripts/run.sh pip install ray'
  return None


def ray(specs: list[Spec], options: engines.Options, signals: Signals) -> None:
  """Trains all unfinished trials, as many at once as the cluster has room for.

  Raises:
    UserError: there is no cluster at options.ray_address.
    Interrupted: a signal was received; running trials are killed, and resume
      from their last checkpoint.
  """
  import ray as library

  try:
    library.init(
      address=options.ray_address or None,
      include_dashboard=False,
      log_to_driver=False,
    )
  except (ConnectionError, ValueError) as error:
    raise UserError(f'--ray_address={options.ray_address}: {error}') from error
  try:
    has_gpus = library.cluster_resources().get('GPU', 0) > 0
    size = options.group_size if has_gpus else 1
    task = library.remote(
      num_cpus=1, num_gpus=int(has_gpus), max_retries=_RETRIES
    )(_train)
    pending = {}
    for same in plan.programs_of(specs).values():
      for start in range(0, len(same), size):
        group = same[start : start + size]
        if any(engines.is_unfinished(spec, options.until) for spec in group):
          names = [spec.name for spec in group]
          pending[task.remote(options.workdir, names, options.until)] = group
    while pending:
      done, _ = library.wait(list(pending), timeout=_POLL)
      for reference in done:
        group = pending.pop(reference)
        try:
          library.get(reference)
        except library.exceptions.RayError as error:
          # A signal to the whole cluster kills tasks that have not failed.
          for spec in () if signals.received else group:
            engines.give_up(spec, str(error))
        for spec in group:
          engines.log_result(spec)
      if signals.received:
        for reference in pending:
          library.cancel(reference, force=True)
        raise Interrupted(f'{signals.received}; run the same command again')
  finally:
    library.shutdown()


def _train(workdir: str, names: list[str], until: int | None) -> None:
  """A Ray task that trains some trials of a sweep."""
  specs = {spec.name: spec for spec in folder.read(workdir)}
  group = [specs[name] for name in names]
  engines.run(group, until, Signals(), engines.Shared())
