"""Report of a sweep so far: files, figures, a table, a conclusion."""

from __future__ import annotations

from experiments.command.log import log
from experiments.sweeps import comparison, distinct, folder, plots, results


def write(workdir: str, values) -> dict:
  """Writes, prints and returns the results of a sweep so far.

  Args:
    values: flags of comparison.define.
  """
  from rich.console import Console

  specs = distinct.distinct(folder.read(workdir))
  rows = results.collect(specs)
  found = comparison.compare(
    rows, specs, values.metric, values.over, values.baseline
  )
  results.write(workdir, rows, found)
  plots.write(workdir, found, specs)
  Console(stderr=True).print(comparison.terminal(found))
  ended: dict[str, int] = {}
  for row in rows:
    ended[row['status']] = ended.get(row['status'], 0) + 1
    if row['status'] in ('FAILED', 'DIVERGED'):
      log(f'trial {row["trial"]} {row["status"]}: {row["reason"]}')
  best, run = found.table[0], results.best_run(rows, specs, found.metric)
  if run is not None:
    log(f'best setting: {best["setting"]}')
    log(f'best run: trial {run["trial"]}, {run["workdir"]}')
  told = comparison.sentence(found)
  if told is not None:
    log(told)
  return {
    'workdir': workdir,
    'trials': ended,
    'metric': found.metric,
    'best_setting': best if best['n'] else None,
    'best_run': run,
    'baseline': found.baseline,
    'conclusion': told,
    'table': found.table,
  }
