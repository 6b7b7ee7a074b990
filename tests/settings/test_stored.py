"""What a run of another version is read as."""

import dataclasses
import json

import pytest
from conftest import ROOT, last_json, make_small_config
from test_train import StopAt, arguments

from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.sweeps import folder
from experiments.training import run as run_lib
from selfattn.positions import POSITIONS

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture
def config():
  """A config as a workdir keeps it."""
  return json.loads(stored.as_text(make_small_config().to_dict()))


def read(config):
  return from_config(stored.complete(config))


def test_a_run_without_a_key_is_resumed_and_evaluated_with_its_default(
  tmp_path, call_command
):
  """A key of a section, a whole section and an option."""
  config, path = make_small_config(), tmp_path / 'run'
  incomplete = json.loads(stored.as_text(config.to_dict()))
  del incomplete['train']['ema_decay'], incomplete['task']
  del incomplete['model']['position']['sinusoidal']['base']
  path.mkdir()
  (path / 'config.json').write_text(json.dumps(incomplete))
  with pytest.raises(Interrupted):
    run_lib.run(config, str(path), StopAt(look=8))
  words = arguments(path, config)
  code, stdout, stderr = call_command('train', *words, cwd=ROOT)
  assert code == 0, stderr
  assert 'resuming after step' in stderr
  result = last_json(stdout)
  alone = run_lib.run(make_small_config(), str(tmp_path / 'whole'), Signals())
  assert result['accuracy'] == alone['accuracy']
  code, stdout, stderr = call_command('evaluate', f'--workdir={path}', cwd=ROOT)
  assert code == 0, stderr
  assert last_json(stdout)['loss'] == pytest.approx(result['loss'], rel=1e-5)
  assert json.loads((path / 'config.json').read_text()) == incomplete


def test_a_sweep_without_a_key_is_read_with_its_default(config, tmp_path):
  del config['train']['ema_decay']
  sweep = {'config': config, 'trials': [{'seed': 3}, {'train.ema_decay': 0.5}]}
  (tmp_path / 'sweep.json').write_text(json.dumps(sweep))
  trials = folder.read(str(tmp_path))
  assert [t.settings.train.ema_decay for t in trials] == [0.0, 0.5]


def test_a_new_option_changes_no_run(config, monkeypatch):
  """Its folder is named by the digest, its checkpoints by the identity."""
  digest, identity = read(config).digest(), stored.identity(config)

  @dataclasses.dataclass(frozen=True)
  class Longer(POSITIONS['sinusoidal']):
    new_option: int = 7

  monkeypatch.setitem(POSITIONS, 'sinusoidal', Longer)
  assert read(config).model.position.options['new_option'] == 7
  assert read(config).digest() == digest
  assert stored.identity(config) == identity
  config['model']['position']['sinusoidal']['base'] = 9.0
  assert read(config).digest() != digest
  assert stored.identity(config) != identity


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'format': 2}, 'format 2, and this version reads format 1; use the'),
    ({'format': None}, 'format None, and this version reads format 1'),
    ({'train': {'stepz': 3}}, 'config.train.stepz is not a key'),
    ({'gone': 3}, 'config.gone is not a key'),
    ({'data': None}, 'config.data = None is no section'),
    ({'model': {'position': 'rotary'}}, "config.model.position = 'rotary' is"),
    ({'seed': {'a': 1}}, "config.seed = {'a': 1} is a section"),
    ({'model': {'num_heads': 5}}, 'does not split'),
  ],
)
def test_what_this_version_does_not_read_is_one_line(
  changes, line, config, tmp_path, call_command
):
  for name, value in changes.items():
    is_section = isinstance(value, dict) and isinstance(config[name], dict)
    config[name] = config[name] | value if is_section else value
  (tmp_path / 'config.json').write_text(json.dumps(config))
  code, stdout, stderr = call_command(
    'evaluate', f'--workdir={tmp_path}', cwd=ROOT
  )
  assert (code, stdout) == (2, '')
  (only,) = stderr.splitlines()
  assert only.startswith(f'error: {tmp_path}/config.json: ')
  assert line in only


def test_an_unknown_key_of_the_checkpoints_of_a_source_is_refused(
  config, tmp_path
):
  config['checkpoint']['best'] = 'loss'
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError, match=r'config\.checkpoint\.best is not a key'):
    stored.read_keeping(str(tmp_path))


@pytest.mark.parametrize('text', ['[]', '{"seed":', '{"format": 0}'])
def test_a_damaged_config_is_one_line_with_its_path(text, tmp_path):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match=r'config\.json'):
    stored.read_settings(str(tmp_path))
