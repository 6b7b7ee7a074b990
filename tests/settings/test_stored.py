"""What a run of another version is read as."""

import dataclasses
import json
import sys

import pytest
from conftest import ROOT, make_small_config

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.sweeps import folder, plan
from selfattn.positions import POSITIONS

pytestmark = pytest.mark.usefixtures('shared_programs')


@pytest.fixture
def config():
  """A config as a workdir keeps it."""
  return json.loads(stored.as_text(make_small_config().to_dict()))


def read(config):
  return from_config(stored.complete(config))


def test_a_run_without_a_key_has_its_default(config, tmp_path):
  """A key of a section, a whole section and an option."""
  del config['train']['ema_decay'], config['task']
  del config['model']['position']
  (tmp_path / 'config.json').write_text(json.dumps(config))
  settings = from_config(make_small_config())
  assert stored.read_settings(str(tmp_path)) == settings
  stored.check(str(tmp_path), settings)
  other = make_small_config()
  other.train.ema_decay = 0.5
  with pytest.raises(UserError, match=r'train\.ema_decay was 0\.0, is 0\.5'):
    stored.check(str(tmp_path), from_config(other))


def test_a_sweep_without_a_key_is_read_with_its_default(config, tmp_path):
  del config['train']['ema_decay']
  trials = {'one': {'seed': 3}, 'two': {'train.ema_decay': 0.5}}
  sweep = {'config': config, 'trials': trials}
  (tmp_path / 'sweep.json').write_text(json.dumps(sweep))
  trials = folder.read(str(tmp_path))
  assert [t.settings.train.ema_decay for t in trials] == [0.0, 0.5]
  # Also where this version would name them otherwise.
  assert [trial.name for trial in trials] == ['one', 'two']
  for broken in ({'trials': [{'seed': 3}]}, {'config': {'format': 2}}):
    (tmp_path / 'sweep.json').write_text(json.dumps(sweep | broken))
    with pytest.raises(UserError, match=r'sweep\.json has no|version'):
      folder.read(str(tmp_path))


def test_a_new_option_changes_no_run(config, monkeypatch):
  """Its folder and its checkpoints are named by the digest."""
  digest = read(config).digest()

  @dataclasses.dataclass(frozen=True)
  class Longer(POSITIONS['sinusoidal']):
    new_option: int = 7

  monkeypatch.setitem(POSITIONS, 'sinusoidal', Longer)
  assert read(config).digest() == digest
  config['model']['position'] = 'sinusoidal(new_option=8)'
  assert read(config).digest() != digest


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'format': 2}, 'format 2, and this version reads format 1; use the'),
    ({'format': None}, 'format None, and this version reads format 1'),
    ({'train': {'stepz': 3}}, 'config.train.stepz is not a key'),
    ({'gone': 3}, 'config.gone is not a key'),
    ({'data': None}, 'config.data = None is no section'),
    ({'model': {'position': {'a': 1}}}, 'config.model.position = {'),
    ({'seed': {'a': 1}}, "config.seed = {'a': 1} must be an integer"),
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


IDEAS = """
import dataclasses
from selfattn.positions.rotary import Rotary

@dataclasses.dataclass(frozen=True)
class Mine(Rotary):
  turns: int = 1
"""


def test_a_run_with_a_class_of_ones_own_is_read_from_another_folder(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(modules, '_folders', [])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  for name in ('work', 'run'):
    (tmp_path / name).mkdir()
  path, file = str(tmp_path / 'run'), tmp_path / 'work/mine_of_tests.py'
  file.write_text(IDEAS)
  monkeypatch.chdir(tmp_path / 'work')
  config = make_small_config()
  config.model.position = 'mine_of_tests:Mine(turns=2)+t5'
  files = {'config.json': stored.as_text(config.to_dict())}
  files |= stored.modules_of([from_config(config)])
  for name, text in files.items():
    (tmp_path / 'run' / name).write_text(text)
  monkeypatch.chdir(tmp_path)
  (joined,) = stored.read_settings(path).model.position
  assert [part.label for part in joined] == ['Mine', 't5']
  assert capfd.readouterr().err == ''
  file.write_text(IDEAS + '# changed')
  stored.read_settings(path)
  assert 'is not as it was when ' in capfd.readouterr().err
  file.unlink()
  with pytest.raises(UserError, match=f'of {file}, which is gone; put it back'):
    stored.read_settings(path)


def test_a_resumed_sweep_says_that_a_class_of_ones_own_has_changed(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(modules, '_folders', [])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.chdir(tmp_path)
  file, base = tmp_path / 'swept_of_tests.py', make_small_config().to_dict()
  sweep = str(tmp_path / 'sweep')

  def write(text, *trials):
    file.write_text(text)
    folder.write(sweep, base, plan.make(base, trials, sweep))
    return capfd.readouterr().err.count('is not as it was when'), json.loads(
      (tmp_path / 'sweep/modules.json').read_text()
    )

  mine = {'model.position': 'swept_of_tests:Mine'}
  _, planned = write(IDEAS, mine)
  assert write(IDEAS, mine) == (0, planned)
  # Of several trials once, however often a command reads them.
  for count in (1, 0):
    changed = write(IDEAS + '# changed', mine, mine | {'seed': 1})
    assert changed == (count, planned)
  file.unlink()
  with pytest.raises(UserError, match=f'of {file}, which is gone; put it back'):
    folder.read(sweep)


@pytest.mark.parametrize('text', ['[]', '{"seed":', '{"format": 0}'])
def test_a_damaged_config_is_one_line_with_its_path(text, tmp_path):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match=r'config\.json'):
    stored.read_settings(str(tmp_path))
