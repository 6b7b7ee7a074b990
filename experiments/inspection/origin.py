"""The result of a run, and where runs come from: commands, commits, devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from experiments.command import provenance
from experiments.inspection import pages
from experiments.learning import reports
from experiments.settings import stored
from experiments.sweeps import names, results
from experiments.workdir import buckets, metrics
from experiments.workdir import workdir as workdir_lib


def of_run(paths: Sequence[str], step: int) -> str:
  """The result of the first run, its status and its origin; HTML.

  Args:
    paths: of the runs of an ensemble; the page is of the first one, mostly.
    step: of the checkpoint.
  """
  first, *others = map(buckets.origin, paths)
  status = workdir_lib.read_status(paths[0])
  result = status.pop('result', {})
  rows = metrics.evaluations(os.path.join(paths[0], 'metrics.jsonl'))
  validation = rows.get(step, {})
  test = {k: v for k, v in result.items() if v is None or isinstance(v, float)}
  columns = [*(validation | test)]
  scores = {'validation': validation, 'test': test}
  scored = pages.table(
    ['', *columns],
    [
      [split, *reports.shown(of.get(name, '') for name in columns)]
      for split, of in scores.items()
    ],
    caption=f'validation: in training, at step {step}, uncalibrated; test: '
    f'checkpoint of step {result.get("step", "-")}',
  )
  note = ''
  if others:
    note = pages.paragraph(
      'This page compares runs. Results, and the texts with the greatest loss, '
      'are of their ensemble, which has the mean of their probabilities; '
      f'attention, heads and positions are of the first run, {first}. The '
      f'others: {", ".join(others)}.'
    )
  facts = {'workdir': first} | status
  return note + pages.beside([scored, table(paths[:1], facts)])


def table(paths: Sequence[str], facts: Mapping[str, object]) -> str:
  """A table of facts, and of the attempts of all runs; HTML.

  Args:
    paths: folders of the runs.
    facts: by name.
  """
  attempts = results.attempts_of(paths)
  times = sorted(attempt['time'] for attempt in attempts)
  commands = results.distinct(
    provenance.shell_line(attempt['command']) for attempt in attempts
  )
  rows = {
    **facts,
    'date': ' to '.join(results.distinct([*times[:1], *times[-1:]])),
    'commit': ', '.join(results.distinct(a['commit'] for a in attempts)),
    'device': ', '.join(results.distinct(_device(a) for a in attempts)),
    'command': pages.Html(
      '<br>'.join(f'<code>{pages.escape(line)}</code>' for line in commands)
    ),
  }
  return pages.table(
    ['', ''],
    [
      [name, f'{value:,}' if isinstance(value, int | float) else value]
      for name, value in rows.items()
      if value
    ],
    kind='facts',
  )


def names_of(paths: list[str]) -> list[str]:
  """Names of the runs: of their folders, and of the settings that differ."""
  folders = [os.path.basename(os.path.abspath(path)) for path in paths]
  flat = [stored.read_settings(path).flat() for path in paths]
  settings = names.of(flat)
  called = folders
  if len(set(settings)) > 1:
    called = [*map(': '.join, zip(folders, settings, strict=True))]
  return called if len(set(called)) == len(paths) else paths


def _device(attempt: Mapping) -> str:
  kinds = attempt['devices']
  count = f'{len(kinds)} x ' if len(kinds) > 1 else ''
  jax = attempt['packages'].get('jax')
  return f'{count}{"".join(kinds[:1])} on {attempt["machine"]}, jax {jax}'
