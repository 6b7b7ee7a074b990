"""experiments.export, from a workdir to files that predict."""

import runpy

import numpy as np
import pytest
from conftest import last_json

from experiments import predict
from experiments.command import app
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


def test_files_of_others_are_not_replaced(tmp_path):
  app.make_own_folder(str(tmp_path / 'given'))
  # Those of an earlier export are.
  app.make_own_folder(str(tmp_path / 'given'))
  (tmp_path / 'config.json').write_text('x')
  with pytest.raises(UserError, match='holds files that are not of'):
    app.make_own_folder(str(tmp_path))
