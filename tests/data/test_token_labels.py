"""Labels of tokens: how they are read, and what is refused."""

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import loading
from experiments.data.token_labels import TokenLabels
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
