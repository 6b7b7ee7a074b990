"""What a run says to do next."""

import re
import shlex

import pytest
from conftest import make_small_config

from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.training import next_commands


@pytest.fixture
def said(monkeypatch, capsys, finished_run):
  """The words of each line about a run with these settings."""

  def run(**changed):
    config = make_small_config()
    config.update_from_flattened_dict(changed)
    monkeypatch.setattr(stored, 'read_settings', lambda _: from_config(config))
    next_commands.say(str(finished_run))
    first, *lines = capsys.readouterr().err.splitlines()
    step = re.search(r'/checkpoints/(\d+);', first)[1]
    assert (finished_run / 'checkpoints' / step).is_dir()
    return [line.split('experiments.')[1] for line in lines]

  return run


def test_a_run_on_texts_is_evaluated_predicted_inspected_and_exported(
  said, finished_run
):
  workdir = f'--workdir={finished_run}'
  lines = [shlex.split(line) for line in said()]
  assert lines == [
    ['evaluate', workdir],
    ['predict', workdir, '--text=a text'],
    ['inspect', workdir],
    ['export', workdir, f'--output={finished_run}/export'],
  ]


PAIRS = {
  'data.source': 'text',
  'data.dir': '.',
  'data.text.join': 'pair',
  'data.text.text_columns': ('first', 'second'),
}


@pytest.mark.parametrize(
  ('changed', 'flags'),
  [
    ({'task': 'masked_tokens'}, []),
    (
      {'task': 'next_token', 'model.encoder': 'attention(causal=True)'},
      ["--prompt='One day'"],
    ),
    (PAIRS, [r"--text=$'a text\tanother'"]),
  ],
)
def test_predict_gets_what_the_task_reads(said, changed, flags):
  predicted = [line for line in said(**changed) if line.startswith('predict')]
  assert [line.split(maxsplit=2)[2] for line in predicted] == flags


def test_commands_on_a_bucket_write_here(said, monkeypatch):
  monkeypatch.setattr(next_commands.buckets, 'origin', lambda _: 'gs://a/b')
  assert said()[-2:] == [
    'inspect --workdir=gs://a/b --output=inspect',
    'export --workdir=gs://a/b --output=export',
  ]
