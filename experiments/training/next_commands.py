"""The commands that read what was trained, as lines to copy into a shell."""

from __future__ import annotations

import shlex

from experiments.command import provenance
from experiments.command.log import log
from experiments.settings import stored
from experiments.training import prediction
from experiments.workdir import buckets
from experiments.workdir.workdir import read_status

# As a shell reads them.
_PROMPT = "--prompt='One day'"
_TEXT = "--text='a text'"
_PAIR = r"--text=$'a text\tanother'"


def say(path: str) -> None:
  """Logs the best checkpoint of a run, and the commands that apply to it.

  Args:
    path: workdir of a run that is done, or the local copy of a bucket's.
  """
  step = read_status(path)['result']['step']
  place = buckets.origin(path).rstrip('/')
  settings = stored.read_settings(path)
  task, has_pairs = settings.task.entry, settings.data.pair_length is not None
  log(f'best checkpoint: {place}/checkpoints/{step}; next steps:')
  _say('evaluate', place)
  if task.is_causal:
    _say('predict', place, _PROMPT)
  elif issubclass(task, prediction.TASKS):
    _say('predict', place, _PAIR if has_pairs else _TEXT)
  _say_inspect(place)
  folder = '' if place.startswith(buckets.SCHEMES) else f'{place}/'
  _say('export', place, shlex.quote(f'--output={folder}export'))


def say_sweep(path: str) -> None:
  """Logs the command that draws a sweep in `path`."""
  log('what draws the sweep:')
  _say_inspect(buckets.origin(path))


def _say_inspect(place: str) -> None:
  # Figures of a local folder are in it.
  is_remote = place.startswith(buckets.SCHEMES)
  _say('inspect', place, *['--output=inspect'] * is_remote)


def _say(name: str, place: str, *flags: str) -> None:
  """Logs the line of a command on a workdir, with flags that are quoted."""
  words = [f'experiments.{name}', f'--workdir={place}']
  log(' '.join([f'  {provenance.shell_line(words)}', *flags]))
