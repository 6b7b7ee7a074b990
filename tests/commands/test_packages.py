"""Packages: what `pip install` installs, and that it runs anywhere.

Run by `pytest -m packaging`: each test makes a new environment.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

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
# Packages of this project, whose names those of a user may have, too.
SHORT_NAMES = ('experiments', 'configs')
CONFIG = """
import sizes
from configs import default

def get_config():
  config = default.get_config()
  config.model.embed_dim = sizes.WIDTH
  config.model.pool = 'ideas:Last'
  return config
"""
IDEAS = """
import helper_of_ideas
from configs import default
from experiments.data.contract import Dataset
from selfattn.pools import Mean

class Last(Mean):
  pass
"""


def run(*words, **options):
  """Standard output; without the variables of run.sh.

  What is in the working folder hides packages of the environment.
  """
  environ = {k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}
  environ['PYTHONPATH'] = str(options.get('cwd', ''))
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


def write_packages_of_a_user(folder):
  """Packages of the short names, which fail if anything imports them."""
  for name in SHORT_NAMES:
    (folder / name).mkdir()
    text = f'raise AssertionError("{name} of the user is imported")\n'
    for file in ('__init__.py', 'train.py', 'predict.py', 'default.py'):
      (folder / name / file).write_text(text)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A folder with the source alone."""
  path = tmp_path_factory.mktemp('checkout') / 'source'
  ignored = shutil.ignore_patterns('.*', '__pycache__', 'runs', 'site')
  shutil.copytree(ROOT, path, ignore=ignored)
  return path


@pytest.fixture(scope='module')
def packages(source, tmp_path_factory):
  """The wheel, built from the sdist, and the sdist."""
  folder = tmp_path_factory.mktemp('packages')
  tools = environment(folder / 'tools')
  try:
    run(tools / 'pip', 'install', 'build')
  except AssertionError as error:
    pytest.skip(f'no package index: {error}')
  run(tools / 'python', '-m', 'build', source, '-o', folder)
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


@pytest.fixture(scope='module')
def selfattn(packages, tmp_path_factory):
  """The script of an environment that has packages of a user."""
  bin_folder = environment(tmp_path_factory.mktemp('installed') / 'env')
  run(bin_folder / 'pip', 'install', f'{packages[0]}[train]')
  where = 'import sysconfig; print(sysconfig.get_path("purelib"))'
  libraries = run(bin_folder / 'python', '-c', where).strip()
  write_packages_of_a_user(pathlib.Path(libraries))
  return bin_folder / 'selfattn'


@pytest.fixture
def elsewhere(tmp_path):
  """A working folder with a config, a class, and packages of a user."""
  folder = tmp_path / 'elsewhere'
  folder.mkdir()
  write_packages_of_a_user(folder)
  (folder / 'configs/mine.py').write_text(CONFIG)
  (folder / 'configs/sizes.py').write_text('WIDTH = 24\n')
  (folder / 'ideas.py').write_text(IDEAS)
  (folder / 'helper_of_ideas.py').write_text('')
  return folder


def test_an_installation_adds_two_packages_with_all_their_files(
  packages, source
):
  installed = {
    name
    for name in zipfile.ZipFile(packages[0]).namelist()
    if '.dist-info/' not in name
  }
  wanted = {
    f'{"" if folder == "selfattn" else "selfattn_commands/"}'
    f'{path.relative_to(source)}'
    for folder in ('selfattn', *SHORT_NAMES)
    for path in (source / folder).rglob('*.*')
  }
  assert installed == wanted


def test_every_installed_command_has_its_help(selfattn, elsewhere):
  (*_, listed) = run(selfattn, '--help', cwd=elsewhere).splitlines()
  names = listed.removeprefix('commands: ').split(', ')
  assert names == sorted(
    p.stem for p in (ROOT / 'experiments').glob('[a-z]*.py')
  )
  for name in names:
    shown = run(selfattn, name, '--help', cwd=elsewhere)
    assert f'    selfattn {name}' in shown
    assert 'run.sh' not in shown
    assert 'flags:' in shown
  listed = run(
    selfattn, 'train', '--config=configs/trec.py', '--help', cwd=elsewhere
  )
  assert '--config.data.text.encoding=latin-1: encoding of the files' in listed


def test_the_installed_commands_run_beside_packages_of_a_user(
  selfattn, elsewhere
):
  def command(name, *flags):
    return last_json(run(selfattn, name, *flags, cwd=elsewhere))

  mine = '--config=configs/mine.py', *SMALL
  assert command('train', '--workdir=run', *mine)['split'] == 'test'
  (attempt,) = json.loads((elsewhere / 'run/env.json').read_text())
  assert attempt['command'][0] == 'experiments.train'
  assert command('predict', '--workdir=run', '--text=fine')['count'] == 1
  command('inspect', '--workdir=run')
  assert (elsewhere / 'run/inspect/index.html').exists()
  command('export', '--workdir=run', '--output=exported')
  seeds = '--grid=config.seed=0,1,2', '--workdir=seeds', '--engine=processes'
  assert command('sweep', *seeds, *mine)['trials'] == {'DONE': 3}
  shown = run(
    selfattn.parent / 'python', 'exported/predict.py', 'fine', cwd=elsewhere
  )
  assert 'positive' in shown


LOADS = """
import sys
before = list(sys.path)
import selfattn
import selfattn_commands
assert sys.path == before
EXAMPLE
import experiments, selfattn_commands
print(experiments.__file__)
"""


def test_an_installation_loads_a_run_in_python(selfattn, elsewhere):
  run(selfattn, 'train', '--workdir=runs/reviews', *SMALL, cwd=elsewhere)
  shown = run(selfattn.parent / 'python', '-c', loads(), cwd=elsewhere)
  assert shown.startswith(('negative {', 'positive {'))
  assert 'selfattn_commands/experiments/__init__.py' in shown


def loads():
  """The last example of the page on your own code, in a process of its own."""
  text = (ROOT / 'docs/library.md').read_text()
  (*_, example) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  return LOADS.replace('EXAMPLE', example)


def test_an_editable_installation_is_the_checkout(source, elsewhere, tmp_path):
  bin_folder = environment(tmp_path / 'env')
  run(bin_folder / 'pip', 'install', '-e', f'{source}[train]')
  selfattn = bin_folder / 'selfattn'
  run(selfattn, 'train', '--workdir=runs/reviews', *SMALL, cwd=elsewhere)
  shown = run(bin_folder / 'python', '-c', loads(), cwd=elsewhere)
  assert str(source / 'experiments/__init__.py') in shown
