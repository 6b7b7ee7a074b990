"""Summary of a sweep so far: files, a table, a conclusion."""

from __future__ import annotations

import collections

from experiments.command.log import log
from experiments.sweeps import (
  comparison,
  engines,
  folder,
  results,
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
  unfinished = len(engines.unfinished(specs))
  if not unfinished:
    return write(workdir, values, specs)
  log(
    f'{unfinished} of {len(specs)} trials are unfinished: results are written '
    'when all have ended; --report writes those so far'
  )
  ended = _ended(results.collect(specs))
  return {'workdir': buckets.origin(workdir), 'trials': ended}


def write(workdir: str, values, specs: list[Spec]) -> dict:
  """Writes, prints and returns the results so far of the trials of a sweep.

  Args:
    values: flags of comparison.define, and `output`.
  """
  rows = results.collect(specs)
  compared = comparison.compare(rows, specs, values.metric, values.baseline)
  results.write(workdir, rows, compared)
  if values.output is not None:
    results.publish(values.output, rows, specs, compared)
  buckets.upload(workdir, '*')
  log(tables.text(compared))
  for row in rows:
    if row['status'] in ('FAILED', 'DIVERGED'):
      log(f'trial {row["trial"]} {row["status"]}: {row["reason"]}')
  best = compared.table[0]
  run = results.best_run(rows, specs, compared.metric)
  if run is not None:
    log(f'best setting: {best["setting"]}')
    log(f'best run: trial {run["trial"]}, {run["workdir"]}')
  conclusion = tables.conclusion(compared)
  if conclusion is not None:
    log(conclusion)
  return {
    'workdir': buckets.origin(workdir),
    'trials': _ended(rows),
    'metric': compared.metric,
    'best_setting': best if best['n'] else None,
    'best_run': run,
    'baseline': compared.baseline,
    'conclusion': conclusion,
    'table': compared.table,
  }


def _ended(rows: list[dict]) -> dict[str, int]:
  """Number of trials by status."""
  return dict(collections.Counter(row['status'] for row in rows))
