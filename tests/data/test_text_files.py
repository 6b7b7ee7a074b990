"""Which files, folders and parts of the hub are read, and in what order."""

import pytest

from experiments.command.errors import UserError
from experiments.data import readers, selection
from experiments.data import rows as rows_lib
from experiments.data.text_files import Text


def read(folder, **options):
  data = Text(**options)
  data.check(str(folder))
  rows = data.read(str(folder), 0)
  return {split: list(part) for split, part in rows.items()}


def pairs(rows):
  return [(row.text, row.label) for row in rows]


def write(folder, files):
  """Writes files, content by name."""
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode('latin-1'))


# --- the hub -----------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
  """An empty hub, and a list of the requests."""
  import datasets as library

  asked = []

  def load_dataset(name, config=None, *, split, keep_in_memory):
    assert not keep_in_memory
    asked.append((name, config, split))
    rows = [{'text': f'{split} a', 'label': 1}, {'text': 'b', 'label': 0}]
    return library.Dataset.from_list(rows)

  monkeypatch.setattr(library, 'load_dataset', load_dataset)
  return asked


@pytest.mark.parametrize('config', ['', 'sst2'])
def test_a_data_set_of_the_hub_and_a_part_of_it(config, hub):
  options = {'format': 'hub', 'hub_name': 'owner/name', 'hub_config': config}
  data = Text(**options, train=('train',), test=('dev[:5]',))
  data.check('')
  rows = data.read('', 0)
  assert pairs(rows['train']) == [('train a', '1'), ('b', '0')]
  assert pairs(rows['test']) == [('dev[:5] a', '1'), ('b', '0')]
  assert hub == [
    ('owner/name', config or None, 'train'),
    ('owner/name', config or None, 'dev[:5]'),
  ]


def test_a_builder_in_a_folder_is_read_as_the_hub_is(tmp_path, monkeypatch):
  """With the library itself, offline: its name may be a folder."""
  import datasets as library

  cache = str(tmp_path / 'cache')
  monkeypatch.setattr(library.config, 'HF_DATASETS_CACHE', cache)
  folder = tmp_path / 'name'
  for part in ('one', 'two'):
    (folder / part).mkdir(parents=True)
    (folder / part / 'train.csv').write_text(f'text,label\n{part} a,1\n')
  (folder / 'README.md').write_text(
    '---\nconfigs:\n'
    '- config_name: one\n  data_files: one/*.csv\n'
    '- config_name: two\n  data_files: two/*.csv\n---\n'
  )
  options = {'format': 'hub', 'hub_name': str(folder), 'train': ('train',)}
  data = Text(**options, hub_config='two')
  assert pairs(data.read('', 0)['train']) == [('two a', '1')]
  with pytest.raises(
    UserError, match=r"split 'train' row 1 .*'one', 'two'.*hub_config"
  ):
    list(Text(**options).read('', 0)['train'])


# --- names and patterns ------------------------------------------------------


def test_several_files_are_concatenated(tmp_path):
  for name in 'ab':
    (tmp_path / name).write_text(f'text\tlabel\n{name}\t1\n')
  rows = read(tmp_path, train=('a', 'b'), test=('b',))
  assert [row.text for row in rows['train']] == ['a', 'b']
  assert set(rows) == {'train', 'test'}


def test_shell_patterns_match_files_in_order(tmp_path):
  (tmp_path / 'deep' / 'er').mkdir(parents=True)
  for name in ('b.tsv', 'a.tsv', 'deep/c.tsv', 'deep/er/d.tsv', '.e.tsv'):
    (tmp_path / name).write_text(f'text\tlabel\n{name}\t1\n')

  def texts(*names):
    return [row.text for row in read(tmp_path, train=names)['train']]

  assert texts('*.tsv') == ['a.tsv', 'b.tsv']
  assert texts('[b-z].tsv', 'a.tsv') == ['b.tsv', 'a.tsv']
  assert texts('*/?.tsv') == ['deep/c.tsv']
  assert texts('**/*.tsv') == ['a.tsv', 'b.tsv', 'deep/c.tsv', 'deep/er/d.tsv']
  assert texts('**') == texts('**/*.tsv')
  assert texts('d*/**/d.tsv') == ['deep/er/d.tsv']


PATTERNS = {
  'csv': {'part-1': 'text\tlabel\na\t1\n', 'part-2': 'text\tlabel\nb\t1\n'},
  'class_files': {'part-1': 'a\n', 'part-2': 'b\n'},
  'class_folders': {'part-1/1/x': 'a', 'part-2/1/x': 'b'},
}


@pytest.mark.parametrize('split', ['train', 'validation', 'test'])
@pytest.mark.parametrize('format', PATTERNS)
def test_files_folders_and_files_of_classes_may_be_patterns(
  format, split, tmp_path
):
  write(tmp_path, PATTERNS[format])
  prefix = '1=' if format == 'class_files' else ''
  names = {'train': (f'{prefix}part-1',)} | {split: (f'{prefix}part-*',)}
  rows = read(tmp_path, format=format, **names)[split]
  assert pairs(rows) == [('a', '1'), ('b', '1')]


def test_a_file_of_two_splits_is_warned_of(tmp_path, capsys):
  for name in ('train.tsv', 'test.tsv'):
    (tmp_path / name).write_text('text\tlabel\na\t1\n')
  read(tmp_path, train=('train.tsv',), test=('test.tsv',))
  assert capsys.readouterr().err == ''
  read(tmp_path, train=('*.tsv',), test=('test.tsv',))
  assert capsys.readouterr().err == (
    f'WARNING: {tmp_path}/test.tsv is read for train and for test\n'
  )


@pytest.mark.parametrize(
  ('train', 'test'),
  [
    ('test.tsv', './test.tsv'),
    ('.//test.tsv', 'test.tsv'),
    ('./*.tsv', 'sub/../test.tsv'),
  ],
)
def test_a_file_of_two_splits_is_warned_of_for_any_path_to_it(
  train, test, tmp_path, capsys
):
  (tmp_path / 'sub').mkdir()
  (tmp_path / 'test.tsv').write_text('text\tlabel\na\t1\n')
  read(tmp_path, train=(train,), test=(test,))
  assert capsys.readouterr().err == (
    f'WARNING: {tmp_path}/test.tsv is read for train and for test\n'
  )


def test_a_file_of_two_splits_and_labels_is_warned_of(tmp_path, capsys):
  (tmp_path / 'a').write_text('b\n')
  names = {'train': ('no=a',), 'test': ('yes=a',)}
  read(tmp_path, format='class_files', **names)
  assert f'{tmp_path}/a is read for train' in capsys.readouterr().err


def test_a_file_that_several_patterns_match_is_read_once(tmp_path):
  for name in ('part-1.tsv', 'part-2.tsv'):
    (tmp_path / name).write_text(f'text\tlabel\n{name}\t1\n')
  for names in (
    ('part-2.tsv', 'part-*.tsv'),
    ('part-2.tsv', './part-2.tsv', 'part-1.tsv'),
    ('part-2.tsv', './/*.tsv'),
  ):
    rows = read(tmp_path, train=names)['train']
    assert [row.text for row in rows] == ['part-2.tsv', 'part-1.tsv']


def test_a_folder_that_several_patterns_match_is_read_once(tmp_path):
  (tmp_path / 'train' / 'good').mkdir(parents=True)
  (tmp_path / 'train' / 'good' / '0.txt').write_text('a')
  names = ('train', 'train/', 't*')
  rows = read(tmp_path, format='class_folders', train=names)['train']
  assert pairs(rows) == [('a', 'good')]


@pytest.mark.parametrize('name', ['a[1].tsv', 'a*b.tsv', 'a?.tsv', '{a}.tsv'])
@pytest.mark.parametrize('folder', ['plain', 'odd[2]*'])
def test_a_name_that_looks_like_a_pattern_is_still_a_name(
  name, folder, tmp_path
):
  (tmp_path / folder).mkdir()
  (tmp_path / folder / name).write_text('text\tlabel\na\t1\n')
  (tmp_path / folder / 'a1.tsv').write_text('text\tlabel\nother\t1\n')
  assert pairs(read(tmp_path / folder, train=(name,))['train']) == [('a', '1')]


# --- folders of classes ------------------------------------------------------

FOLDERS = {
  'train/neg/10.txt': 'two\nlines',
  'train/neg/2.txt': 'b',
  'train/pos/0.txt': '',
  'train/neg/.hidden': '\xff',
  'train/.hidden/0.txt': 'no',
  'train/urls.txt': 'no',
}


def test_each_file_of_a_folder_is_a_text(tmp_path):
  write(tmp_path, FOLDERS)
  rows = read(tmp_path, format='class_folders', train=('train',))['train']
  folder = tmp_path / 'train'
  assert [(row.text, row.label, row.file, row.number) for row in rows] == [
    ('two\nlines', 'neg', f'{folder}/neg/10.txt', 1),
    ('b', 'neg', f'{folder}/neg/2.txt', 1),
    ('', 'pos', f'{folder}/pos/0.txt', 1),
  ]


def test_folders_of_other_labels_are_not_read(tmp_path):
  write(tmp_path, FOLDERS | {'train/x=1/0': 'c', 'train/unsup/0': '\xff'})
  options = {'format': 'class_folders', 'train': ('train',)}
  labels = ('x==1=x', 'pos')
  rows = read(tmp_path, **options, labels=labels)['train']
  assert pairs(rows) == [('', 'pos'), ('c', 'x')]


def test_a_text_of_a_folder_that_cannot_be_decoded_is_named(tmp_path):
  write(tmp_path, FOLDERS | {'train/pos/1.txt': '\xff'})
  with pytest.raises(UserError, match=r"/train/pos/1\.txt row 1: .* 'utf-8'"):
    read(tmp_path, format='class_folders', train=('train',))


@pytest.mark.parametrize('name', ['train/new/.hidden', 'train/new/deep/text'])
def test_a_class_folder_without_texts_is_named(name, tmp_path):
  write(tmp_path, FOLDERS | {name: 'a'})
  with pytest.raises(UserError, match='/train/new'):
    read(tmp_path, format='class_folders', train=('train',))


# --- copies and options ------------------------------------------------------

COPIES = [('a', 1), ('b', 1), ('a', 2), ('a', 1), ('b', 1), ('a', 1)]


def write_copies(folder):
  for name, rows in (('train', COPIES), ('test', COPIES[3:])):
    lines = ['text\tlabel', *(f'{text}\t{label}' for text, label in rows)]
    (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n')


@pytest.mark.parametrize(
  ('most', 'train', 'test'),
  [
    (0, [1, 2, 3, 4, 5, 6], [1, 2, 3]),
    (1, [1, 2, 3], [1, 2]),
    (2, [1, 2, 3, 4, 5], [1, 2, 3]),
  ],
)
def test_the_first_copies_of_a_text_and_label_are_kept_in_a_split(
  most, train, test, tmp_path
):
  write_copies(tmp_path)
  source = Text(test=('test.tsv',))
  rows = rows_lib.gather(source.read(str(tmp_path), 0))
  splits, messages = selection.without_copies(rows, rows.splits(), most)
  found = {
    split: [rows.row(index).number for index in part]
    for split, part in splits.items()
  }
  assert found == {'train': train, 'test': test}
  assert messages == [
    f'{split} rows dropped: {left_out} of {count}, more than {most} of one '
    'text and label (config.data.text.max_copies)'
    for split, left_out, count in (
      ('train', 6 - len(train), 6),
      ('test', 3 - len(test), 3),
    )
    if left_out
  ]


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'train': ()}, r'text\.train is empty'),
    ({'unknown_labels': 'keep'}, r"labels = 'keep' is not one of drop, error"),
    ({'format': 'tsv'}, r"format = 'tsv' is not one of"),
    ({'delimiter': '\t'}, r'delimiter = .* is not one of bar, comma'),
    ({'text_columns': ()}, r'text_columns is empty'),
    ({'format': 'class_files', 'train': ('a',)}, r'write label=file'),
    (
      {'format': 'hub', 'hub_name': 'glue'},
      r"data\.dir = 'anywhere' must be e",
    ),
    ({'format': 'hub'}, r"hub_name = '' must name a data set, and .*dir ="),
    ({'max_copies': -1}, r'text\.max_copies = -1 must be at least 0'),
    ({'encoding': 'utf8x'}, r'text\.encoding: unknown encoding: utf8x'),
    ({'hub_name': 'glue'}, r"hub_name = 'glue' .* empty for .*format = 'csv'"),
    ({'hub_config': 'sst2'}, r"hub_config = 'sst2' must be empty"),
  ],
)
def test_wrong_options_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    Text(**options).check('anywhere')


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'train': ('no',)}, r'text\.train names .*no, which does not exist'),
    ({'test': ('no',)}, r'text\.test names .*no, which does not exist'),
    (
      {'format': 'class_files', 'train': ('good=no',)},
      r'text\.train names .*no, which does not exist',
    ),
    (
      {'format': 'class_folders', 'train': ('no',)},
      r'text\.train names .*no, which does not exist',
    ),
    ({'format': 'class_folders', 'train': ('.',)}, r'have no class folder'),
    (
      {'format': 'class_folders', 'train': ('train.tsv',)},
      r'text\.train names .*train.tsv, which is not a folder',
    ),
    ({'train': ('.',)}, r'text\.train names .*, which is not a file'),
  ],
)
def test_missing_files_are_refused_before_any_is_read(
  options, message, tmp_path, monkeypatch
):
  (tmp_path / 'train.tsv').write_text('text\tlabel\na\t1\n')
  monkeypatch.setattr(readers, 'rows', None)
  with pytest.raises(UserError, match=message):
    read(tmp_path, **options)


def test_a_missing_folder_is_refused_where_it_is_read(tmp_path):
  with pytest.raises(UserError, match=r'data\.dir = .*gone.* is not a folder'):
    read(tmp_path / 'gone')
