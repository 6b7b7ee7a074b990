"""What a terminal shows of a sweep while it trains: a bar and a table."""

from __future__ import annotations

import contextlib
import statistics

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
    # Read once, when a trial has ended.
    self._outcomes: dict[str, tuple[bool, float | None]] = {}
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
    outcomes = [self._outcome(spec) for spec in ended]
    done = sum(is_done for is_done, _ in outcomes)
    failed = len(ended) - done
    scores = [score for _, score in outcomes if score is not None]
    return [
      setting,
      f'{done}/{len(specs)}',
      str(failed or ''),
      f'{statistics.fmean(scores):.4f}' if scores else '',
      ', '.join(f'trial {s.index}' for s in specs if s.name in self._running),
    ]

  def _outcome(self, spec: Spec) -> tuple[bool, float | None]:
    """Whether a trial that has ended is DONE, and its best score if it has one.

    On validation: the mean of a table is of these. A damaged file is an error
    of the report, and ends no training.
    """
    if spec.name not in self._outcomes:
      is_done, score = False, None
      with contextlib.suppress(UserError):
        status = workdir_lib.read_status(spec.path)
        is_done = status.get('status') == 'DONE'
        (row,) = results.collect([spec]) if is_done else ({},)
        score = row.get(f'best/validation/{self._metric}')
      self._outcomes[spec.name] = is_done, score
    return self._outcomes[spec.name]
