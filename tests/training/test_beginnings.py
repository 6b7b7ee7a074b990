"""A result is of the files that its run began with."""

import pathlib
import shutil

import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.settings.settings import from_config
from experiments.sweeps import plan
from experiments.training import sources


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
  settings, path = from_config(config), str(tmp_path / 'trial')
  (key,) = changes
  (spec,) = plan.make(config.to_dict(), [{}], str(tmp_path / 'sweep'))
  for workdir in (path, spec.path):
    for name, text in (
      sources.begun_with(settings) | {'data.json': ''}
    ).items():
      (pathlib.Path(workdir) / name).parent.mkdir(parents=True, exist_ok=True)
      (pathlib.Path(workdir) / name).write_text(text)
  sources.check_unchanged(settings, path)
  plan.check_unchanged([spec])
  assert 'WARNING' not in capfd.readouterr().err
  content = bytearray(file.read_bytes())
  content[-2] ^= 1
  file.write_bytes(content)
  said = rf'config\.{key} = .* has changed since {path} was created: .* other'
  with pytest.raises(UserError, match=said):
    sources.check_unchanged(settings, path)
  with pytest.raises(UserError, match=rf'config\.{key} = .* has changed'):
    plan.check_unchanged([spec])
  shutil.rmtree(file.parent) if kind is not vectors else file.unlink()
  sources.check_unchanged(settings, path)
  said = f'WARNING: nobody knows whether config.{key} = '
  assert said in capfd.readouterr().err


def test_a_run_that_begins_with_no_file_is_compared_with_none(tmp_path):
  settings = from_config(make_small_config())
  assert sources.begun_with(settings) == {}
  sources.check_unchanged(settings, str(tmp_path))
