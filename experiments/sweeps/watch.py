"""What a terminal shows of a sweep while it trains: a bar and a table."""

from __future__ import annotations

import statistics

from experiments.command.log import Reporter
from experiments.sweeps import engines, names, results
from experiments.sweeps.plan import Spec
from experiments.workdir import workdir as workdir_lib


class Watch:
  """How many trials have ended, how each setting does, and what runs now.

  Args:
    specs: the trials, those that have ended, too.
    metric: one of comparison.metrics.

  Attributes:
    bar: of the trials.
  """

  def __init__(self, specs: list[Spec], metric: str):
    self._metric = metric
    self._settings: dict[str, list[Spec]] = {}
    for spec, name in zip(specs, names.of_specs(specs).names, strict=True):
      self._settings.setdefault(name, []).append(spec)
    left = {spec.name for spec in engines.unfinished(specs)}
    self._running: set[str] = set()
    self._ended = {spec.name for spec in specs} - left
    # Read once, when a trial has ended; None: it has no score.
    self._scores: dict[str, float | None] = {}
    total, count = len(specs), len(self._ended)
    self.bar = Reporter('{} trials', total, count, has_lines=False)
    self.bar.table = self._table

  def begin(self, specs: list[Spec]) -> None:
    """Shows that trials train from now on."""
    self._running |= {spec.name for spec in specs}
    self.bar.show()

  def end(self, specs: list[Spec]) -> None:
    """Shows that trials train no more; those with steps left are of others."""
    names_of = {spec.name for spec in specs}
    self._running -= names_of
    ended = names_of - {spec.name for spec in engines.unfinished(specs)}
    self.bar.add(len(ended - self._ended))
    self._ended |= ended
    self.bar.show()

  def _table(self) -> list[list[str]]:
    """Settings with a running trial first: a terminal may not have all rows."""
    rows = [self._row(name, of) for name, of in self._settings.items()]
    header = ['setting', 'ended', f'validation/{self._metric}', 'running']
    return [header, *sorted(rows, key=lambda row: not row[-1])]

  def _row(self, setting: str, specs: list[Spec]) -> list[str]:
    ended = [spec for spec in specs if spec.name in self._ended]
    scores = [x for x in map(self._score, ended) if x is not None]
    return [
      setting,
      f'{len(ended)}/{len(specs)}',
      f'{statistics.fmean(scores):.4f}' if scores else '',
      ', '.join(map(_at, (s for s in specs if s.name in self._running))),
    ]

  def _score(self, spec: Spec) -> float | None:
    """The mean of a table is of these: the best checkpoint's, on validation."""
    if spec.name not in self._scores:
      (row,) = results.collect([spec])
      score = row[f'best/validation/{self._metric}']
      self._scores[spec.name] = score
    return self._scores[spec.name]


def _at(spec: Spec) -> str:
  """A trial, and the step of its newest checkpoint."""
  step = workdir_lib.read_status(spec.path).get('step', 0)
  return f'trial {spec.index} at {step}'
