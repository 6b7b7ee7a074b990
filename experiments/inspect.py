"""Inspects a run, a sweep, or a position method: figures and one HTML page.

    bash scripts/run.sh experiments.inspect --workdir=runs/sst2 \\
        --text="not a good film , a great one"
    bash scripts/run.sh experiments.inspect --workdir=runs/positions
    bash scripts/run.sh experiments.inspect --output=runs/rotary \\
        --config.model.position=rotary

The page of a run has its result, curves, scores on a split, the texts with the
greatest loss, the attention on them and on --text, statistics of the heads,
accuracy as heads are ablated, the position encoding, and the config. The page
of several runs, as --workdir=a,b, compares their settings, curves and scores;
its texts are those of their ensemble, and the rest is of the first run. The
page of a sweep has tables and figures. Without --workdir, the command
draws the position encoding of an untrained model of --config. The page is
index.html and works offline; figures are PNG files, and numbers.json has their
data. The last line of standard output is one JSON object. One process does all.
"""

from __future__ import annotations

import functools
import os

import jax

from experiments.command import app, own_folders, processes
from experiments.command.command_line import define, refuse
from experiments.command.errors import UserError
from experiments.data import encoding
from experiments.data.contract import SPLITS
from experiments.inspection import (
  head_analysis,
  position_figures,
  run_page,
  sweep_page,
)
from experiments.inspection.figures import Figures
from experiments.learning.hparams import HParams
from experiments.settings import open_models, reference, stored
from experiments.settings import settings as settings_lib
from experiments.sweeps import comparison
from experiments.training import build, ensembles, run_flags
from experiments.workdir import buckets

# Flags that apply to a run, or to a sweep, alone.
_OF_RUN = (
  'text', 'checkpoint', 'calibrated', 'split', 'data_dir', 'num_examples',
)  # fmt: skip
_OF_SWEEP = ('metric', 'baseline')


def _define(values) -> None:
  define(
    values,
    ('workdir', None, 'Folder of a run or of a sweep, or folders of runs to '
     f'compare, as {run_flags.SEVERAL}; none: an untrained model.'),
    run_flags.CHECKPOINT,
    ('split', 'validation', 'Split to read.', SPLITS),
    run_flags.DATA_DIR,
    run_flags.CALIBRATED,
    ('output', None, 'Folder to write to; if not given, WORKDIR/inspect.'),
    ('text', (), 'A text to show the attention of; may be repeated.'),
    ('num_examples', 512, 'Largest number of texts of --split to analyse heads '
     'on.', 1),
    ('length', 0, 'Number of positions to draw; 0: config.data.max_length.', 0),
    *comparison.FLAGS,
  )  # fmt: skip


def main(values) -> None:
  """Reads a run or a sweep, or initialises a model, and writes the files."""
  workdir, output = values.workdir, values.output
  if workdir is None and not output:
    raise UserError('--output or --workdir is required')
  if workdir is not None and app.has_config(values):
    raise UserError(f'--workdir={workdir} has its own config; drop --config')
  encoding.check_texts(values.text)
  if output:
    output = os.path.abspath(output)
    own_folders.check(output, 'inspect')
  if workdir is None:
    _print(output, _untrained(values, output))
    return
  if not output and workdir.startswith(buckets.SCHEMES):
    raise UserError(
      f'--output is required: --workdir={workdir} is read-only here'
    )
  with run_flags.opened(workdir) as paths:
    if len(paths) > 1 and not output:
      raise UserError(
        f'--output is required: --workdir={workdir} is {len(paths)} folders'
      )
    output = output or os.path.abspath(os.path.join(paths[0], 'inspect'))
    is_sweep = os.path.exists(os.path.join(paths[0], 'sweep.json'))
    if is_sweep and len(paths) == 1:
      result = _sweep(values, paths[0], output)
    else:
      result = _run(values, paths, output)
  _print(output, {'output': output} | result)


def _print(output: str, result: dict) -> None:
  """Prints a result, and notes its files in their folder."""
  own_folders.mark(output, 'inspect', result['files'])
  app.print_result(result)


def _run(values, paths: list[str], output: str) -> dict:
  refuse(values, _OF_SWEEP, 'does not apply to a run')
  ensembles.check(paths, has_data=True)
  settings = stored.read_settings(paths[0])
  classifier = build.model(settings, vocab_size=1, num_classes=2)
  position_figures.num_positions(values.length, settings, classifier)
  if values.text:
    head_analysis.require_heads(classifier)
  app.make_folder(output)
  processes.require_one('experiments.inspect')
  return run_page.write(values, paths, output)


def _sweep(values, path: str, output: str) -> dict:
  refuse(values, (*_OF_RUN, 'length'), 'does not apply to a sweep')
  app.make_folder(output)
  return sweep_page.write(values, path, output)


def _untrained(values, output: str) -> dict:
  """Draws the position method of --config at initialisation."""
  of_others = (*_OF_RUN, *_OF_SWEEP)
  refuse(values, of_others, 'does not apply to an untrained model')
  settings = settings_lib.from_config(open_models.of_flags(values))
  classifier = build.model(settings, vocab_size=1, num_classes=2)
  head_analysis.require_heads(classifier)
  length = position_figures.num_positions(values.length, settings, classifier)
  app.make_folder(output)
  init = functools.partial(build.init_state, settings, classifier)
  state = jax.jit(init)(HParams.of(settings))
  drawn, params = Figures(output), state.eval_params
  most = settings.data.max_length
  position_figures.draw(drawn, classifier, params, length, most)
  return {'output': output, 'files': drawn.write()}


if __name__ == '__main__':
  app.run(main, _define, __doc__, reference.described)
