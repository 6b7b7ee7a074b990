"""A callback is called after each evaluation, and changes nothing of a run."""

import json
import os
import pathlib

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings.settings import from_config
from experiments.training import compiled, evaluation
from experiments.training import run as run_lib
from experiments.workdir.metrics import read_rows
from experiments.workdir.workdir import read_status

pytestmark = pytest.mark.usefixtures('shared_programs')

SOURCE = """
import json
import numpy as np

class NoFunction:
  pass

def note(evaluation):
  kernel = evaluation.params()['head']['kernel']
  assert type(kernel) is np.ndarray
  row = {'step': evaluation.step, 'sum': float(kernel.sum())}
  with open(evaluation.workdir + '/noted.jsonl', 'a') as file:
    file.write(json.dumps(row | dict(evaluation.metrics)) + '\\n')

def note_two(evaluation, more):
  pass

def fail(evaluation):
  raise ValueError('no disk at step %d' % evaluation.step)
"""


@pytest.fixture(autouse=True)
def callbacks_file(tmp_path):
  (tmp_path / 'called.py').write_text(SOURCE)
  modules.search(str(tmp_path))


def make_config(callback='', **changes):
  config = make_small_config()
  config.train.callback = callback
  config.update_from_flattened_dict(changes)
  return config


def noted(path):
  text = pathlib.Path(path, 'noted.jsonl').read_text()
  return list(map(json.loads, text.splitlines()))


def kernel_sum(path, step):
  params = evaluation.restore_params(path, str(step)).params
  return float(np.asarray(params['head']['kernel']).sum())


@pytest.mark.slow
def test_a_callback_gets_the_step_the_metrics_and_the_parameters(tmp_path):
  """Of each trial of a group, which is the same run as without it."""
  changes = {'checkpoint.max_to_keep': 9, 'checkpoint.every_steps': 4}
  runs = []
  for seed in (0, 1):
    config = make_config('called:note', seed=seed, **changes)
    path = str(tmp_path / f'run{seed}')
    runs.append((config.to_dict(), from_config(config), path))
  plain = from_config(make_config(**changes))
  assert runs[0][1].digest() == plain.digest()
  loaded = loading.load(plain.data, '')
  program = compiled.make(runs[0][1], loaded.vocabulary, loaded.label_facts, 2)
  run_lib.run_group(runs, loaded, program, Signals())
  # Commands that read a run do not need the file.
  (tmp_path / 'called.py').unlink()
  for *_, path in runs:
    rows = [
      row
      for row in read_rows(os.path.join(path, 'metrics.jsonl'))
      if 'validation/loss' in row
    ]
    calls = noted(path)
    assert [call['step'] for call in calls] == [4, 8, 12]
    for row, call in zip(rows, calls, strict=True):
      for name in ('loss', 'accuracy', 'macro_f1'):
        assert call[name] == row[f'validation/{name}']
      assert call['sum'] == pytest.approx(kernel_sum(path, call['step']))


@pytest.mark.slow
def test_an_exception_of_a_callback_ends_the_run_in_one_line(tmp_path):
  path = str(tmp_path / 'run')
  with pytest.raises(UserError) as error:
    run_lib.run(make_config('called:fail'), path)
  message = str(error.value)
  assert '\n' not in message
  for part in ("config.train.callback = 'called:fail'", 'no disk at step 4'):
    assert part in message
  assert read_status(path)['status'] == 'FAILED'
  # The step is saved, and the next attempt goes on from it.
  with pytest.raises(UserError, match='no disk at step 8'):
    run_lib.run(make_config('called:fail'), path)
  assert run_lib.run(make_config(), path)['step'] in (4, 8, 12)


@pytest.mark.parametrize(
  'name',
  [
    'note',
    'called:absent',
    'absent:note',
    'called:NoFunction',
    'called:note_two',
  ],
)
def test_a_callback_that_is_none_is_refused_before_training(name, tmp_path):
  with pytest.raises(UserError, match=r'config\.train\.callback'):
    run_lib.run(make_config(name), str(tmp_path / 'run'))
  assert not (tmp_path / 'run' / 'config.json').exists()
