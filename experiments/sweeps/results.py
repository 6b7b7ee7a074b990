"""Results of a sweep: one row per trial, the files of them, and a summary."""

from __future__ import annotations

import collections
import csv
import io
import json
import os
from collections.abc import Iterable
from typing import Any

from experiments.command import provenance
from experiments.command.log import log
from experiments.sweeps import engines, folder, tables
from experiments.sweeps.comparison import SPLITS, Comparison, compare, metrics
from experiments.sweeps.plan import Spec
from experiments.training import next_commands
from experiments.workdir import buckets
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.metrics import evaluations


def collect(specs: list[Spec]) -> list[dict[str, Any]]:
  """One row per trial: overrides, status and scores.

  `best/` is the checkpoint selected on validation, on `validation` and on
  `test`; `last/` is the last evaluation on validation.
  """
  rows, names = [], metrics(specs)
  for spec in specs:
    status = workdir_lib.read_status(spec.path)
    result = status.get('result', {})
    path = os.path.join(spec.path, 'metrics.jsonl')
    of_steps = evaluations(path)
    row = {
      'trial': spec.index,
      'name': spec.name,
      **spec.overrides,
      'status': status.get('status', 'PENDING'),
      'step': status.get('step', 0),
      'best/step': result.get('step'),
    }
    best = of_steps.get(result.get('step'), {})
    last = of_steps[max(of_steps)] if of_steps else {}
    for metric in names:
      row[f'best/test/{metric}'] = result.get(metric)
      row[f'best/validation/{metric}'] = best.get(metric)
      row[f'last/validation/{metric}'] = last.get(metric)
    row['parameters'] = status.get('parameters')
    row['seconds'] = status.get('seconds')
    row['reason'] = status.get('reason')
    rows.append(row)
  return rows


def best_run(
  rows: list[dict], specs: list[Spec], metric: str
) -> dict[str, Any] | None:
  """The single trial with the best metric on validation."""
  column = f'best/validation/{metric}'
  pairs = zip(rows, specs, strict=True)
  known = [pair for pair in pairs if pair[0][column] is not None]
  if not known:
    return None
  choose = metrics(specs)[metric]
  row, spec = choose(known, key=lambda pair: pair[0][column])
  return {
    'trial': row['trial'],
    'name': row['name'],
    **spec.overrides,
    **{split: row[f'best/{split}/{metric}'] for split in SPLITS},
    'workdir': buckets.origin(spec.path),
  }


def named(rows: list[dict], compared: Comparison) -> list[dict]:
  """The rows of `collect`, with the name of the setting of each trial."""
  return [
    {'setting': name} | row
    for name, row in zip(compared.of_trials, rows, strict=True)
  ]


def write(workdir: str, rows: list[dict], compared: Comparison) -> None:
  """Writes results.csv, results.json and table.md."""
  rows = named(rows, compared)
  names = dict.fromkeys(name for row in rows for name in row)
  text = io.StringIO()
  writer = csv.DictWriter(text, list(names), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  for name, content in {
    'results.csv': text.getvalue(),
    'results.json': json.dumps(
      {'trials': rows, 'table': compared.table}, indent=2
    ),
    'table.md': tables.markdown(compared),
  }.items():
    workdir_lib.write_atomic(os.path.join(workdir, name), content)


def publish(
  path: str, rows: list[dict], specs: list[Spec], compared: Comparison
) -> None:
  """Writes the table and where it comes from: for a page, not for a resume.

  `commands`, `commits`, `machines`, kinds of `devices` and `versions` of jax
  are those of all attempts of all trials, with PATH for folders; `trials`
  counts them by status. The table has the settings with a trial that is done.
  UserError if the env.json of a trial is damaged.
  """
  attempts = attempts_of(spec.path for spec in specs)
  content = {
    'commands': distinct(
      provenance.without_paths(entry['command']) for entry in attempts
    ),
    'commits': distinct(entry['commit'] for entry in attempts),
    'machines': distinct(entry['machine'] for entry in attempts),
    'devices': distinct(
      kind for entry in attempts for kind in entry['devices']
    ),
    'versions': distinct(entry['packages'].get('jax') for entry in attempts),
    'seconds': round(sum(row['seconds'] or 0 for row in rows)),
    'trials': _counted(rows),
    'metric': compared.metric,
    **{
      key: distinct(spec.settings.flat()[key] for spec in specs)
      for key in compared.over
    },
    'baseline': compared.baseline,
    'table': [entry for entry in compared.table if entry['n']],
  }
  workdir_lib.write_atomic(path, json.dumps(content, indent=1) + '\n')


def attempts_of(paths: Iterable[str]) -> list[dict[str, Any]]:
  """What the env.json of each run says of each time that it was started."""
  return [
    attempt for path in paths for attempt in workdir_lib.read_attempts(path)
  ]


def distinct(values: Iterable) -> list:
  """Without repetitions, None and '', in order of appearance."""
  return list(dict.fromkeys(v for v in values if v not in (None, '')))


def _counted(rows: list[dict]) -> dict[str, int]:
  """Number of trials by status."""
  return dict(collections.Counter(row['status'] for row in rows))


def report_at_end(workdir: str, values, planned: list[Spec]) -> dict:
  """`report` if all trials have ended; else only the count of each status.

  The tasks of a job array each train some of the trials of a sweep: the last
  one to end writes the results of all.

  Args:
    values: comparison.FLAGS and `output`.
    planned: trials of this command.
  """
  # Of a bucket: others may have ended, and have added trials.
  buckets.download(workdir)
  specs = folder.read(workdir, planned)
  unfinished = len(engines.unfinished(specs))
  if not unfinished:
    return report(workdir, values, specs)
  output = f' and --output={values.output}' if values.output else ''
  log(
    f'{unfinished} of {len(specs)} trials are unfinished: results{output} are '
    'written when all have ended; --report writes those so far'
  )
  counts = _counted(collect(specs))
  return {'workdir': buckets.origin(workdir), 'trials': counts}


def report(workdir: str, values, specs: list[Spec]) -> dict:
  """Writes, prints and returns the results so far of the trials of a sweep.

  Args:
    values: comparison.FLAGS and `output`.
  """
  rows = collect(specs)
  compared = compare(rows, specs, values.metric, values.baseline)
  if os.access(workdir, os.W_OK):
    write(workdir, rows, compared)
  else:
    log(f'{workdir} is not writable: results are printed alone')
  if values.output is not None:
    publish(values.output, rows, specs, compared)
  buckets.upload(workdir, '*')
  log(tables.text(compared))
  for row in rows:
    if row['status'] in ('FAILED', 'DIVERGED'):
      log(f'trial {row["trial"]} {row["status"]}: {row["reason"]}')
  best = compared.table[0]
  run = best_run(rows, specs, compared.metric)
  if run is not None:
    log(f'best setting: {best["setting"]}')
    log(f'best run: trial {run["trial"]}, {run["workdir"]}')
  conclusion = tables.conclusion(compared)
  if conclusion is not None:
    log(conclusion)
  if run is not None:
    next_commands.say_sweep(workdir)
    next_commands.say(os.path.join(workdir, 'trials', run['name']))
  return {
    'workdir': buckets.origin(workdir),
    'trials': _counted(rows),
    'metric': compared.metric,
    'best_setting': best if best['n'] else None,
    'best_run': run,
    'baseline': compared.baseline,
    'conclusion': conclusion,
    'table': compared.table,
  }
