"""Fuzzing of flags and files: a run trains, or fails with one error line."""

import os
import sys

import numpy as np
import pytest
from conftest import ROOT, make_small_config

from experiments import train
from experiments.command import app
from experiments.command.values import flat_keys
from experiments.training import run as run_lib

pytestmark = pytest.mark.usefixtures('shared_programs')
CONFIG = f"""
import sys
sys.path.insert(0, {str(ROOT / 'tests')!r})
from conftest import make_small_config

def get_config():
  config = make_small_config()
  config.train.steps = 1
  config.optimizer.warmup_steps = 0
  config.data.source = 'algorithmic(train=60, validation=10, test=10)'
  return config
"""
VALUES = {
  bool: ('maybe', '2', '', 'True'),
  int: ('-1', '0', '7', '1e3', '99999999999999999999', '', 'x', '3.5', 'None'),
  float: ('nan', 'inf', '-1', '0', '2.5', '', 'x', '1e400', 'None'),
  str: ('', 'x', 'sinusoidal+', '+', 'a b', '../..', 'x' * 5000, '\u00e9\0'),
  tuple: ('()', "('x',)", '(1, 2, 3)', '(', "('kernel', 3)", '-5', 'None'),
}
GOOD = 'text\tlabel\n' + ''.join(
  f'good film {n}\t1\nbad film {n}\t0\n' for n in range(9)
)


class Trains(Exception):
  """Validation is over, and the first step would be next."""


@pytest.fixture
def attempt(monkeypatch, capfd, tmp_path):
  """Calls experiments.train up to step 1: (code or 'trains', stderr)."""
  config = tmp_path / 'config.py'
  config.write_text(CONFIG)

  def stop(*_):
    raise Trains

  monkeypatch.setattr(run_lib, 'run_group', stop)
  monkeypatch.setattr(app.traceback, 'print_exc', lambda: None)

  def run(*arguments):
    monkeypatch.setattr(
      sys, 'argv', ['train', f'--config={config}', *arguments]
    )
    outcomes = []

    def main(values):
      try:
        train.main(values)
      except Trains:
        outcomes.append('trains')

    try:
      app.run(main, train._define, 'doc', dict)
    except SystemExit as error:
      outcomes.append(error.code)
    out, err = capfd.readouterr()
    assert out == ''
    return outcomes[0], err

  return run


def assert_answered(attempt, arguments):
  outcome, said = attempt(*arguments)
  assert outcome in ('trains', 2), (arguments, outcome, said)
  if outcome == 2:
    # What is said of the data may stand before the one line of the error.
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith('error: ')]
    assert errors == lines[-1:], (arguments, said)
    assert 'Traceback' not in said
  return outcome


@pytest.mark.slow
def test_any_value_of_any_key(attempt):
  """A few values for every key, valid and invalid: over 120 in all."""
  rng = np.random.default_rng(3)
  outcomes = []
  keys = flat_keys(make_small_config())
  for key, value in keys.items():
    if type(value) not in VALUES:  # a section
      continue
    for text in rng.choice(VALUES[type(value)], 2, replace=False):
      outcomes.append(assert_answered(attempt, [f'--config.{key}={text}']))
  assert len(outcomes) > 120
  assert {'trains', 2} == set(outcomes)


def mutated(rng, text: bytes) -> bytes:
  """The bytes with some of them deleted, flipped, repeated or inserted."""
  data = bytearray(text)
  place = int(rng.integers(len(data)))
  kind = rng.integers(6)
  if kind == 0:
    del data[place:]
  elif kind == 1:
    data[place] = int(rng.integers(256))
  elif kind == 2:
    data[place:place] = bytes(rng.integers(0, 256, 9, dtype=np.uint8))
  elif kind == 3:
    data[place:place] = rng.choice(
      [b'\t', b'\n', b'"', b'\r\n', b'\0', b'\xff']
    )
  elif kind == 4:
    del data[place : place + 12]
  else:
    data = data[place:] + data[:place]
  return bytes(data)


def test_any_damage_to_a_file_of_data(attempt, tmp_path):
  rng = np.random.default_rng(3)
  outcomes = []
  for number in range(20):
    folder = tmp_path / f'data{number}'
    folder.mkdir()
    (folder / 'train.tsv').write_bytes(mutated(rng, GOOD.encode()))
    (folder / 'test.tsv').write_text(GOOD)
    flags = (
      '--config.data.source=text',
      f'--config.data.dir={folder}',
      "--config.data.text.test=('test.tsv',)",
      f'--workdir={tmp_path / "run"}',
    )
    outcomes.append(assert_answered(attempt, flags))
  assert {'trains', 2} == set(outcomes)
  assert not any(map(os.path.isfile, (tmp_path / 'run').rglob('*')))


@pytest.mark.parametrize(
  'flag',
  [
    '--', '-', '--=', '--config', '--config=', '--config.', '--config.=1',
    '--config.seed', '--noconfig.seed', '--workdir', '--work dir=x',
    '--flagfile=/nowhere', '--process_id=x', '--num_processes=0',
    '--coordinator_address=a:1', '--distributed=maybe', '--init_from=a',
    '--peer_timeout=0', 'train', '--config=/dev/null', '--config=/',
  ],
)  # fmt: skip
def test_any_flag(attempt, flag, tmp_path):
  assert_answered(attempt, (f'--workdir={tmp_path / "run"}', flag))
