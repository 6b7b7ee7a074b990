"""scripts/linear_baseline.py, as a command."""

import json
import os
import pathlib
import subprocess
import sys

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


def test_pairs_are_compared(tmp_path):
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
  assert min(row['accuracy']) > 0.7


def test_each_row_has_the_accuracy_of_each_fold(tmp_path):
  rows = [
    f'a {"fine" if n % 2 else "dull"} film of word{n}\t{n % 2}'
    for n in range(60)
  ]
  (tmp_path / 'train.tsv').write_text('\n'.join(['text\tlabel', *rows]))
  (row,) = baseline(tmp_path, '--config.data.num_folds=3')
  assert row['command'].startswith('python ')
  assert row['command'].endswith('--config.data.num_folds=3')
  assert str(tmp_path) not in row['command']
  assert row['config'] == 'small_text'
  assert row['accuracy'] == [1.0] * 3
  assert (row['test']['mean'], row['test']['n']) == (1.0, 3)
  assert all(row[name] for name in ('c', 'machine'))
