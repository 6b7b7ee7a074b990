"""The table of a sweep that a terminal shows while it trains."""

import json
import pathlib

from conftest import make_small_config

from experiments.sweeps import plan
from experiments.sweeps.watch import Watch
from experiments.workdir.workdir import Workdir


def planned(tmp_path, rates=(0.25, 0.5), seeds=3):
  trials = [
    {'optimizer.learning_rate': rate, 'seed': seed}
    for rate in rates
    for seed in range(seeds)
  ]
  return plan.make(make_small_config().to_dict(), trials, str(tmp_path))


def end(spec, status, score):
  """As a trial ends whose best step is 4 of 8."""
  folder = pathlib.Path(spec.path)
  folder.mkdir(parents=True)
  rows = [
    {'step': step, 'validation/accuracy': value}
    for step, value in ((4, score), (8, 0.125))
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'metrics.jsonl').write_text(text)
  Workdir(spec.path, 1).set_status(status, 8, result={'step': 4})


def test_a_table_fills_as_trials_end(tmp_path):
  specs = planned(tmp_path)
  end(specs[0], 'DONE', 0.75)
  watch = Watch(specs, 'accuracy')
  end(specs[1], 'DONE', 0.5)
  end(specs[2], 'FAILED', None)
  watch.begin(specs[1:4])
  watch.end(specs[1:3])
  # It has a step more by now, and another process trains a trial.
  pathlib.Path(specs[3].path).mkdir()
  Workdir(specs[3].path, 1).set_status('RUNNING', 3)
  watch.end(specs[4:5])
  assert watch.bar.table() == [
    ['setting', 'done', 'failed', 'mean best validation/accuracy', 'running'],
    ['learning_rate=0.5', '0/3', '', '', 'trial 3'],
    ['learning_rate=0.25', '2/3', '1', '0.6250', ''],
  ]


def test_damaged_files_of_trials_are_empty_cells(tmp_path):
  specs = planned(tmp_path, seeds=2)
  for spec in specs[:3]:
    end(spec, 'DONE', 0.75)
  watch = Watch(specs, 'accuracy')
  (pathlib.Path(specs[0].path) / 'metrics.jsonl').write_text('damaged\n' * 3)
  watch.begin(specs[2:3])
  (pathlib.Path(specs[2].path) / 'status.json').write_text('damaged')
  _, *rows = watch.bar.table()
  assert rows == [
    ['learning_rate=0.5', '0/2', '1', '', 'trial 2'],
    ['learning_rate=0.25', '2/2', '', '0.7500', ''],
  ]
