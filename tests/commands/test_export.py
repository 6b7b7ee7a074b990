"""experiments.export, from a workdir to files that predict."""

import os
import runpy

import numpy as np
import pytest
from conftest import last_json

from experiments import predict
from experiments.command import own_folders
from experiments.command.errors import UserError


def test_an_exported_run_predicts_what_the_run_does(
  finished_run, call_command, tmp_path
):
  flags = [f'--workdir={finished_run}', '--output=files']
  code, stdout, stderr = call_command('export', *flags, cwd=tmp_path)
  assert code == 0, stderr
  result = last_json(stdout)
  assert result['path'] == str(tmp_path / 'files')
  texts = ['the dog bites the man', 'the man']
  classify = predict.load(str(finished_run))
  assert result['step'] == classify.steps['step']
  expected = [list(one.probabilities.values()) for one in classify(texts)]
  exported = runpy.run_path(str(tmp_path / 'files' / 'predict.py'))
  np.testing.assert_allclose(exported['predict'](texts), expected, atol=1e-5)
  assert exported['settings']['labels'] == list(
    classify.runs[0].program.task.facts.names
  )


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--workdir={run}'], '--output is required'),
    (['--workdir={run},{run}/..', '--output=files'], 'give one run'),
    (['--workdir=absent', '--output=files'], 'absent'),
    (
      ['--workdir={run}', '--output=files', '--checkpoint=7'],
      "checkpoint = '7'",
    ),
    (['--workdir={run}', '--output=files', '--head=none'], '--head is for'),
    (
      ['--workdir={run}', '--output=files', '--format=transformers'],
      'config.model.pretrained is empty',
    ),
  ],
)
def test_an_export_of_no_run_is_refused_and_writes_nothing(
  flags, said, finished_run, call_command, tmp_path
):
  flags = [flag.format(run=finished_run) for flag in flags]
  code, _, stderr = call_command('export', *flags, cwd=tmp_path)
  assert code == 2
  assert said in stderr
  assert not (tmp_path / 'files').exists()


def test_files_of_an_earlier_export_are_replaced_and_no_others(tmp_path):
  path = tmp_path / 'given'

  def export(*names):
    own_folders.check(str(path), 'export')
    with own_folders.replaced(str(path), 'export') as made:
      os.mkdir(f'{made}/folder')
      for name in names:
        with open(f'{made}/{name}', 'w') as file:
          file.write('new')

  def found():
    files = path.rglob('[!.]*')
    return {str(file.relative_to(path)) for file in files if file.is_file()}

  export('a', 'b', 'folder/c')
  (path / 'own').touch()
  export('a', 'd')
  assert found() == {'a', 'd', 'own'}
  with pytest.raises(FileNotFoundError):
    export('e', 'absent/f')
  assert found() == {'a', 'd', 'own'}


def test_an_export_that_noted_no_files_is_left_alone(tmp_path):
  (tmp_path / 'program.bin').touch()
  own_folders.mark(str(tmp_path), 'export', [])
  with pytest.raises(UserError, match='give a new or an empty folder'):
    own_folders.check(str(tmp_path), 'export')


@pytest.mark.parametrize('command', ['export', 'inspect'])
def test_files_of_others_are_not_replaced(
  command, finished_run, call_command, tmp_path
):
  (tmp_path / 'index.html').write_text('x')
  flags = [f'--workdir={finished_run}', f'--output={tmp_path}']
  code, _, stderr = call_command(command, *flags, cwd=tmp_path)
  assert code == 2
  said = f'holds files that are not of experiments.{command}'
  assert said in stderr.splitlines()[-1]
  assert (tmp_path / 'index.html').read_text() == 'x'
