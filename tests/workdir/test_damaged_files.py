"""Small files of a workdir that hold what no run has written."""

import json
import math

import pytest

from experiments.command.errors import UserError
from experiments.data import selection
from experiments.settings import open_models, stored
from experiments.sweeps import folder
from experiments.training.evaluation import _fit
from experiments.workdir import buckets, metrics
from experiments.workdir import workdir as workdir_lib

ATTEMPT = {
  'attempt': 1, 'time': '2026-01-02T03:04:05+00:00', 'command': ['a', 'b'],
  'python': '3.12.1', 'packages': {'jax': '0.7.2'}, 'devices': ['cpu'],
  'machine': 'a, 2 cores', 'commit': None,
}  # fmt: skip
FACTS = {
  'labels': ['a'], 'counts': {'train': 1}, 'fingerprint': 'f',
  'of_train': {'rows': 1, 'counts': [1], 'mean': 0.0, 'std': 1.0},
}  # fmt: skip


@pytest.mark.parametrize(
  'status',
  [
    {'status': 'DONE'},
    {'step': 'x'},
    {'status': 'DONE', 'step': 1, 'attempt': 1},
    {'status': 'DONE', 'step': 1, 'attempt': 1, 'result': {}},
  ],
)
def test_a_damaged_status_is_refused(status, tmp_path):
  (tmp_path / 'status.json').write_text(json.dumps(status))
  with pytest.raises(UserError, match=r'status\.json is damaged'):
    workdir_lib.read_status(str(tmp_path))


@pytest.mark.parametrize(
  'attempts',
  [
    [1],
    [{}],
    [ATTEMPT | {'devices': None}],
    [ATTEMPT | {'devices': 'cpu'}],
    [ATTEMPT | {'devices': [0]}],
    [ATTEMPT | {'packages': ['jax']}],
  ],
)
def test_a_damaged_attempt_is_refused(attempts, tmp_path):
  path = str(tmp_path)
  file = tmp_path / 'env.json'
  file.write_text(json.dumps([ATTEMPT]))
  assert workdir_lib.read_attempts(path) == [ATTEMPT]
  file.write_text(json.dumps(attempts))
  with pytest.raises(UserError, match=rf'^{file} is damaged: .*restore it'):
    workdir_lib.read_attempts(path)


@pytest.mark.parametrize(
  ('name', 'content', 'read'),
  [
    ('sweep.json', {'config': 1, 'trials': {}}, folder.read),
    ('sweep.json', {'config': {}, 'trials': {'a': 1}}, folder.read),
    ('modules.json', {'a:B': ['a.py']}, stored.search_modules),
    ('modules.json', {'a:B': 1}, stored.search_modules),
    ('published.json', {'config': 1}, open_models.stored),
    ('data.json', {'labels': ['a']}, selection.read_facts),
    ('data.json', FACTS | {'of_train': {}}, selection.read_facts),
    ('data.json', FACTS | {'labels': [1]}, selection.read_facts),
    *(
      ('calibration.json', {'step': 1} | fit, lambda path: _fit(path, 1, 2))
      for fit in (
        {'temperature': 'x'},
        {'temperature': 0},
        {'temperature': math.nan},
        {'thresholds': [0.5]},
      )
    ),
  ],
)
def test_damaged_content_is_refused(name, content, read, tmp_path):
  file = tmp_path / name
  file.write_text(json.dumps(content))
  with pytest.raises(UserError, match=rf'^{file} is damaged: .*restore it'):
    read(str(tmp_path))


@pytest.mark.parametrize(
  'row', ['3', '{"a": 1}', '{"step": 1.5}', '{"step": 1, "a": "x"}']
)
def test_a_damaged_row_is_refused(row, tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(row + '\n')
  with pytest.raises(UserError, match='line 1 is damaged'):
    metrics.read_rows(str(tmp_path / 'metrics.jsonl'))


@pytest.mark.parametrize(
  'path',
  [
    *('a\\b', 'a[b', 'a\udcffb', 'gs:/a/b', 'logs:', '/s3/a'),
    *('gs://a/b*', 'gs://a/b\\c', 'gs://a/b#c'),
  ],
)
def test_a_path_that_holds_no_checkpoint_is_refused(path):
  with (
    pytest.raises(UserError, match='in which no checkpoint can be read'),
    buckets.staged(path),
  ):
    pass
