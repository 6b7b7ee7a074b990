"""Packages: what `pip install` installs, and that it runs anywhere.

Run by `pytest -m packaging`: each test makes a new environment.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, last_json

pytestmark = pytest.mark.packaging
SMALL = (
  '--config.data.source=word_order(train_pairs=40, validation_pairs=10,'
  ' test_pairs=12)',
  '--config.model.num_layers=1',
  '--config.train.steps=4',
  '--config.train.eval_every=2',
)


def run(*words, **options):
  """Standard output; without the variables of run.sh."""
  environ = {k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}
  done = subprocess.run(
    [str(word) for word in words],
    capture_output=True,
    text=True,
    env=environ,
    check=False,
    timeout=900,
    **options,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


def environment(folder):
  """The folder of the executables of a new environment."""
  run(sys.executable, '-m', 'venv', folder)
  return folder / 'bin'


@pytest.fixture(scope='module')
def packages(tmp_path_factory):
  """The wheel, built from the sdist, and the sdist."""
  folder = tmp_path_factory.mktemp('packages')
  tools = environment(folder / 'tools')
  try:
    run(tools / 'pip', 'install', 'build')
  except AssertionError as error:
    pytest.skip(f'no package index: {error}')
  ignored = shutil.ignore_patterns('.*', '__pycache__', 'runs', 'site')
  shutil.copytree(ROOT, folder / 'source', ignore=ignored)
  run(tools / 'python', '-m', 'build', folder / 'source', '-o', folder)
  (wheel,) = folder.glob('*.whl')
  (sdist,) = folder.glob('*.tar.gz')
  return wheel, sdist


def test_the_library_alone_needs_jax_flax_and_numpy(packages, tmp_path):
  bin_folder = environment(tmp_path / 'env')
  run(bin_folder / 'pip', 'install', packages[0])
  code = """
import importlib, importlib.metadata, importlib.resources, json, pkgutil
import selfattn
for module in pkgutil.walk_packages(selfattn.__path__, 'selfattn.'):
  importlib.import_module(module.name)
import jax.numpy as jnp
x_BLHK = jnp.ones((2, 5, 3, 4))
output_BLHK, _ = selfattn.attend(x_BLHK, x_BLHK, x_BLHK)
assert output_BLHK.shape == x_BLHK.shape
found = importlib.metadata.metadata('selfattn').get_all('Requires-Dist')
print(json.dumps({
  'requires': [line for line in found if 'extra ==' not in line],
  'typed': importlib.resources.files('selfattn').joinpath('py.typed').is_file(),
  'version': selfattn.__version__,
  'installed': importlib.metadata.version('selfattn'),
}))
"""
  installed = json.loads(run(bin_folder / 'python', '-c', code, cwd=tmp_path))
  names = {line.partition('>')[0] for line in installed['requires']}
  assert names == {'flax', 'jax', 'numpy'}
  assert installed['typed']
  assert installed['version'] == installed['installed']
  done = subprocess.run(
    [str(bin_folder / 'selfattn'), 'train'], capture_output=True, check=False
  )
  assert done.returncode == 2
  assert b"pip install 'selfattn[train]'" in done.stderr


def test_the_installed_commands_train_and_predict_anywhere(packages, tmp_path):
  bin_folder = environment(tmp_path / 'env')
  run(bin_folder / 'pip', 'install', f'{packages[0]}[train]')
  elsewhere = tmp_path / 'elsewhere'
  elsewhere.mkdir()
  selfattn = bin_folder / 'selfattn'
  listed = run(
    selfattn, 'train', '--config=configs/trec.py', '--help', cwd=elsewhere
  )
  assert '--config.data.text.encoding=latin-1: encoding of the files' in listed
  train = run(selfattn, 'train', '--workdir=run', *SMALL, cwd=elsewhere)
  assert last_json(train)['split'] == 'test'
  (attempt,) = json.loads((elsewhere / 'run/env.json').read_text())
  assert attempt['command'][0] == 'experiments.train'
  shown = run(
    selfattn, 'predict', '--workdir=run', '--text=fine', cwd=elsewhere
  )
  assert last_json(shown)['count'] == 1
  run(selfattn, 'inspect', '--workdir=run', cwd=elsewhere)
  assert (elsewhere / 'run/inspect/index.html').exists()
