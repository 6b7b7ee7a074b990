"""Data that was read before is the same, and is not read again."""

import itertools
import os
import shutil
import time
import tracemalloc

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import datasets, encoding, loading, readers
from experiments.data import rows as rows_lib
from experiments.data import store as store_lib
from experiments.data.contract import Dataset
from experiments.data.rows import Row
from experiments.data.vocabularies import Word
from experiments.settings.settings import from_config


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """A cache of its own for each test."""
  folder = tmp_path / 'cache'
  monkeypatch.setenv(store_lib.VARIABLE, str(folder))
  return folder


def content(rng, count):
  words = ['a', 'b\u00e9', 'c', ' ', 'film', '\U0001f600']
  lines = ['text\tlabel']
  for _ in range(count):
    text = ' '.join(rng.choice(words, rng.integers(0, 12)).tolist())
    lines.append(f'{text}\t{rng.choice(["x", "y", "z"])}')
  return '\n'.join(lines) + '\n'


@pytest.fixture
def config(small_config, tmp_path):
  rng = np.random.default_rng(0)
  (tmp_path / 'data').mkdir()
  for name, count in (('train', 317), ('test', 41)):
    (tmp_path / 'data' / f'{name}.tsv').write_text(content(rng, count))
  data = small_config.data
  data.source, data.dir = 'text', str(tmp_path / 'data')
  data.text.test = ('test.tsv',)
  data.max_length = 5
  return small_config


def load(config, workdir=''):
  return loading.load(from_config(config).data, workdir)


def assert_equal(one, other):
  assert one.files == other.files
  assert one.bucket_lengths == other.bucket_lengths
  assert one.label_facts == other.label_facts
  assert one.vocabulary == other.vocabulary
  assert one.splits.keys() == other.splits.keys()
  for name, split in one.splits.items():
    rows = np.arange(len(split))
    size, length = len(split), one.bucket_lengths[-1]
    batch = split.batch(rows, size, length)
    for a, b in zip(
      batch, other.splits[name].batch(rows, size, length), strict=True
    ):
      np.testing.assert_array_equal(a, b)


@pytest.fixture
def unread(monkeypatch):
  """From now on, nothing may be read, trained, or tokenised."""

  def stop():
    for where, name in (
      (readers, 'rows'),
      (Word, 'train'),
      (encoding, 'token_ids'),
      (rows_lib.Rows, 'stream'),
    ):
      monkeypatch.setattr(where, name, None)

  return stop


FORMS = {
  'split': {},
  'folds': {'num_folds': 3, 'fold': 1},
  'sentences': {'split_by': 'sentence', 'test_fraction': 0.2},
}


@pytest.mark.parametrize('form', FORMS)
def test_a_second_start_reads_nothing_and_a_full_disk_changes_nothing(
  form, config, unread, monkeypatch, tmp_path, capsys
):
  config.data.update(FORMS[form])
  one = load(config)
  first = capsys.readouterr().err
  (tmp_path / 'file').touch()
  with monkeypatch.context() as patch:
    patch.setenv(store_lib.VARIABLE, str(tmp_path / 'file' / 'cache'))
    assert_equal(load(config), one)
  warning, *rest = capsys.readouterr().err.splitlines()
  assert 'cannot be written' in warning
  assert rest == first.splitlines()
  unread()
  assert_equal(load(config), one)
  assert capsys.readouterr().err == first


def test_blocks_of_any_size_give_the_same_data(config, monkeypatch, cache):
  one = load(config)
  monkeypatch.setattr(rows_lib, '_CHUNK', 3)
  monkeypatch.setenv(store_lib.VARIABLE, str(cache) + '2')
  assert_equal(load(config), one)


VOCABULARY = """
import dataclasses
from experiments.data.vocabularies import Word

SIZE = 5

@dataclasses.dataclass(frozen=True)
class Mine(Word):
  def train(self, texts):
    return Word(size=SIZE).train(texts)
"""


def test_a_vocabulary_of_ones_own_is_trained_as_it_is_now(
  config, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  config.data.vocabulary = 'words_of_tests:Mine'
  for size in (5, 4):
    text = VOCABULARY.replace('SIZE = 5', f'SIZE = {size}')
    (tmp_path / 'words_of_tests.py').write_text(text)
    assert load(config).vocabulary.size == size


def test_runs_of_other_splits_share_the_rows_and_of_other_lengths_all(
  config, cache
):
  def count(kind):
    return len(list(cache.glob(f'{kind}-*/')))

  load(config)
  config.data.seed = 1
  load(config)
  assert count('rows') == 1
  assert count('splits') == count('tokens') == count('vocabulary') == 2
  config.data.max_length, config.data.num_buckets = 9, 2
  load(config)
  assert count('splits') == count('tokens') == 2


def test_the_vocabulary_of_a_workdir_has_its_own_tokens(config, tmp_path):
  one = load(config)
  for name, text in one.files.items():
    (tmp_path / name).write_text(text)
  config.data.vocabulary = 'word(size=5)'
  other = load(config)
  assert other.vocabulary.size < one.vocabulary.size
  assert other.splits['train'].tokens.max() < other.vocabulary.size
  assert_equal(load(config, str(tmp_path)), one)


def test_data_that_moved_is_not_read_again_and_messages_name_its_new_place(
  config, tmp_path, monkeypatch, capsys
):
  one = load(config)
  before = capsys.readouterr().err
  (tmp_path / 'data').rename(tmp_path / 'moved')
  config.data.dir = str(tmp_path / 'moved')
  monkeypatch.setattr(readers, 'rows', None)
  assert_equal(load(config), one)
  said = capsys.readouterr().err
  assert f'{tmp_path}/data/' in before
  assert said == before.replace(f'{tmp_path}/data/', f'{tmp_path}/moved/')


def test_a_file_that_changes_while_it_is_read_is_refused(
  config, tmp_path, monkeypatch, cache
):
  chunks = rows_lib.chunks

  def slowly(*arguments):
    yield from chunks(*arguments)
    (tmp_path / 'data' / 'test.tsv').write_text('text\tlabel\nnew\tx\n')

  with monkeypatch.context() as patch:
    patch.setattr(rows_lib, 'chunks', slowly)
    with pytest.raises(UserError, match='changed while it was read'):
      load(config)
  assert not any(path.is_dir() for path in cache.iterdir())
  assert len(load(config).splits['test']) == 1


def test_a_hub_data_set_that_changed_is_read(config, tmp_path, monkeypatch):
  import datasets as library

  monkeypatch.setattr(library.config, 'IN_MEMORY_MAX_SIZE', 2**30)
  monkeypatch.setattr(
    library.config, 'HF_DATASETS_CACHE', str(tmp_path / 'hub')
  )
  path = tmp_path / 'data' / 'train.csv'
  for name in ('train', 'test'):
    (tmp_path / 'data' / f'{name}.tsv').unlink()
  data = config.data
  data.text.format, data.dir = f'hub(name={str(data.dir)!r})', ''
  data.text.train, data.text.test = ('train',), ()
  data.test_fraction = 0.2
  lines = [f'text {n},{"xy"[n % 2]}' for n in range(40)]
  path.write_text('\n'.join(['text,label', *lines]) + '\n')
  one = load(config)
  assert_equal(load(config), one)
  path.write_text('\n'.join(['text,label', *lines[:30]]) + '\n')
  now = time.time()
  os.utime(path, (now + 5, now + 5))
  assert sum(map(len, load(config).splits.values())) == 30


def test_generated_data_and_data_without_a_key_use_no_disk(
  small_config, cache, monkeypatch
):
  load(small_config)

  class WithoutKey(Dataset):
    def read(self, directory, seed):
      del directory, seed
      rows = [Row(f'text {n}', 'xy'[n % 2], 'own', n + 1) for n in range(40)]
      return {'train': rows}

  small_config.data.test_fraction = 0.2
  monkeypatch.setitem(datasets.DATASETS, 'word_order', WithoutKey)
  small_config.data.source = 'word_order'
  settings = from_config(small_config)
  assert len(loading.load(settings.data, '').splits['train']) > 20
  assert not cache.exists()


def test_memory_is_bounded_while_rows_are_written_and_streamed(cache):
  count, size = 20_000, 1_000

  def rows():
    for number in range(count):
      text = f'{number} ' + 'x' * size
      yield Row(text, 'xy'[number % 2], 'file', number + 1)

  store = store_lib.Store(str(cache))
  tracemalloc.start()
  try:
    arrays = store.arrays(
      'rows', 0, lambda: rows_lib.chunks({'train': rows()}, '')
    )
    stored = rows_lib.of(arrays, '')
    streamed = sum(len(texts) for texts in stored.stream())
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert streamed == count
  assert len(stored.texts) > count * size
  assert peak < count * size / 2
  assert stored.row(count - 1).number == count


@pytest.fixture
def mapped(cache):
  """Rows of 9 MB on disk."""
  rows = [
    Row(f'{n} ' + 'x' * 3_000, 'xy'[n % 2], 'f', n + 1) for n in range(3_000)
  ]
  arrays = store_lib.Store(str(cache)).arrays(
    'rows', 0, lambda: rows_lib.chunks({'train': rows}, '')
  )
  return rows_lib.of(arrays, '')


def test_clearing_the_cache_leaves_open_rows(mapped, cache):
  stream = mapped.stream()
  stored = [*next(stream)]
  shutil.rmtree(cache)
  for texts in stream:
    stored += texts
  assert [int(text.split()[0]) for text in stored] == list(range(3_000))


def resident(path):
  """Bytes of a mapped file that are in the memory of this process."""
  with open('/proc/self/smaps') as file:
    lines = iter(file.read().splitlines())
  for line in lines:
    if line.endswith(path):
      (size,) = (
        line.split()[1]
        for line in itertools.takewhile(
          lambda line: 'VmFlags' not in line, lines
        )
        if line.startswith('Rss:')
      )
      return int(size) * 1024
  pytest.fail(f'{path} is not mapped')


@pytest.mark.skipif(
  not os.path.exists('/proc/self/smaps'), reason='needs the maps of Linux'
)
def test_pages_of_texts_that_were_streamed_do_not_stay_in_memory(mapped):
  for _ in mapped.stream():
    assert resident('/texts') <= 1.1 * rows_lib._CHUNK * 3_000
