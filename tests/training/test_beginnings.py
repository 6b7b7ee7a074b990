"""A result is of the files that its run began with."""

import json
import pathlib
import shutil

import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.settings.settings import from_config
from experiments.sweeps import plan
from experiments.training import sources
from experiments.workdir.workdir import Workdir


def vectors(tmp_path, **_):
  file = tmp_path / 'vectors.txt'
  file.write_text('the 1 2\na 3 4\n')
  return {'model.embeddings': f'file(path={str(file)!r})'}, file


def model(tmp_path, published_bert, **_):
  shutil.copytree(published_bert, tmp_path / 'bert')
  file = tmp_path / 'bert' / 'model.safetensors'
  return {'model.pretrained': str(tmp_path / 'bert')}, file


def run(tmp_path, finished_run, **_):
  shutil.copytree(finished_run, tmp_path / 'first')
  file = tmp_path / 'first' / 'metrics.jsonl'
  return {'train.init_from': str(tmp_path / 'first')}, file


@pytest.mark.parametrize('kind', [vectors, model, run])
def test_files_that_a_run_began_with_are_compared(
  kind, tmp_path, published_bert, finished_run, capfd
):
  changes, file = kind(
    tmp_path, published_bert=published_bert, finished_run=finished_run
  )
  config = make_small_config()
  config.update_from_flattened_dict(changes)
  (key,) = changes
  (spec,) = plan.make(config.to_dict(), [{}], str(tmp_path / 'sweep'))
  workdir = pathlib.Path(spec.path)
  workdir.mkdir(parents=True)
  (workdir / 'data.json').write_text('')
  Workdir(spec.path, 1).set_status('FAILED', 0)
  sources.write_digests(spec.settings, spec.path)
  content = bytearray(file.read_bytes())
  content[-2] ^= 1
  before = file.read_bytes()
  file.write_bytes(content)
  # It begins anew.
  plan.check_unchanged([spec])
  Workdir(spec.path, 1).set_status('INTERRUPTED', 3)
  said = rf'{file} of config\.{key} has changed since {spec.path} began with it'
  with pytest.raises(UserError, match=said):
    plan.check_unchanged([spec])
  file.write_bytes(before)
  (file.parent / 'other.json').write_text('{}')
  plan.check_unchanged([spec])
  assert 'WARNING' not in capfd.readouterr().err
  file.unlink()
  plan.check_unchanged([spec, spec])
  said = f'WARNING: nobody knows whether {file} of config.{key} has changed'
  assert capfd.readouterr().err.count(said) == 1


def test_the_pool_of_a_model_is_what_a_run_began_with(tmp_path, published_bert):
  changes, file = model(tmp_path, published_bert)
  (tmp_path / 'bert' / '1_Pooling').mkdir()
  pool = tmp_path / 'bert' / '1_Pooling' / 'config.json'
  pool.write_text('{"pooling_mode_mean_tokens": true}')
  config = make_small_config()
  config.update_from_flattened_dict(changes)
  sources.write_digests(from_config(config), str(tmp_path))
  (read,) = json.loads((tmp_path / 'begun_with.json').read_text()).values()
  assert {str(pool), str(file)} < set(read)


def test_a_run_that_begins_with_no_file_keeps_none(tmp_path):
  settings = from_config(make_small_config())
  (tmp_path / 'begun_with.json').write_text('{}')
  sources.write_digests(settings, str(tmp_path))
  assert not list(tmp_path.iterdir())
  sources.check_unchanged([str(tmp_path)])
