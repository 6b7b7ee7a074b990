"""What a terminal shows of a sweep while it trains: a bar and a table."""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

from experiments.command.errors import UserError
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
    score = f'mean best validation/{self._metric}'
    header = ['setting', 'done', 'failed', score, 'running']
    return [header, *sorted(rows, key=lambda row: not row[-1])]

  def _row(self, setting: str, specs: list[Spec]) -> list[str]:
    ended = [spec for spec in specs if spec.name in self._ended]
    done = [spec for spec in ended if _status(spec).get('status') == 'DONE']
    failed = len(ended) - len(done)
    scores = [x for x in map(self._score, done) if x is not None]
    return [
      setting,
      f'{len(done)}/{len(specs)}',
      str(failed or ''),
      f'{statistics.fmean(scores):.4f}' if scores else '',
      ', '.join(f'trial {s.index}' for s in specs if s.name in self._running),
    ]

  def _score(self, spec: Spec) -> float | None:
    """The mean of a table is of these: the best checkpoint's, on validation."""
    if spec.name not in self._scores:
      self._scores[spec.name] = None
      # A damaged file is an error of the report, and ends no training.
      with contextlib.suppress(UserError):
        (row,) = results.collect([spec])
        self._scores[spec.name] = row[f'best/validation/{self._metric}']
    return self._scores[spec.name]


def _status(spec: Spec) -> dict[str, Any]:
  """The status of a trial, of which a damaged one says nothing."""
  try:
    return workdir_lib.read_status(spec.path)
  except UserError:
    return {}
