"""What GitHub runs, with which permissions, and what its issues ask for."""

import pytest
import yaml
from conftest import ROOT

WORKFLOWS = sorted((ROOT / '.github/workflows').glob('*.yml'))


@pytest.mark.parametrize('path', WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_read_the_code_and_the_last_job_of_publish_alone_writes(path):
  workflow = yaml.safe_load(path.read_text())
  assert workflow['permissions'] in ({}, {'contents': 'read'})
  given = {
    name: job['permissions']
    for name, job in workflow['jobs'].items()
    if 'permissions' in job
  }
  of_publish = given.pop('publish', None)
  assert all(of_job == {'contents': 'read'} for of_job in given.values())
  if path.stem == 'publish':
    assert of_publish == {'id-token': 'write'}
    assert workflow['jobs']['publish']['needs'] == ['tests', 'build']
  else:
    assert of_publish is None


def test_a_bug_needs_the_output_of_the_doctor():
  form = yaml.safe_load((ROOT / '.github/ISSUE_TEMPLATE/bug.yml').read_text())
  (doctor,) = (
    part
    for part in form['body']
    if part['attributes']['label'].endswith('experiments.doctor')
  )
  assert doctor['validations'] == {'required': True}
