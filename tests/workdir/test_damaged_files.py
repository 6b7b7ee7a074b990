"""Small files of a workdir that hold what no run has written."""

import json

import pytest

from experiments.command.errors import UserError
from experiments.workdir import buckets, metrics
from experiments.workdir import workdir as workdir_lib


@pytest.mark.parametrize(
  'status',
  [
    {'status': 'DONE'},
    {'step': 'x'},
    {'status': 'DONE', 'step': 1, 'attempt': 1},
  ],
)
def test_a_damaged_status_is_refused(status, tmp_path):
  (tmp_path / 'status.json').write_text(json.dumps(status))
  with pytest.raises(UserError, match=r'status\.json is damaged'):
    workdir_lib.read_status(str(tmp_path))


@pytest.mark.parametrize(
  'row', ['3', '{"a": 1}', '{"step": 1.5}', '{"step": 1, "a": "x"}']
)
def test_a_damaged_row_is_refused(row, tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(row + '\n')
  with pytest.raises(UserError, match='line 1 is damaged'):
    metrics.read_rows(str(tmp_path / 'metrics.jsonl'))


@pytest.mark.parametrize(
  'path',
  ['a\\b', 'a[b', 'a\udcffb', 'gs://a/b*', 'gs://a/b\\c', 'gs://a/b#c'],
)
def test_a_path_that_holds_no_checkpoint_is_refused(path):
  with (
    pytest.raises(UserError, match='in which no checkpoint can be read'),
    buckets.staged(path),
  ):
    pass
