"""scripts/linear_baseline.py, as a command."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parent.parent


def baseline(folder, *flags):
  command = [
    sys.executable,
    ROOT / 'scripts/linear_baseline.py',
    f'--config={ROOT / "configs/small_text.py"}',
    f'--config.data.dir={folder}',
    f'--output={folder / "rows.json"}',
    *flags,
  ]
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  subprocess.run(command, env=environment, check=True)
  return json.loads((folder / 'rows.json').read_text())['rows']


def test_pairs_are_compared_and_each_fold_has_its_scores(tmp_path):
  # Each text is of both classes; whether the two are equal is what counts.
  rows = [
    f'film {n // 2} is fine\tfilm {(n // 2 + n % 2 * 7) % 30} is fine\t{n % 2}'
    for n in range(60)
  ]
  (tmp_path / 'train.tsv').write_text('\n'.join(['a\tb\tlabel', *rows]))
  (row,) = baseline(
    tmp_path,
    '--config.data.num_folds=3',
    "--config.data.text.text_columns=('a', 'b')",
    '--config.data.text.join=pair',
  )
  accuracies = [scores['accuracy'] for scores in row['scores']]
  assert min(accuracies) > 0.7
  assert row['test']['mean'] == pytest.approx(np.mean(accuracies))
  assert (len(accuracies), len(row['c']), row['test']['n']) == (3, 3, 3)
  assert row['command'].startswith('python ')
  assert str(tmp_path) not in row['command']
  assert (row['config'], row['metric']) == ('small_text', 'accuracy')
