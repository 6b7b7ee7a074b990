"""Commands import no heavy package that they do not use."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

# Runs commands, and then writes the modules that any of them has imported.
COUNT = """
import json, runpy, sys
out, names, *sys.argv[1:] = sys.argv[1:]
for name in names.split(','):
  try:
    runpy.run_module(f'experiments.{name}', run_name='__main__')
  except SystemExit as end:
    assert not end.code
with open(out, 'w') as file:
  json.dump(sorted(sys.modules), file)
"""
# Each takes longer to import than all of this package. PyTorch is optional.
HEAVY = {
  'IPython', 'datasets', 'matplotlib', 'pandas', 'pyarrow', 'ray', 'scipy',
  'tensorboard', 'tensorboardX', 'tensorflow', 'torch', 'transformers',
}  # fmt: skip


@pytest.fixture
def imported(tmp_path):
  """The modules that commands import, where PyTorch is installed."""
  torch = tmp_path / 'packages' / 'torch'
  torch.mkdir(parents=True)
  (torch / '__init__.py').write_text('Tensor = int\n')

  def run(*arguments):
    out = tmp_path / 'imported.json'
    paths = [str(ROOT), str(tmp_path / 'packages')]
    done = subprocess.run(
      [sys.executable, '-c', COUNT, str(out), *map(str, arguments)],
      capture_output=True,
      text=True,
      cwd=ROOT,
      env=os.environ | {'PYTHONPATH': os.pathsep.join(paths)},
      timeout=300,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(out.read_text()))

  return run


def test_predict(imported, finished_run):
  workdir = f'--workdir={finished_run}'
  packages = imported('predict', workdir, '--text=a fine film')
  assert 'tokenizers' in packages
  assert not packages & {*HEAVY, 'rich.live', 'rich.progress'}


@pytest.mark.slow
def test_train_and_evaluate(imported, tmp_path):
  small = [
    '--config.data.source=word_order(train_pairs=40, validation_pairs=5,'
    ' test_pairs=5)',
    '--config.data.num_buckets=1',
    '--config.model.embed_dim=12',
    '--config.model.num_layers=1',
    '--config.train.steps=2',
  ]
  packages = imported('train', f'--workdir={tmp_path}/run', *small)
  assert packages & HEAVY == {'tensorboardX'}
  # Flax imports a part of rich; bars are of a terminal alone.
  assert not packages & {'rich.live', 'rich.progress'}
  assert not imported('evaluate', f'--workdir={tmp_path}/run') & HEAVY


def test_help(imported):
  commands = [
    path.stem
    for path in (ROOT / 'experiments').glob('*.py')
    if "__name__ == '__main__'" in path.read_text()
  ]
  assert not imported(','.join(commands), '--help') & HEAVY


def test_help_does_not_wait_for_jax(imported):
  slow = {'jax', 'flax', 'optax', 'orbax'}
  assert not imported('evaluate,export,predict', '--help') & slow
