"""Scores by hand and by loops, and the same numbers at every batch size."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from experiments.data import loading
from experiments.learning import reports, scores
from experiments.settings.settings import from_config
from experiments.training import compiled, evaluation


def test_of_many_classes_those_with_the_least_f1_are_shown():
  # Class 7 is always called 5; class 3 has no text and no prediction.
  labels = np.delete(np.arange(60), 3)
  logits = np.eye(60)[np.where(labels == 7, 5, labels)]
  names = [str(index) for index in range(60)]
  report = reports.of_classes(names, labels, logits, np.ones_like(labels))
  shown = report.values['labels']
  assert (len(shown), shown[:2]) == (50, ['7', '5'])
  assert '3' not in shown
  assert report.confusion is None


def fresh(settings, loaded):
  """A program, and parameters nobody has trained."""
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  return program, program.init(program.hparams([settings])).params


def test_evaluation_is_the_same_at_every_batch_size(small_config, tmp_path):
  settings = from_config(small_config)
  loaded = loading.load(settings.data, str(tmp_path))
  program, params = fresh(settings, loaded)
  split = loaded.splits['test']
  results = {
    size: program.task.scores(
      evaluation.evaluate(program, params, split, size, loaded.bucket_lengths),
      split.labels,
    )
    for size in (7, 64)
  }
  assert results[7] == pytest.approx(results[64], rel=1e-6)


def test_accuracy_by_length_by_hand():
  lengths = np.array([3, 3, 4, 9, 10, 10])
  hits = np.array([True, False, True, True, False, False])
  assert [(*row.values(),) for row in scores.by_length(2 * lengths, hits)] == [
    (6, 6, 2, 0.5), (7, 8, 1, 1.0), (17, 18, 1, 1.0), (19, 20, 2, 0.0),
  ]  # fmt: skip
  mean = scores.mean_over_lengths(lengths, hits)
  assert mean == pytest.approx((0.5 + 1 + 1 + 0) / 4)
  alone = scores.by_length(np.array([5, 5]), np.array([True, True]))
  assert alone == [{'shortest': 5, 'longest': 5, 'count': 2, 'accuracy': 1.0}]


@pytest.mark.parametrize(
  ('source', 'changes'),
  [
    ('word_order(train_pairs=37, validation_pairs=11, test_pairs=200)',
     {'model.encoder': 'bow'}),
    ('word_order(train_pairs=37, validation_pairs=11, test_pairs=200)',
     {'model.position': 'none'}),
    ('algorithmic(task=a_before_b, train=100, validation=20, test=200)',
     {'model.position': 'alibi(variant=symmetric)', 'data.max_length': 200}),
  ],
)  # fmt: skip
def test_what_cannot_see_order_answers_both_texts_of_a_pair_alike(
  source, changes, small_config, tmp_path
):
  """Whatever its parameters are, so training cannot help either."""
  small_config.data.source = source
  small_config.update_from_flattened_dict(changes)
  settings = from_config(small_config)
  loaded = loading.load(settings.data, str(tmp_path))
  program, params = fresh(settings, loaded)
  test = loaded.splits['test']
  _, logits = evaluation.evaluate(
    program, params, test, 64, loaded.bucket_lengths
  )
  np.testing.assert_allclose(logits[0::2], logits[1::2], rtol=1e-5, atol=1e-5)
  assert (test.labels[0::2] != test.labels[1::2]).all()


KEYS = '--config.data.text.'


@pytest.mark.parametrize(
  ('flags', 'line'),
  [
    (['--file=a', '--split=test'], '--split and --file exclude'),
    (['--file=a', '--data_dir=b'], '--data_dir and --file exclude'),
    ([f'{KEYS}format=csv'], 'format and --file need'),
    (['--file=a'], '--file=a needs a run on texts'),
    (['--data_dir=b'], '--data_dir=b is for data in a folder'),
  ],
)
def test_flags_that_do_not_go_together_are_one_line(
  flags, line, finished_run, call_command, tmp_path
):
  run = f'--workdir={finished_run}'
  code, stdout, stderr = call_command('evaluate', run, *flags, cwd=tmp_path)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1), stderr
  assert line in stderr


@pytest.mark.slow
def test_a_checkpoint_that_is_cut_is_one_line_with_another_one(
  finished_run, run_command, tmp_path
):
  """In a process of its own: threads of the library outlive the error."""
  shutil.copytree(finished_run, tmp_path / 'run')
  run = f'--workdir={tmp_path}/run'
  status = json.loads((tmp_path / 'run/status.json').read_text())
  step = status['result']['step']
  for path in (tmp_path / f'run/checkpoints/{step}').rglob('d/*'):
    os.truncate(path, path.stat().st_size // 2)
  done = run_command('evaluate', run)
  assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1)
  assert re.search(r'checkpoint \d+ is another one', done.stderr)
