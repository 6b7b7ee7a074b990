"""Commands import no heavy package that they do not use."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

# Runs a command, and then prints the packages that it has imported.
COUNT = """
import atexit, json, runpy, sys
def count():
  with open(OUT, 'w') as file:
    json.dump(sorted({name.partition('.')[0] for name in sys.modules}), file)
OUT, name, *sys.argv[1:] = sys.argv[1:]
atexit.register(count)
runpy.run_module(f'experiments.{name}', run_name='__main__')
"""
# Each takes longer to import than all of this package. PyTorch is optional.
HEAVY = {
  'IPython', 'datasets', 'matplotlib', 'pandas', 'pyarrow', 'ray', 'scipy',
  'tensorboard', 'tensorboardX', 'tensorflow', 'torch', 'transformers',
}  # fmt: skip


@pytest.fixture
def imported(tmp_path):
  """The packages that a command imports, where PyTorch is installed."""
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
  found = imported('predict', workdir, '--text=a fine film')
  assert 'tokenizers' in found
  assert not found & HEAVY


def test_train_and_evaluate(imported, tmp_path):
  small = [
    '--config.data.source=word_order(train_pairs=40, validation_pairs=5,'
    ' test_pairs=5)',
    '--config.model.num_layers=1',
    '--config.train.steps=2',
  ]
  found = imported('train', f'--workdir={tmp_path}/run', *small)
  assert found & HEAVY == {'tensorboardX'}
  assert not imported('evaluate', f'--workdir={tmp_path}/run') & HEAVY


COMMANDS = sorted(
  path.stem
  for path in (ROOT / 'experiments').glob('*.py')
  if "__name__ == '__main__'" in path.read_text()
)


@pytest.mark.parametrize('name', COMMANDS)
def test_help(name, imported):
  assert not imported(name, '--help') & HEAVY


@pytest.mark.parametrize('name', ['evaluate', 'predict'])
def test_help_does_not_wait_for_jax(name, imported):
  assert not imported(name, '--help') & {'jax', 'flax', 'optax', 'orbax'}
