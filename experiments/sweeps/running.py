"""Training of all unfinished trials of a sweep, by an engine.

serial      one after another in this process, compiled once per program
vectorized  all trials of a program at once, distributed over all devices
ray         a Ray cluster; a task is one trial, or a group of one program
"""

from __future__ import annotations

import jax

from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, plan, ray_cluster
from experiments.sweeps.plan import Spec

ENGINES = ('serial', 'vectorized', 'ray')


def train(
  specs: list[Spec],
  engine: str,
  group_size: int,
  cluster: ray_cluster.Cluster,
) -> None:
  """Trains unfinished trials.

  Args:
    engine: one of ENGINES, or 'auto', the one expected to be fastest.
    group_size: largest number of trials trained as one program.
    cluster: of engine ray.

  Raises:
    UserError: there is no such cluster.
    Interrupted: a signal was received.
  """
  to_train = engines.unfinished(specs)
  if not to_train:
    log(f'none of {len(specs)} trials has steps left')
    return
  why = 'chosen by --engine'
  if engine == 'auto':
    engine, why = choose(to_train)
  log(f'{len(to_train)} of {len(specs)} trials to train, {engine}: {why}')
  signals = Signals()
  signals.install()
  if engine == 'ray':
    ray_cluster.train(specs, group_size, cluster, signals)
    return
  shared = engines.Shared()
  for group in plan.groups(specs, 1 if engine == 'serial' else group_size):
    engines.train(group, signals, shared)


def choose(specs: list[Spec]) -> tuple[str, str]:
  """The engine expected to be fastest on this machine, and why."""
  platform, devices = jax.default_backend(), len(jax.devices())
  largest = max(map(len, plan.programs_of(specs).values()))
  if platform != 'cpu' and largest > 1:
    return 'vectorized', (
      f'{platform} with {devices} devices, up to {largest} trials per program'
    )
  return 'serial', f'{platform}, {len(specs)} trials'
