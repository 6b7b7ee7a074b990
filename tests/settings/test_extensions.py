"""Files of --config that register entries of tables, from train to report."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, last_json, make_small_config

from configs import default
from experiments.command import config_files
from experiments.command.errors import UserError
from experiments.settings import extensions, stored
from experiments.settings.settings import from_config
from selfattn.encoders import ENCODERS
from selfattn.positions import NoPosition, Position

SMALL = [
  '--config.data.word_order.train_pairs=37',
  '--config.data.word_order.validation_pairs=11',
  '--config.data.word_order.test_pairs=13',
  '--config.data.num_buckets=1',
  '--config.model.num_layers=1',
  '--config.model.embed_dim=12',
  '--config.model.mlp_dim=20',
  '--config.train.batch_size=16',
  '--config.train.steps=4',
  '--config.train.eval_batch_size=32',
]
TEXT = '--text=the plot was dull but the acting was fine'
# Every table, with an entry to register again under another name.
EVERY = """
from configs import default
from experiments.settings.extensions import TABLES

ORIGINALS = {
  'POSITIONS': 't5', 'SAMPLINGS': 'random_offset', 'ENCODERS': 'attention',
  'POOLS': 'mean', 'NORMALISERS': 'softmax', 'OPTIMIZERS': 'lion',
  'GROUPS': 'matrices', 'SCHEDULES': 'linear', 'DATASETS': 'word_order',
  'VOCABULARIES': 'word', 'TASKS': 'classify', 'ALGORITHMS': 'parity',
  'HEADS': 'linear',
}

def get_config():
  for table, name in ORIGINALS.items():
    TABLES[table]['mine'] = TABLES[table][name]
  TABLES['GROUPS']['mine'] = lambda path, shape: path[-1] == 'bias'
  config = default.get_config()
  for section in (
    config.data, config.data.vocabulary, config.model.position,
    config.model.position_sampling, config.model.head, config.optimizer,
    config.task,
  ):
    section.name = 'mine'
  config.data.mine.train_pairs = 17
  config.data.mine.validation_pairs = config.data.mine.test_pairs = 11
  config.model.pool = 'mine'
  config.optimizer.schedule = 'mine'
  config.optimizer.groups.mine.name = 'sgd'
  return config
"""


@pytest.fixture(autouse=True)
def forget():
  """Brings tables to what a new process has, now and after the test."""

  def clear():
    extensions._registered.clear()
    extensions._texts.clear()
    extensions._runs.clear()
    for table, entries in extensions.TABLES.items():
      entries.clear()
      built_in = extensions._BUILT_IN.items()
      entries |= {name: e for (of, name), e in built_in if of == table}

  yield clear
  clear()


def test_a_default_that_no_config_can_hold_is_named(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Typed:
    width: int = 3
    dtype: type = float

  monkeypatch.setitem(extensions.TABLES['POOLS'], 'typed', Typed)
  with pytest.raises(UserError, match=r"Typed\.dtype = <class 'float'> is the"):
    default.get_config()


def test_an_option_with_the_name_of_a_method_is_named(monkeypatch):
  """It would take the place of the scale of attention scores."""

  @dataclasses.dataclass(frozen=True)
  class Scaled(Position):
    scale: float = 8.0

  monkeypatch.setitem(extensions.TABLES['POSITIONS'], 'scaled', Scaled)
  with pytest.raises(UserError, match=r'Scaled\.scale .* Position\.scale'):
    default.get_config()


@pytest.mark.parametrize('option', ['causal', 'clone'])
def test_an_option_with_the_name_of_a_property_of_flax_is_named(
  option, monkeypatch
):
  mine = type(
    'Mine',
    (ENCODERS['rnn'],),
    {option: False, '__annotations__': {option: bool}},
  )
  monkeypatch.setitem(extensions.TABLES['ENCODERS'], 'mine', mine)
  with pytest.raises(UserError, match=rf'Mine\.{option} is an option with the'):
    default.get_config()


def test_what_is_no_entry_is_named(monkeypatch):
  class Undecorated(Position):
    slope: float = 1.0

  for name, entry, message in (
    ('mine', Undecorated, r'Undecorated\.slope is no field: .* needs @data'),
    ('mine', NoPosition(8, 2, False), "'mine' is registered as NoPosition"),
    ('my+own', NoPosition, r"'my\+own': names are joined by \+"),
  ):
    with monkeypatch.context() as patch:
      patch.setitem(extensions.TABLES['POSITIONS'], name, entry)
      with pytest.raises(UserError, match=message):
        default.get_config()


@pytest.fixture
def example():
  """The file of the docs."""
  page = (ROOT / 'docs/extending.md').read_text()
  section = page.split('## A file of your own')[1]
  (text,) = re.findall(r'```python\n(.*?)```', section.split('\n## ')[0], re.S)
  assert len(text.splitlines()) <= 40
  return text


@pytest.mark.slow
def test_the_example_of_the_docs_from_training_to_report(
  example, forget, tmp_path, call_command
):
  file, run = tmp_path / 'mine.py', tmp_path / 'run'
  file.write_text(example)
  train = ['train', f'--config={file}', f'--workdir={run}', *SMALL]
  code, stdout, stderr = call_command(*train, cwd=tmp_path)
  assert code == 0, stderr
  assert 'log_distance positions' in stderr
  assert (run / 'extension.py').read_text() == example
  trained = last_json(stdout)

  forget()
  file.write_text('what is no Python')
  elsewhere = tmp_path / 'elsewhere'
  elsewhere.mkdir()
  moved = run.rename(elsewhere / 'moved')
  for name, *more in (
    ('evaluate', '--split=test'),
    ('predict', TEXT),
    ('inspect', TEXT),
  ):
    forget()
    code, stdout, stderr = call_command(
      name, f'--workdir={moved}', *more, cwd=elsewhere
    )
    assert code == 0, stderr
    if name == 'evaluate':
      assert last_json(stdout)['loss'] == pytest.approx(trained['loss'])

  # The kept file is a config, with which the run goes on.
  forget()
  again = [f'--config={moved}/extension.py', f'--workdir={moved}']
  code, stdout, stderr = call_command('train', *again, *SMALL, cwd=elsewhere)
  assert code == 0, stderr
  assert f'{moved} is done after 4 steps' in stderr
  forget()
  file.write_text(example + '# changed\n')
  code, _, stderr = call_command(
    'train', f'--config={file}', f'--workdir={moved}', *SMALL, cwd=tmp_path
  )
  assert code == 2
  assert f'whose --config is {moved}/extension.py' in stderr


@pytest.mark.slow
def test_a_sweep_trains_what_its_file_registers(
  example, forget, tmp_path, call_command
):
  file, sweep = tmp_path / 'mine.py', tmp_path / 'sweep'
  file.write_text(example)
  code, stdout, stderr = call_command(
    'sweep',
    f'--config={file}',
    f'--workdir={sweep}',
    '--sweep=slopes',
    '--engine=serial',
    *SMALL,
    cwd=tmp_path,
  )
  assert code == 0, stderr
  assert last_json(stdout)['trials'] == {'DONE': 2}
  file.unlink()
  for path in (sweep, next((sweep / 'trials').glob('*/'))):
    forget()
    code, _, stderr = call_command('inspect', f'--workdir={path}', cwd=tmp_path)
    assert code == 0, stderr
  forget()
  file.write_text(example + '# changed\n')
  code, _, stderr = call_command(
    'sweep',
    f'--config={file}',
    f'--workdir={sweep}',
    '--sweep=slopes',
    *SMALL,
    cwd=tmp_path,
  )
  assert code == 2
  assert 'a run whose --config is' in stderr


def test_every_table_takes_an_entry_of_a_file(forget, tmp_path, call_command):
  file, run = tmp_path / 'mine.py', tmp_path / 'run'
  file.write_text(EVERY)
  assert set(re.findall("'([A-Z]+)'", EVERY)) == set(extensions.TABLES)
  small = [word for word in SMALL if 'word_order' not in word]
  code, _, stderr = call_command(
    'train', f'--config={file}', f'--workdir={run}', *small, cwd=tmp_path
  )
  assert code == 0, stderr
  assert 'data mine: 34 train' in stderr
  forget()
  # Registered by get_config() rather than by the module.
  settings = stored.read_settings(str(run))
  assert settings.optimizer.groups['mine'].name == 'sgd'
  assert settings.model.position.options == {
    'num_buckets': 32, 'max_distance': 128, 'shared': True, 'init_std': 1.0,
  }  # fmt: skip


def opened(file):
  config = config_files.load_config(str(file))
  extensions.add(config, str(file))
  return config


def test_two_files_that_register_a_name_are_not_mixed(
  example, forget, tmp_path
):
  for folder, text in (('one', example), ('two', example + '# other\n')):
    forget()
    (tmp_path / folder).mkdir()
    file = tmp_path / f'{folder}.py'
    file.write_text(text)
    config = opened(file)
    stored.open_run(str(tmp_path / folder), config.to_dict(), {})
  forget()
  one = stored.read_settings(str(tmp_path / 'one'))
  assert one == stored.read_settings(str(tmp_path / 'one'))
  before = extensions._entries()
  with pytest.raises(UserError, match=r"POSITIONS\['log_distance'\]") as error:
    stored.read_settings(str(tmp_path / 'two'))
  assert f'{tmp_path}/two/extension.py' in str(error.value)
  assert extensions._entries() == before


def test_a_built_in_name_is_refused(example, tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(example.replace('log_distance', 'rotary'))
  rotary = extensions.TABLES['POSITIONS']['rotary']
  with pytest.raises(UserError, match=r"POSITIONS\['rotary'\], which is built"):
    opened(file)
  assert extensions.TABLES['POSITIONS']['rotary'] is rotary


@pytest.fixture
def kept_and_built_in(example, forget, tmp_path, monkeypatch):
  """A run with a file, whose entry a later version has under its name."""
  file, run = tmp_path / 'mine.py', tmp_path / 'run'
  file.write_text(example)
  stored.open_run(str(run), opened(file).to_dict(), {})
  later = extensions._BUILT_IN | {('POSITIONS', 'log_distance'): NoPosition}
  monkeypatch.setattr(extensions, '_BUILT_IN', later)
  forget()
  return run


@pytest.fixture
def plain(tmp_path):
  """A run without a file."""
  path = str(tmp_path / 'plain')
  stored.open_run(path, make_small_config().to_dict(), {})
  return path


def test_a_run_has_its_own_entry_rather_than_a_later_built_in_one(
  kept_and_built_in, capfd
):
  settings = stored.read_settings(str(kept_and_built_in))
  assert settings.model.position.options == {'init_slope': 1.0}
  entry = extensions.TABLES['POSITIONS']['log_distance']
  assert entry.__name__ == 'LogDistance'
  assert "replaces the built-in POSITIONS['log_dist" in capfd.readouterr().err


def test_a_run_is_resumed_with_its_own_entry(kept_and_built_in):
  config = opened(kept_and_built_in / 'extension.py')
  stored.check(str(kept_and_built_in), from_config(config))


def test_a_replaced_built_in_entry_is_never_that_of_another_run(
  kept_and_built_in, plain, forget
):
  stored.read_settings(str(kept_and_built_in))
  with pytest.raises(UserError, match='one run per process'):
    stored.read_settings(plain)
  forget()
  stored.read_settings(plain)
  with pytest.raises(UserError, match='one run per process'):
    stored.read_settings(str(kept_and_built_in))
  assert extensions.TABLES['POSITIONS']['log_distance'] is NoPosition


def test_the_content_of_the_file_is_part_of_what_a_run_is(
  example, forget, tmp_path
):
  digests, identities, places = set(), set(), ('a.py', 'b.py')
  for text in (example, example + '# other\n'):
    for place in places:
      forget()
      file = tmp_path / place
      file.write_text(text)
      config = opened(file)
      digests.add(from_config(config).digest())
      config = stored.with_format(config.to_dict())
      identities.add(stored.identity(config))
  assert (len(digests), len(identities)) == (2, 2)


def test_a_file_may_register_at_its_top_and_in_get_config(
  forget, tmp_path, call_command
):
  file, run = tmp_path / 'mine.py', tmp_path / 'run'
  file.write_text(
    'from configs import default\n'
    'from experiments.settings.extensions import TABLES\n'
    "TABLES['SCHEDULES']['flat'] = TABLES['SCHEDULES']['constant']\n"
    'def get_config():\n'
    "  TABLES['POOLS']['mine'] = TABLES['POOLS']['mean']\n"
    '  config = default.get_config()\n'
    "  config.model.pool, config.optimizer.schedule = 'mine', 'flat'\n"
    '  return config\n'
  )
  code, _, stderr = call_command(
    'train', f'--config={file}', f'--workdir={run}', *SMALL, cwd=tmp_path
  )
  assert code == 0, stderr
  forget()
  settings = stored.read_settings(str(run))
  assert settings.model.pool.name == 'mine'
  assert settings.optimizer.schedule == 'flat'


def test_a_file_that_registers_nothing_is_not_kept(tmp_path):
  config = opened(ROOT / 'configs' / 'default.py')
  stored.open_run(str(tmp_path), config.to_dict(), {})
  assert not (tmp_path / 'extension.py').exists()
  assert 'extension' not in json.loads((tmp_path / 'config.json').read_text())


@pytest.mark.parametrize('content', [None, 'def', 'raise ValueError(7)'])
def test_a_kept_file_that_is_gone_or_fails_is_one_line(
  content, example, forget, tmp_path
):
  file = tmp_path / 'mine.py'
  file.write_text(example)
  run = tmp_path / 'run'
  run.mkdir()
  stored.open_run(str(run), opened(file).to_dict(), {})
  forget()
  kept = run / 'extension.py'
  kept.unlink() if content is None else kept.write_text(content)
  with pytest.raises(UserError, match=re.escape(str(kept))):
    stored.read_settings(str(run))


@pytest.mark.matrix
def test_the_matrix_runs_for_methods_of_a_file(example, tmp_path):
  (tmp_path / 'mine.py').write_text(example)
  command = [sys.executable, '-m', 'pytest', '-n0', '-m', 'matrix']
  command += [f'--config={tmp_path / "mine.py"}', '--collect-only']
  found = subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, timeout=300
  )
  assert found.returncode == 0, found.stdout + found.stderr
  names = [line for line in found.stdout.splitlines() if '::' in line]
  assert len(names) > 20
  assert all('log_distance' in name for name in names)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'get_config'),
    ('from configs.default import *', 'registers no position method'),
  ],
)
def test_the_matrix_of_no_methods_is_refused(text, message, tmp_path):
  (tmp_path / 'mine.py').write_text(text)
  command = [sys.executable, '-m', 'pytest', '-n0', '--collect-only']
  found = subprocess.run(
    [*command, '-m', 'matrix', '--config=mine.py', 'tests/test_rooms.py'],
    cwd=ROOT,
    env=os.environ | {'OLDPWD': str(tmp_path)},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert found.returncode == pytest.ExitCode.USAGE_ERROR
  (line,) = found.stderr.split('\n\n')[0].splitlines()
  assert message in line
