"""Writes one page about a run or a sweep, which opens without a network.

    bash scripts/run.sh experiments.report --workdir=runs/sst2
    bash scripts/run.sh experiments.report --workdir=runs/positions

Of a run: its config, its curves, the confusion matrix of a split, the texts it
gets most wrong, and how it attended to them. Of a sweep: tables and pictures.
The page is WORKDIR/report.html; the last line of standard output is one JSON
object.
"""

from __future__ import annotations

import os

from experiments.command import app
from experiments.command.errors import UserError
from experiments.data.text_files import SPLITS
from experiments.inspection import head_analysis, pages, run_page, sweep_page
from experiments.settings import stored
from experiments.sweeps import comparison
from experiments.workdir import buckets

_OF_RUN = ('checkpoint', 'data_dir', 'split', 'num_examples', 'member')


def _define(values) -> None:
  flags = app.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a run or of a sweep.'),
    ('output', None, 'The page; WORKDIR/report.html.'),
    ('checkpoint', 'best', 'Of a run: best, last, or a step.'),
    ('data_dir', None, 'Where the data is, if not where it was.'),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_enum('split', 'test', SPLITS, 'Of a run.', flag_values=values)
  flags.DEFINE_integer(
    'num_examples', 20, 'Texts that are shown.', 0, flag_values=values
  )
  head_analysis.define_member(values)
  comparison.define(values)


def main(values) -> None:
  """Reads what there is, and writes the page."""
  place = app.required(values, 'workdir')
  if not values.output and place.startswith(buckets.SCHEMES):
    raise UserError(f'--output is missing; --workdir={place} is only read')
  output = os.path.abspath(values.output or f'{place}/report.html')
  with buckets.staged(place) as path:
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
    pages.write(output, place, sections)
  app.print_result({'page': output, 'bytes': os.path.getsize(output)})


def _check(values, path: str, is_sweep: bool) -> None:
  """UserError for flags that this kind of workdir has no use for."""
  kind, unused = 'run', ('metric', 'over', 'baseline')
  if is_sweep:
    kind, unused = 'sweep', _OF_RUN
  for name in unused:
    if not values[name].using_default_value:
      raise UserError(f'--{name} has no meaning for a {kind}, as {path} is')
  if not is_sweep:
    head_analysis.require_member(stored.read_settings(path), values.member)


if __name__ == '__main__':
  app.run(main, _define, __doc__)
