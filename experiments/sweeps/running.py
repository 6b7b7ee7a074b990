"""The engines by name, and the training of all trials that wait."""

from __future__ import annotations

from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, halving, processes, ray_cluster
from experiments.sweeps.engines import Options
from experiments.sweeps.plan import Spec

ENGINES = {
  'serial': engines.serial,
  'vectorized': engines.vectorized,
  'processes': processes.processes,
  'ray': ray_cluster.ray,
}


def waiting(specs: list[Spec]) -> list[Spec]:
  """Those that have steps to go."""
  return [spec for spec in specs if engines.is_waiting(spec, None)]


def train(
  specs: list[Spec], rungs: halving.Rungs, engine: str, options: Options
) -> None:
  """Trains what waits, by an engine of ENGINES or by the fastest, 'auto'.

  Raises:
    Interrupted: a signal came.
  """
  to_train = waiting(specs)
  if not to_train:
    log(f'none of {len(specs)} trials has steps to go')
    return
  why = 'as --engine says'
  if engine == 'auto':
    engine, why = engines.choose(to_train, options.max_parallel)
  log(f'{len(to_train)} of {len(specs)} trials to train, {engine}: {why}')
  signals = Signals()
  signals.install()
  halving.run(ENGINES[engine], specs, rungs, options, signals)
