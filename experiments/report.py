"""Writes a report of a run or a sweep: one HTML page, viewable offline.

    bash scripts/run.sh experiments.report --workdir=runs/sst2
    bash scripts/run.sh experiments.report --workdir=runs/positions

For a run: config, training curves, the confusion matrix of a split, the texts
with the greatest loss, and the attention on them. For a sweep: tables and
figures. The page is WORKDIR/report.html; the last line of standard output is
one JSON object.
"""

from __future__ import annotations

import os

from experiments.command import app
from experiments.command.errors import UserError
from experiments.data.text_files import SPLITS
from experiments.inspection import flags as inspection_flags
from experiments.inspection import head_analysis, pages, run_page, sweep_page
from experiments.settings import stored
from experiments.sweeps import comparison
from experiments.workdir import buckets

_RUN_FLAGS = ('checkpoint', 'data_dir', 'split', 'num_examples', 'member')


def _define(values) -> None:
  flags = app.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a run or of a sweep.'),
    ('output', None, 'Page to write; if not given, WORKDIR/report.html.'),
    ('checkpoint', 'best', 'Checkpoint of a run: best, last, or a step.'),
    (
      'data_dir',
      None,
      'Folder of the data of a run, if it has moved since training.',
    ),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_enum(
    'split',
    'test',
    SPLITS,
    'Split of a run to report on.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'num_examples',
    20,
    'Number of texts of a run to show.',
    0,
    flag_values=values,
  )
  inspection_flags.define_member(values)
  comparison.define(values)


def main(values) -> None:
  """Reads a run or a sweep, and writes the page."""
  workdir = app.required(values, 'workdir')
  if not values.output and workdir.startswith(buckets.SCHEMES):
    raise UserError(
      f'--output is required: --workdir={workdir} is read-only here'
    )
  output = os.path.abspath(values.output or f'{workdir}/report.html')
  with buckets.staged(workdir) as path:
    is_sweep = os.path.exists(os.path.join(path, 'sweep.json'))
    _check(values, path, is_sweep)
    if os.path.isdir(output):
      raise UserError(f'--output={output} is a folder, not a page')
    app.make_folder(os.path.dirname(output), 'output')
    sections = (
      sweep_page.sections(values, path)
      if is_sweep
      else run_page.sections(values, path)
    )
    pages.write(output, os.path.basename(os.path.abspath(workdir)), sections)
  app.print_result({'page': output, 'bytes': os.path.getsize(output)})


def _check(values, path: str, is_sweep: bool) -> None:
  """UserError for flags that do not apply to this kind of workdir."""
  kind, unused = 'run', ('metric', 'over', 'baseline')
  if is_sweep:
    kind, unused = 'sweep', _RUN_FLAGS
  for name in unused:
    if not values[name].using_default_value:
      raise UserError(f'--{name} does not apply to {path}, which is a {kind}')
  if not is_sweep:
    head_analysis.require_member(stored.read_settings(path), values.member)


if __name__ == '__main__':
  app.run(main, _define, __doc__)
