"""Runs of earlier versions stay readable, whatever later ones add."""

import copy
import dataclasses
import json
import pathlib
import shutil

import pytest
from conftest import ROOT, last_json, make_small_config

from experiments.command.errors import UserError
from experiments.settings import formats
from experiments.settings import settings as settings_lib
from experiments.settings import stored as stored_lib
from experiments.sweeps import folder, plan
from experiments.workdir import workdir as workdir_lib
from selfattn.positions import POSITIONS

pytestmark = pytest.mark.usefixtures('shared_programs')
OLD_RUNS = pathlib.Path(__file__).parent / 'old_runs'
FORMATS = sorted(path.name for path in OLD_RUNS.glob('format_*'))


def files(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def rows(folder):
  text = (folder / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize('name', FORMATS)
def test_an_old_run_is_evaluated_to_the_same_scores(name, call_command):
  folder = OLD_RUNS / name
  before = files(folder)
  code, stdout, stderr = call_command(
    'evaluate', f'--workdir={folder}/finished', cwd=ROOT
  )
  assert code == 0, stderr
  found = last_json(stdout)
  wanted = json.loads((folder / 'expected.json').read_text())
  assert found.pop('loss') == pytest.approx(wanted.pop('loss'), rel=1e-4)
  assert found == wanted
  assert files(folder) == before


@pytest.mark.parametrize('name', FORMATS)
def test_an_old_run_predicts(name, call_command):
  folder = OLD_RUNS / name / 'finished'
  text = 'the plot was dull but the acting was fine'
  code, stdout, stderr = call_command(
    'predict', f'--workdir={folder}', f'--text={text}', '--json', cwd=ROOT
  )
  assert code == 0, stderr
  found = last_json(stdout)
  wanted = json.loads((folder.parent / 'predicted.json').read_text())
  probabilities = pytest.approx(wanted.pop('probabilities'), rel=1e-3)
  assert found.pop('probabilities') == probabilities
  assert found.pop('prediction') == wanted.pop('label')
  assert found == wanted


@pytest.mark.parametrize('name', FORMATS)
def test_an_old_run_is_resumed_to_its_end(name, tmp_path, call_command):
  path, finished = tmp_path / 'run', OLD_RUNS / name / 'finished'
  shutil.copytree(OLD_RUNS / name / 'interrupted', path)
  start = workdir_lib.read_status(str(path))['step']
  stored = json.loads((path / 'config.json').read_text())
  flat = settings_lib.from_config(formats.upgrade(stored)).flat()
  code, stdout, stderr = call_command(
    'train',
    f'--workdir={path}',
    *[f'--config.{key}={value}' for key, value in flat.items()],
    cwd=ROOT,
  )
  assert code == 0, stderr
  assert f'resuming after step {start}' in stderr
  assert last_json(stdout)['accuracy'] > 0.97
  steps = workdir_lib.read_status(str(finished))['step']
  assert workdir_lib.read_status(str(path))['step'] == steps
  wanted = json.loads((OLD_RUNS / name / 'resumed.json').read_text())
  (found,) = (row for row in rows(path) if row['step'] == wanted['step'])
  assert found.keys() == wanted.keys()
  assert found['train/loss'] == pytest.approx(wanted['train/loss'], rel=1e-2)


@pytest.fixture
def stored():
  """A config as a workdir keeps it."""
  return json.loads(json.dumps(make_small_config().to_dict()))


def read(config):
  return formats.read(config)


def test_a_config_of_today_is_not_changed(stored):
  assert formats.upgrade({'format': formats.FORMAT} | stored) == stored


def test_an_option_that_did_not_exist_has_its_default(stored, monkeypatch):
  before, run = read(stored), stored_lib.identity(stored)
  digest = before.digest()

  @dataclasses.dataclass(frozen=True)
  class Longer(POSITIONS['sinusoidal']):
    new_option: int = 7

  monkeypatch.setitem(POSITIONS, 'sinusoidal', Longer)
  monkeypatch.setitem(POSITIONS, 'new_method', Longer)
  after = read(stored)
  assert after.model.position.options['new_option'] == 7
  assert after.data == before.data
  assert after.digest() == digest
  # Nor is it another run by that, whose checkpoints would be refused.
  assert stored_lib.identity(stored) == run
  stored['model']['position']['sinusoidal']['base'] = 9.0
  assert stored_lib.identity(stored) != run


def test_a_run_without_normaliser_and_pool_options_is_the_same_run(stored):
  wanted, old = read(stored), copy.deepcopy(stored)
  del old['model']['normaliser'], old['model']['pool_options']
  assert read(old) == wanted
  # The folder in which `train` looks for a run without --workdir.
  assert read(stored).digest() == '190db234'


def test_what_is_gone_matters_only_where_it_was_chosen(stored):
  known = copy.deepcopy(stored)
  stored['model']['position']['gone'] = {'option': 1}
  stored['model']['position']['t5']['gone'] = 2
  stored['data']['gone'] = {'option': 1}
  assert read(stored) == read(known)
  stored['model']['position']['name'] = 't5'
  with pytest.raises(UserError, match=r'position\.t5\.gone is not a key'):
    read(stored)
  stored['model']['position']['name'] = 'gone'
  with pytest.raises(UserError, match=r"'gone' is not one of"):
    read(stored)


def test_a_key_that_means_nothing_is_refused(stored):
  stored['train']['stepz'] = 3
  with pytest.raises(UserError, match=r'config\.train\.stepz is not a key'):
    read(stored)


def test_a_key_of_a_section_is_renamed_or_added_by_a_table(stored, monkeypatch):
  wanted, run = read(stored), stored_lib.identity(stored)
  old = copy.deepcopy(stored)
  old['train']['every'] = old['train'].pop('eval_every')
  del old['model']['pool']
  with pytest.raises(UserError):
    read(old)
  monkeypatch.setitem(formats.RENAMED, 'train.every', 'train.eval_every')
  monkeypatch.setitem(formats.ADDED, 'model.pool', 'mean')
  assert read(old) == wanted
  assert read(stored) == wanted
  # The identity is that of the keys which the run was created with.
  old_run = stored_lib.identity(old)
  assert old_run != run
  monkeypatch.setitem(formats.RENAMED, 'train.steps_all', 'train.steps')
  assert stored_lib.identity(old) == old_run


@pytest.mark.parametrize('name', ['bag', 'bow'])
def test_an_encoder_of_two_names_is_one_run(name, stored, tmp_path):
  """Its folder, its checkpoints, and the settings that it is resumed with."""
  stored['model']['encoder']['name'] = name
  # Keys that came later are not part of its identity.
  for key in ('num_folds', 'fold', 'split_by'):
    del stored['data'][key]
  del stored['data']['vocabulary']['word']['split_punctuation']
  del stored['pretrain']['best_metric'], stored['model']['head']
  for task in (stored['task'], stored['pretrain']['task']):
    del task['masked_tokens']['whole_words']
  settings = read(stored)
  assert settings.model.encoder.name == 'bow'
  assert settings.digest() == '2dd38be6'
  assert settings_lib.from_config(formats.upgrade(stored)) == settings
  assert stored_lib.identity(stored) == 'b1905cf5fcb72e9a'
  other = copy.deepcopy(stored)
  other['model']['encoder']['name'] = 'bow'
  (tmp_path / 'config.json').write_text(json.dumps(stored))
  stored_lib.check(str(tmp_path), read(other))


def test_a_trial_of_a_renamed_value_keeps_its_folder(stored, tmp_path):
  sweep = {'config': stored, 'trials': [{'model.encoder.name': 'bag'}]}
  (tmp_path / 'sweep.json').write_text(json.dumps(sweep))
  (trial,) = folder.read(str(tmp_path))
  assert trial.settings.model.encoder.name == 'bow'
  assert trial.name == plan.identity({'model.encoder.name': 'bag'})


def test_what_is_refused_today_may_have_been_trained(stored):
  stored['model']['pool'] = 'cls'
  stored['model']['encoder']['attention']['window'] = [2, 3]
  with pytest.raises(UserError, match='window'):
    settings_lib.from_config(stored)
  assert read(stored).model.pool.name == 'cls'


def test_the_name_of_a_hub_data_set_was_its_folder(stored):
  stored['data'] |= {'name': 'text', 'dir': 'owner/set'}
  stored['data']['text']['format'] = 'hub'
  del stored['data']['text']['hub_name']
  found = read(stored).data
  assert (found.dir, found.source.options['hub_name']) == ('', 'owner/set')
  again = formats.upgrade(formats.upgrade(stored))
  assert again == formats.upgrade(stored)


def test_a_config_of_a_later_format_is_refused_by_its_number(stored):
  stored['format'] = formats.FORMAT + 1
  with pytest.raises(UserError, match=f'has format {formats.FORMAT + 1}'):
    read(stored)


@pytest.mark.parametrize('text', ['[]', '{"seed":', '{"format": 0}'])
def test_a_damaged_config_is_one_line_with_its_path(text, tmp_path):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match=r'config\.json'):
    stored_lib.read_settings(str(tmp_path))
