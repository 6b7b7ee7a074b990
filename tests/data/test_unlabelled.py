"""Texts without labels, which tasks without labels are trained on."""

import pathlib

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.data.text_files import Text
from experiments.settings.settings import from_config
from experiments.training import evaluation, run

# By format: content of files, a name of train, one of texts without labels.
FILES = {
  'csv': ({'train': '', 'more': 'text\na b\nc\n'}, 'train', 'more'),
  'lines': ({'train': '', 'more': 'a b\n\nc\n'}, 'train', 'more'),
  'json': (
    {'train': '', 'more': '{"text": "a b"}\n{"text": "c"}\n'}, 'train', 'more'
  ),
  'class_files': ({'train': '', 'more': 'a b\nc\n'}, 'x=train', 'more'),
  'class_folders': (
    {'train/x/0': 'd', 'unsup/0': 'a b', 'unsup/1': 'c'}, 'train', 'unsup'
  ),
}  # fmt: skip


@pytest.mark.parametrize('format', FILES)
def test_each_format_has_texts_without_labels(format, tmp_path):
  files, train, unlabelled = FILES[format]
  for name, content in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
  source = Text(format=format, train=(train,), unlabelled=(unlabelled,))
  rows = source.read(str(tmp_path), 0)['unlabelled']
  assert [(row.text, row.label) for row in rows] == [('a b', ''), ('c', '')]


@pytest.fixture
def config(small_config, tmp_path):
  """Six train texts, and seven unlabelled ones, two of them held out."""
  folder = tmp_path / 'data'
  folder.mkdir()
  rows = [f'{word} film\t{n % 2}' for n, word in enumerate('abcdef')]
  (folder / 'train.tsv').write_text('text\tlabel\n' + '\n'.join(rows) + '\n')
  for split, word in (('dev', 'v'), ('test', 't')):
    lines = [f'a {word}\t0', f'b {word}\t1']
    (folder / f'{split}.tsv').write_text(
      'text\tlabel\n' + '\n'.join(lines) + '\n'
    )
  texts = ['a v', 'b t', 'a film', 'one two', 'two three four', 'new', 'g']
  (folder / 'more.tsv').write_text('text\n' + '\n'.join(texts) + '\n')
  data = small_config.data
  data.source, data.dir = 'text', str(folder)
  data.text.validation, data.text.test = ('dev.tsv',), ('test.tsv',)
  data.text.unlabelled = ('more.tsv',)
  return small_config


def load(config):
  settings = from_config(config)
  return loading.load(settings.data, '', labels=settings.task.entry.labels)


def test_train_is_followed_by_what_is_not_held_out(config, caplog):
  found = load(config)
  assert (
    'unlabelled texts dropped: 2 of 7, which are in validation or test'
    in caplog.text
  )
  assert len(found.with_unlabelled) == 6 + 5
  assert len(found.splits['train']) == 6
  assert found.splits.keys() == {'train', 'validation', 'test'}
  for name in ('lengths', 'labels', 'starts'):
    np.testing.assert_array_equal(
      getattr(found.with_unlabelled, name)[:6],
      getattr(found.splits['train'], name),
    )
  np.testing.assert_array_equal(
    found.with_unlabelled.lengths[6:], [2, 2, 3, 1, 1]
  )
  assert (found.with_unlabelled.labels[6:] == -1).all()
  assert max(found.bucket_lengths) == 3
  for word in ('three', 'new'):
    assert f'"{word}"' in found.files['tokenizer.json']
  # A word that is held out alone is unknown.
  assert '"v"' not in found.files['tokenizer.json']


def test_data_without_unlabelled_texts_is_what_it_was(config):
  config.data.text.unlabelled = ()
  found = load(config)
  assert found.with_unlabelled is found.splits['train']
  assert '"three"' not in found.files['tokenizer.json']


def test_other_unlabelled_texts_are_other_data(config):
  """Also of a stored run, whose vocabulary they are part of."""
  config.data.text.unlabelled = ()
  without = load(config).files['data.json']
  config.data.text.unlabelled = ('more.tsv',)
  assert load(config).files['data.json'] != without


def test_a_held_out_text_in_other_case_and_spacing_is_left_out(config):
  """A vocabulary may give it the same token ids."""
  folder = pathlib.Path(config.data.dir)
  (folder / 'test.tsv').write_text('text\tlabel\na Film, t\t0\nb\t1\n')
  texts = ['A film, T', ' a  Film , t ', 'a film t', 'film a t', 'B']
  (folder / 'more.tsv').write_text('text\n' + '\n'.join(texts) + '\n')
  found = load(config)
  assert len(found.with_unlabelled) == 6 + 2


def test_what_only_evaluates_needs_no_unlabelled_texts(config, tmp_path):
  path = str(tmp_path / 'run')
  config.train.steps, config.optimizer.warmup_steps = 2, 0
  config.train.batch_size, config.train.eval_every = 2, 2
  config.data.max_length = 8
  run.run(config, path, Signals())
  settings = from_config(config)
  unlabelled = pathlib.Path(config.data.dir) / 'more.tsv'
  text = unlabelled.read_text()
  unlabelled.unlink()
  with_all = evaluation.load_data(settings, path, None)
  assert with_all.splits.keys() == {'train', 'validation', 'test'}
  # What trains does, and they must be the same.
  with pytest.raises(UserError, match=r'text\.unlabelled = .more\.tsv'):
    loading.load(settings.data, path)
  unlabelled.write_text(text + 'one more\n')
  with pytest.raises(UserError, match=r"'unlabelled': 5} then, .*: 6} now"):
    loading.load(settings.data, path)
  unlabelled.write_text(text)
  assert len(loading.load(settings.data, path).with_unlabelled) == 11


def test_texts_of_a_test_fold_are_left_out(config):
  config.data.text.validation = config.data.text.test = ()
  config.data.num_folds, config.data.validation_fraction = 3, 0.3
  held_out = []
  for fold in range(3):
    config.data.fold = fold
    found = load(config)
    count = len(found.with_unlabelled) - len(found.splits['train'])
    held_out.append(7 - count)
  # `a film` is in the test fold once, and may be in validation otherwise.
  assert max(held_out) == 1
  assert sum(held_out) >= 1


def said(config, folder) -> str:
  """The log of a short run, of batches of two."""
  config.optimizer.warmup_steps = 0
  config.train.batch_size = 2
  config.data.max_length = 8
  run.run(config, str(folder / 'run'), Signals())
  return (folder / 'run/log-0.txt').read_text()


@pytest.mark.slow
def test_a_task_without_labels_is_trained_on_them(config, tmp_path):
  config.task, config.checkpoint.best_metric = 'masked_tokens', 'loss'
  config.train.steps, config.train.eval_every = 6, 2
  text = said(config, tmp_path)
  assert '6 train, 2 validation, 2 test, 5 unlabelled' in text
  assert 'masked_tokens: 6 steps are 1.0 epochs of 6\n' in text


@pytest.mark.slow
def test_a_run_takes_their_words_from_the_one_it_begins_with(config, tmp_path):
  config.task, config.checkpoint.best_metric = 'masked_tokens', 'loss'
  config.train.steps = config.train.eval_every = 2
  said(config, tmp_path / 'masked')
  config.task, config.checkpoint.best_metric = 'classify', 'accuracy'
  config.data.text.unlabelled = ()
  config.train.init_from = str(tmp_path / 'masked/run')
  text = said(config, tmp_path / 'then')
  assert '6 train, 2 validation, 2 test\n' in text.replace(';', '\n')
  one, other = (
    (tmp_path / name / 'run/tokenizer.json').read_text()
    for name in ('masked', 'then')
  )
  assert one == other
  assert '"three"' in one


def test_a_task_with_labels_says_what_they_are_for(config, tmp_path):
  config.train.steps = config.train.eval_every = 2
  text = said(config, tmp_path)
  assert '6 train, 2 validation, 2 test, 5 for the vocabulary' in text


def test_no_file_matches(tmp_path):
  source = Text(train=('train',), unlabelled=('*.tsv',))
  (tmp_path / 'train').write_text('text\tlabel\na\tx\n')
  with pytest.raises(UserError, match=r'text\.unlabelled = .\*\.tsv'):
    source.read(str(tmp_path), 0)


def test_a_task_without_labels_needs_none(config, tmp_path):
  config.task, config.checkpoint.best_metric = 'masked_tokens', 'loss'
  config.train.steps = config.train.eval_every = 2
  data = config.data
  (pathlib.Path(data.dir) / 'book').write_text(
    'one two\nthree four\nfive\n' * 9
  )
  data.text.format, data.text.label_column = 'lines', ''
  data.text.validation = data.text.test = data.text.unlabelled = ()
  data.text.train, data.validation_fraction = ('book',), 0.4
  data.test_fraction = 0.3
  assert 'masked_tokens: 2 steps' in said(config, tmp_path)
  lengths = load(config).splits['train'].lengths
  assert len(lengths) == 9
  config.task, config.checkpoint.best_metric = 'classify', 'accuracy'
  with pytest.raises(UserError, match=r"label_column = ''.*config\.task = cl"):
    from_config(config)
