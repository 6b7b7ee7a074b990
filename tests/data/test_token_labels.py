"""Labels of tokens: how they are read, and what is refused."""

import json

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import loading
from experiments.data.batches import Examples
from experiments.data.token_labels import TokenLabels
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.settings.settings import from_config

ROWS = ['text\tlabel', 'the cat saw it\t_ B _ A', 'a-b c\tA _', 'no\t_']


def settings_of(config, folder, lines, vocabulary):
  (folder / 'rows.tsv').write_text('\n'.join(lines))
  config.task = 'classify_tokens'
  config.data.source, config.data.dir = 'text', str(folder)
  config.data.vocabulary = vocabulary
  for split in ('train', 'validation', 'test'):
    setattr(config.data.text, split, ('rows.tsv',))
  return from_config(config).data


def test_labels_are_pairs_of_a_token_and_a_class(small_config, tmp_path):
  words = 'word(split_punctuation=False)'
  settings = settings_of(small_config, tmp_path, ROWS, words)
  loaded = loading.load(settings, '', labels=TokenLabels())
  assert loaded.label_facts.names == ('A', 'B')
  empty = [-1, -1]
  np.testing.assert_array_equal(
    loaded.splits['test'].labels,
    [[[1, 1], [3, 0]], [[0, 0], empty], [empty, empty]],
  )


def test_a_text_of_more_tokens_than_labels_is_one_line(small_config, tmp_path):
  settings = settings_of(small_config, tmp_path, ROWS, 'word')
  said = r'rows.tsv row 2: 2 labels of tokens must be 4, .*split_punctuation'
  with pytest.raises(UserError, match=said):
    loading.load(settings, '', labels=TokenLabels())


def test_a_class_that_train_lacks_is_one_line(small_config, tmp_path):
  settings = settings_of(small_config, tmp_path, ROWS, 'byte')
  (tmp_path / 'more.tsv').write_text('text\tlabel\nno\tC\n')
  text = small_config.data.text
  text.test = ('more.tsv',)
  settings = from_config(small_config).data
  with pytest.raises(UserError, match="label 'C' is not '_' or one of"):
    loading.load(settings, '', labels=TokenLabels())


def test_a_list_is_no_label_of_tokens(small_config, tmp_path):
  settings_of(small_config, tmp_path, [], 'byte')
  rows = [{'text': 'Ada Rome', 'label': ['PER', 'LOC']}] * 3
  (tmp_path / 'rows.tsv').write_text('\n'.join(map(json.dumps, rows)))
  small_config.data.text.format = 'json'
  settings = from_config(small_config).data
  with pytest.raises(UserError, match=r'one string, .* not the list \["LOC"'):
    loading.load(settings, '', labels=TokenLabels())
  small_config.data.text.label_separator = ' '
  with pytest.raises(UserError, match=r'label_separator = .* must be empty'):
    from_config(small_config)


def test_accuracy_by_length_is_of_texts_with_labels():
  task, counts = ClassifyTokens(), np.array([2.0, 0.0, 1.0])
  labels = np.zeros((3, 2, 2), int)
  examples = Examples(
    np.zeros(9, int), np.arange(3), np.array([5, 7, 5]), labels
  )
  outputs = counts, np.array([2.0, 0.0, 0.0]), counts
  report = task.report(outputs, outputs, examples)
  assert report.values['mean_over_lengths'] == 0.5
  assert [r['count'] for r in report.values['by_length']] == [2]
  outputs = (np.zeros(3),) * 3
  assert not task.report(outputs, outputs, examples).values


@pytest.mark.parametrize(
  ('task', 'source', 'said'),
  [
    ('classify', 'mqar', 'labels of tokens .*such as classify_tokens'),
    ('multilabel', 'algorithmic(task=bucket_sort)', 'labels of tokens'),
    ('classify_tokens', 'word_order', 'labels of texts .*such as classify'),
    ('classify_tokens', 'algorithmic', 'labels of texts'),
  ],
)
def test_a_task_that_reads_other_labels_is_refused(
  task, source, said, small_config
):
  small_config.task, small_config.data.source = task, source
  if task == 'multilabel':
    small_config.checkpoint.best_metric = 'macro_f1'
  with pytest.raises(UserError, match=f'config.task = .*{said}'):
    from_config(small_config)
