"""Classes of one's own through every command, as module:Class."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, last_json

from experiments.command import modules

SCALES = 'SCALE = 0.5\n'
IDEAS = """
import dataclasses

import jax.numpy as jnp
from scales_of_ideas import SCALE

from selfattn.normalisers import Softmax
from selfattn.positions import Position
from selfattn.positions.contract import distances


@dataclasses.dataclass(frozen=True)
class Nearer(Position):
  slope: float = 1.0

  def bias(self, params, query, key):
    far_BLM = abs(jnp.asarray(distances(query, key), jnp.float32))
    bias_BLM = -self.slope * SCALE * far_BLM
    return jnp.repeat(bias_BLM[:, None], self.num_heads, axis=1)


@dataclasses.dataclass(frozen=True)
class Cooler(Softmax):
  pass
"""
CONFIG = """
from scales_of_ideas import SCALE

from configs import default

def get_config():
  config = default.get_config()
  config.model.position = f'ideas_of_commands:Nearer(slope={4 * SCALE})'
  config.model.normaliser = 'ideas_of_commands:Cooler'
  return config
"""
SMALL = [
  '--config.data.source=word_order(train_pairs=20, validation_pairs=5, '
  'test_pairs=5)',
  '--config.train.steps=2',
  '--config.train.eval_every=2',
  '--config.optimizer.warmup_steps=0',
  '--config.model.num_layers=1',
  '--config.model.embed_dim=16',
  '--config.model.mlp_dim=16',
]
TEXT = '--text=the plot was dull'


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder with a config, its classes and a module beside them."""
  monkeypatch.setattr(modules, '_folders', [])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  (tmp_path / 'ideas').mkdir()
  (tmp_path / 'ideas/scales_of_ideas.py').write_text(SCALES)
  (tmp_path / 'ideas/ideas_of_commands.py').write_text(IDEAS)
  (tmp_path / 'ideas/mine.py').write_text(CONFIG)
  return tmp_path


@pytest.mark.slow
def test_a_config_trains_what_stands_beside_it_and_is_read_elsewhere(
  folder, call_command, monkeypatch
):
  config, run = folder / 'ideas/mine.py', folder / 'run'
  words = [f'--config={config}', f'--workdir={run}', *SMALL]
  code, stdout, stderr = call_command('train', *words, cwd=folder)
  assert code == 0, stderr
  assert 'ideas_of_commands:Nearer(slope=2) positions' in stderr
  trained = last_json(stdout)
  for name, *more in (('evaluate',), ('predict', TEXT), ('inspect', TEXT)):
    monkeypatch.setattr(modules, '_folders', [])
    monkeypatch.setattr(modules, '_versions', {})
    words = [f'--workdir={run}', *more]
    code, stdout, stderr = call_command(name, *words, cwd=folder)
    assert code == 0, stderr
    if name == 'evaluate':
      assert last_json(stdout)['loss'] == pytest.approx(trained['loss'])


@pytest.mark.slow
def test_a_sweep_over_options_joined_methods_and_ones_own(folder, call_command):
  grid = (
    'config.model.position=ideas_of_commands:Nearer,'
    'ideas_of_commands:Nearer(slope=2)+t5,rotary(base=100)'
  )
  words = [
    f'--grid={grid}', '--grid=config.seed=0,1', f'--workdir={folder}/sweep',
    '--engine=vectorized', *SMALL,
  ]  # fmt: skip
  code, stdout, stderr = call_command('sweep', *words, cwd=folder / 'ideas')
  assert code == 0, stderr
  result = last_json(stdout)
  assert result['trials'] == {'DONE': 6}
  assert {entry['setting'] for entry in result['table']} == {
    'ideas_of_commands:Nearer',
    'ideas_of_commands:Nearer(slope=2)+t5',
    'rotary(base=100)',
  }


@pytest.mark.slow
def test_the_matrix_of_tests_takes_a_class(folder):
  name = 'ideas_of_commands:Nearer'
  command = [sys.executable, '-m', 'pytest', '-n0', '--collect-only']
  done = subprocess.run(
    [*command, '-m', 'matrix', f'--method={name}', 'tests/selfattn'],
    cwd=ROOT,
    env=os.environ | {'OLDPWD': str(folder / 'ideas')},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  names = [line for line in done.stdout.splitlines() if '::' in line]
  assert len(names) >= 15
  assert all(name in line for line in names)
