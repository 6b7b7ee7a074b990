"""The registry of engines, and training of all unfinished trials."""

from __future__ import annotations

from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, halving, ray_cluster
from experiments.sweeps.engines import Options
from experiments.sweeps.plan import Spec

ENGINES = {
  'serial': engines.serial,
  'vectorized': engines.vectorized,
  'ray': ray_cluster.ray,
}


def unfinished(specs: list[Spec]) -> list[Spec]:
  """The trials that have steps left."""
  return [spec for spec in specs if engines.is_unfinished(spec, None)]


def train(
  specs: list[Spec], rungs: halving.Rungs, engine: str, options: Options
) -> None:
  """Trains unfinished trials by an engine of ENGINES, or 'auto', the fastest.

  Raises:
    Interrupted: a signal was received.
  """
  to_train = unfinished(specs)
  if not to_train:
    log(f'none of {len(specs)} trials has steps left')
    return
  why = 'chosen by --engine'
  if engine == 'auto':
    engine, why = engines.choose(to_train)
  log(f'{len(to_train)} of {len(specs)} trials to train, {engine}: {why}')
  signals = Signals()
  signals.install()
  halving.run(ENGINES[engine], specs, rungs, options, signals)
