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
  """Six train texts, and eight unlabelled ones, three of them held out."""
  folder = tmp_path / 'data'
  folder.mkdir()
  rows = [f'{word} film\t{n % 2}' for n, word in enumerate('abcdef')]
  (folder / 'train.tsv').write_text('text\tlabel\n' + '\n'.join(rows) + '\n')
  for split, word in (('dev', 'v'), ('test', 't')):
    lines = [f'a {word}\t0', f'b {word}\t1']
    (folder / f'{split}.tsv').write_text(
      'text\tlabel\n' + '\n'.join(lines) + '\n'
    )
  texts = ['a v', 'b t', ' A  V', 'a film', 'one two', 'two three four']
  texts += ['new', 'g']
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
  loaded = load(config)
  assert (
    'unlabelled texts dropped: 3 of 8, which are in validation or test'
    in caplog.text
  )
  train, all_of_them = loaded.splits['train'], loaded.with_unlabelled
  assert loaded.splits.keys() == {'train', 'validation', 'test'}
  assert (len(train), len(all_of_them)) == (6, 6 + 5)
  for name in ('lengths', 'labels', 'starts'):
    of_train = getattr(all_of_them, name)[:6]
    np.testing.assert_array_equal(of_train, getattr(train, name))
  np.testing.assert_array_equal(all_of_them.lengths[6:], [2, 2, 3, 1, 1])
  assert (all_of_them.labels[6:] == -1).all()
  assert max(loaded.bucket_lengths) == 3
  for word in ('three', 'new'):
    assert f'"{word}"' in loaded.files['tokenizer.json']
  # A word that is held out alone is unknown.
  assert '"v"' not in loaded.files['tokenizer.json']
  config.data.text.unlabelled = ()
  without = load(config)
  assert without.with_unlabelled is without.splits['train']
  assert '"three"' not in without.files['tokenizer.json']


def test_what_only_evaluates_needs_no_unlabelled_texts(config, tmp_path):
  path, settings = str(tmp_path / 'run'), from_config(config)
  files = loading.load(settings.data, '').files
  (tmp_path / 'run').mkdir()
  for name, text in files.items():
    (tmp_path / 'run' / name).write_text(text)
  unlabelled = pathlib.Path(config.data.dir) / 'more.tsv'
  text = unlabelled.read_text()
  unlabelled.unlink()
  splits = evaluation.load_data(settings, path, None).splits
  assert splits.keys() == {'train', 'validation', 'test'}
  # What trains does, and they must be the same.
  with pytest.raises(UserError, match=r'text\.unlabelled = .more\.tsv'):
    loading.load(settings.data, path)
  unlabelled.write_text(text + 'one more\n')
  with pytest.raises(UserError, match=r"'unlabelled': 5} then, .*: 6} now"):
    loading.load(settings.data, path)


@pytest.mark.slow
def test_a_task_without_labels_is_trained_on_them(config, tmp_path):
  config.task, config.checkpoint.best_metric = 'masked_tokens', 'loss'
  config.train.steps = config.train.eval_every = 3
  config.train.batch_size, config.optimizer.warmup_steps = 2, 0
  config.data.max_length = 8
  run.run(config, str(tmp_path / 'run'), Signals())
  log = (tmp_path / 'run/log-0.txt').read_text()
  assert '6 train, 2 validation, 2 test, 5 unlabelled' in log
  assert 'masked_tokens: 3 steps are 0.5 epochs of 6\n' in log


def test_a_task_without_labels_needs_none(config, tmp_path):
  config.task, config.checkpoint.best_metric = 'masked_tokens', 'loss'
  data = config.data
  lines = 'one two\nthree four\nfive\n' * 9
  (pathlib.Path(data.dir) / 'book').write_text(lines)
  data.text.format, data.text.label_column = 'lines', ''
  data.text.validation = data.text.test = data.text.unlabelled = ()
  data.text.train, data.validation_fraction = ('book',), 0.4
  data.test_fraction = 0.3
  assert len(load(config).splits['train']) == 9
  config.task, config.checkpoint.best_metric = 'classify', 'accuracy'
  with pytest.raises(UserError, match=r"label_column = ''.*config\.task = cl"):
    from_config(config)
