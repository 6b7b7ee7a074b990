"""Successive halving: prunes the worst trials at each rung.

All remaining trials train to the step of the rung, or to their own end if that
is earlier; of those with steps left, the best fraction on validation continues
(Jamieson and Talwalkar 2016, algorithm 1, with rungs and fraction given). A
decision is a function of the metrics on disk, so a resumed sweep repeats it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.command.signals import Signals
from experiments.sweeps import engines, results
from experiments.sweeps.plan import Spec
from experiments.workdir import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class Rungs:
  """When the worst trials of a sweep are stopped.

  Attributes:
    steps: steps of the rungs, ascending.
    keep_fraction: fraction of the trials that is kept at each.
  """

  steps: tuple[int, ...]
  keep_fraction: float


def parse(texts: list[str], keep_fraction: float, specs: list[Spec]) -> Rungs:
  """Parses the flags --rungs and --keep_fraction.

  Raises:
    UserError: rungs do not ascend, are not below the steps of the longest
      trial, or a longer trial does not evaluate at one.
  """
  steps = [int(text) if text.isdecimal() else 0 for text in texts]
  last = max(spec.settings.train.steps for spec in specs)
  wrong = None
  if not all(0 < step < last for step in steps) or steps != sorted({*steps}):
    wrong = specs[0]
  for spec in specs:
    wanted = spec.settings.train
    if any(n < wanted.steps and n % wanted.eval_every for n in steps):
      wrong = wrong or spec
  if wrong is not None:
    raise UserError(
      f'--rungs={",".join(texts)} must be ascending multiples of '
      f'config.train.eval_every = {wrong.settings.train.eval_every} (trial '
      f'{wrong.index}), below the {last} steps of the longest trial'
    )
  if keep_fraction <= 0:
    raise UserError('--keep_fraction must be greater than 0')
  return Rungs(tuple(steps), keep_fraction)


def run(
  engine: Callable,
  specs: list[Spec],
  rungs: Rungs,
  options: engines.Options,
  signals: Signals,
) -> None:
  """Trains to each rung and prunes; trains the remaining trials to the end.

  Raises:
    Interrupted: a signal was received.
  """
  for step in rungs.steps:
    engine(specs, dataclasses.replace(options, until=step), signals)
    specs = _kept(specs, step, rungs.keep_fraction)
  engine(specs, options, signals)


def _kept(specs: list[Spec], step: int, keep_fraction: float) -> list[Spec]:
  settings = specs[0].settings
  metric, best = settings.checkpoint.best_metric, settings.best
  sign = -1 if best is max else 1
  # Finished trials are neither pruned nor counted.
  running = [spec for spec in specs if step < spec.settings.train.steps]

  def rank(spec):
    value = results.evaluation(spec.path, step, metric, best)
    return sign * value, spec.index

  ordered = sorted(running, key=rank)
  count = math.ceil(keep_fraction * len(running))
  for spec in ordered[count:]:
    workdir_lib.prune(spec.path, step)
  log(f'step {step}: {count} of {len(running)} trials continue')
  return sorted(ordered[:count], key=lambda spec: spec.index)
