"""Summary of a sweep so far: files, figures, a table, a conclusion."""

from __future__ import annotations

import collections

from experiments.command.log import log
from experiments.sweeps import (
  comparison,
  folder,
  plots,
  results,
  running,
  tables,
)
from experiments.sweeps.plan import Spec
from experiments.workdir import buckets


def write_at_end(workdir: str, values, planned: list[Spec]) -> dict:
  """`write` if all trials have ended; else only the count of each status.

  The tasks of a job array each train some of the trials of a sweep: the last
  one to end writes the results of all.

  Args:
    values: flags of comparison.define, and `output`.
    planned: trials of this command.
  """
  # Of a bucket: others may have ended, and have added trials.
  buckets.download(workdir)
  specs = folder.read(workdir, planned)
  unfinished = len(running.unfinished(specs))
  if not unfinished:
    return _write(workdir, values, specs)
  log(
    f'{unfinished} of {len(specs)} trials are unfinished: results are written '
    'when all have ended; --report writes those so far'
  )
  ended = _ended(results.collect(specs))
  return {'workdir': buckets.origin(workdir), 'trials': ended}


def write(workdir: str, values) -> dict:
  """Writes, prints and returns the results of a sweep so far.

  Args:
    values: flags of comparison.define, and `output`.
  """
  return _write(workdir, values, folder.read(workdir))


def _write(workdir: str, values, specs: list[Spec]) -> dict:
  from rich.console import Console

  rows = results.collect(specs)
  found = comparison.compare(
    rows, specs, values.metric, values.over, values.baseline
  )
  results.write(workdir, rows, found)
  if values.output is not None:
    results.publish(values.output, rows, specs, found)
  plots.write(workdir, found, specs)
  buckets.upload(workdir, '*')
  Console(stderr=True).print(tables.terminal(found))
  for row in rows:
    if row['status'] in ('FAILED', 'DIVERGED'):
      log(f'trial {row["trial"]} {row["status"]}: {row["reason"]}')
  best, run = found.table[0], results.best_run(rows, specs, found.metric)
  if run is not None:
    log(f'best setting: {best["setting"]}')
    log(f'best run: trial {run["trial"]}, {run["workdir"]}')
  conclusion = tables.conclusion(found)
  if conclusion is not None:
    log(conclusion)
  return {
    'workdir': buckets.origin(workdir),
    'trials': _ended(rows),
    'metric': found.metric,
    'best_setting': best if best['n'] else None,
    'best_run': run,
    'baseline': found.baseline,
    'conclusion': conclusion,
    'table': found.table,
  }


def _ended(rows: list[dict]) -> dict[str, int]:
  """Number of trials by status."""
  return dict(collections.Counter(row['status'] for row in rows))
