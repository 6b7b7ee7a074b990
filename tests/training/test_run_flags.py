"""The runs that --workdir names, and predict.load."""

import pytest

from experiments import predict
from experiments.command.errors import UserError
from experiments.training import run_flags
from experiments.workdir import buckets


def opened(workdir):
  with run_flags.opened(workdir) as paths:
    return [buckets.origin(path) for path in paths]


@pytest.fixture
def runs(tmp_path, monkeypatch):
  """A home with the folders x/1, x/2 and x/*."""
  monkeypatch.setenv('HOME', str(tmp_path))
  for name in '12*':
    (tmp_path / 'x' / name).mkdir(parents=True)
  return tmp_path / 'x'


@pytest.mark.parametrize(
  ('workdir', 'names'),
  [
    ('~/x/1', '1'),
    (['~/x/2', '~/x/1'], '21'),
    ('~/x/[12]', '12'),
    ('~/x/2,~/x/?', '2*1'),
    ('~/x/*', '*'),
    ('~/x/1,~/x/2,~/x/1', '12'),
  ],
)
def test_a_workdir_is_in_the_home_and_may_be_a_pattern(workdir, names, runs):
  assert opened(workdir) == [str(runs / name) for name in names]


def test_no_workdir_is_refused():
  with pytest.raises(UserError, match='no workdir is given'):
    predict.load([])
  with pytest.raises(UserError, match=r'^workdir is empty'):
    predict.load('')


def test_a_pattern_that_the_shell_has_replaced_is_one_line(
  call_command, tmp_path
):
  flags = ['--workdir', 'x/1', 'x/2']
  code, _, stderr = call_command('predict', *flags, cwd=tmp_path)
  assert (code, stderr.count('\n')) == (2, 1)
  assert "'x/2'" in stderr
  assert 'quotes' in stderr
