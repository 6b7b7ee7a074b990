"""Which files, folders and parts of the hub are read, and in what order."""

import pytest

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.data import loading, readers
from experiments.data.labels import CLASSES
from experiments.data.text_files import Text
from experiments.settings.settings import from_config

# In each file, a text with its name.
TABLES = (
  'b.tsv', 'a.tsv', 'a[1].tsv', 'a*b.tsv', '.e.tsv', 'deep/c.tsv',
  'deep/er/d.tsv', 'odd[2]*/a1.tsv', 'odd[2]*/a[1].tsv',
)  # fmt: skip
FOLDERS = {
  'train/neg/10.txt': 'two\nlines',
  'train/neg/2.txt': 'b',
  'train/pos/0.txt': '',
  'train/neg/.hidden': '\xff',
  'train/.hidden/0.txt': 'no',
  'train/urls.txt': 'no',
}


def write(folder, files):
  """Writes files, content by name."""
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode('latin-1'))


@pytest.fixture
def folder(tmp_path):
  write(tmp_path, {name: f'text\tlabel\n{name}\t1\n' for name in TABLES})
  write(tmp_path, FOLDERS)
  return tmp_path


def read(folder, **options):
  data = Text.of(**options)
  data.check(str(folder))
  rows = data.read(str(folder), 0)
  return {split: list(part) for split, part in rows.items()}


def pairs(rows):
  return [(row.text, row.label) for row in rows]


@pytest.mark.parametrize(
  ('names', 'files'),
  [
    ('b.tsv a.tsv', 'b.tsv a.tsv'),
    ('?.tsv', 'a.tsv b.tsv'),
    ('b.tsv ?.tsv ./b.tsv', 'b.tsv a.tsv'),
    ('d*/../a.tsv .//a.tsv', 'a.tsv'),
    ('*/?.tsv', 'deep/c.tsv'),
    ('deep/**/*.tsv', 'deep/c.tsv deep/er/d.tsv'),
    ('deep/**', 'deep/c.tsv deep/er/d.tsv'),
    ('d*/**/d.tsv', 'deep/er/d.tsv'),
    ('a[1].tsv', 'a[1].tsv'),
    ('a*b.tsv', 'a*b.tsv'),
    ('odd[2]*/a[1].tsv', 'odd[2]*/a[1].tsv'),
  ],
)
def test_names_and_patterns_are_read_in_order_each_file_once(
  names, files, folder
):
  rows = read(folder, train=('b.tsv',), test=tuple(names.split()))['test']
  assert [row.text for row in rows] == files.split()


def test_each_file_of_a_folder_is_a_text(folder):
  names = ('train', 'train/', 't*')
  rows = read(folder, format='class_folders', train=names)['train']
  assert [(row.text, row.label, row.file, row.number) for row in rows] == [
    ('two\nlines', 'neg', f'{folder}/train/neg/10.txt', 1),
    ('b', 'neg', f'{folder}/train/neg/2.txt', 1),
    ('', 'pos', f'{folder}/train/pos/0.txt', 1),
  ]


def test_folders_of_other_labels_are_not_read(folder):
  write(folder, {'train/x=1/0': 'c', 'train/unsup/0': '\xff'})
  options = {'format': 'class_folders', 'labels': ('x==1=x', 'pos')}
  rows = read(folder, **options, train=('train',))['train']
  assert pairs(rows) == [('', 'pos'), ('c', 'x')]


def test_a_label_that_is_not_utf_8_is_refused(folder):
  write(folder, {'train/n\udcff/0': 'c'})
  with pytest.raises(UserError, match=r"label 'n\\udcff' is not UTF-8"):
    read(folder, format='class_folders', train=('train',))


def test_folders_are_listed_by_the_levels_of_their_labels_that_count(tmp_path):
  write(tmp_path, {f'train/{name}/0': name for name in ('A:x', 'A:y', 'B')})
  options = {'format': 'class_folders', 'labels': ('A', 'B')}
  rows = read(tmp_path, **options, label_depth=1, train=('train',))['train']
  assert pairs(rows) == [('A:x', 'A'), ('A:y', 'A'), ('B', 'B')]


def test_a_cell_of_a_table_is_no_list(tmp_path):
  labels = ['[1]', '[0, 1]', '[1, 0]', '[true]']
  lines = ['text\tlabel', *(f'a\t{label}' for label in labels)]
  write(tmp_path, {'a.tsv': '\n'.join(lines)})
  rows = read(tmp_path, train=('a.tsv',))['train']
  assert [row.label for row in rows] == labels


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('train/new/.hidden', '/train/new'),
    ('train/new/deep/text', "text.train = 'train': .*/new/deep is a folder"),
    ('train/pos/1.txt', r"/train/pos/1\.txt row 1: .* 'utf-8'"),
  ],
)
def test_what_is_no_text_in_a_class_folder_is_named(name, message, folder):
  write(folder, {name: '\xff'})
  with pytest.raises(UserError, match=message):
    read(folder, format='class_folders', train=('train',))


@pytest.mark.parametrize('name', ['latin-one', '\udce9', 'a\0b'])
def test_what_is_no_encoding_is_refused(name):
  with pytest.raises(UserError, match=r'encoding = .* must be an encoding'):
    Text.of(encoding=name)


def test_what_names_no_file_of_its_format_is_refused(folder):
  with pytest.raises(UserError, match=r'data\.dir = .*gone.* is not a folder'):
    read(folder / 'gone')
  with pytest.raises(UserError, match=r"text\.train = 'b\.tsv': write label="):
    read(folder, format='class_files', train=('b.tsv',))


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize(
  ('format', 'name'),
  [
    ('tsv', 'gone.tsv'),
    ('tsv', 'deep'),
    ('tsv', '*.csv'),
    ('class_folders', 'gone'),
    ('class_folders', 'train/neg/2.txt'),
  ],
)
def test_missing_files_are_refused_before_any_is_read(
  format, name, split, folder, monkeypatch
):
  train = 'train' if format == 'class_folders' else 'a.tsv'
  options = {'train': (train,)} | {split: (name,)}
  monkeypatch.setattr(readers, 'rows', None)
  with pytest.raises(UserError, match=rf'data\.text\.{split}.*{name[-3:]}'):
    read(folder, format=format, **options)


def test_a_builder_in_a_folder_is_read_as_the_hub_is(tmp_path, monkeypatch):
  """With the library itself, offline: its name may be a folder."""
  import datasets as library

  cache = str(tmp_path / 'cache')
  monkeypatch.setattr(library.config, 'HF_DATASETS_CACHE', cache)
  folder = tmp_path / 'name'
  for part in ('one', 'two'):
    (folder / part).mkdir(parents=True)
    (folder / part / 'train.csv').write_text(f'text,label\n{part},1\nb,0\n')
  (folder / 'README.md').write_text(
    '---\nconfigs:\n'
    '- config_name: one\n  data_files: one/*.csv\n'
    '- config_name: two\n  data_files: two/*.csv\n---\n'
  )
  hub, train = f'hub(name={str(folder)!r}', {'train': ('train',)}
  data = Text.of(format=f'{hub}, config=two)', test=('train[1:]',), **train)
  rows = data.read('', 0)
  assert pairs(rows['train']) == [('two', '1'), ('b', '0')]
  assert pairs(rows['test']) == [('b', '0')]
  with pytest.raises(
    UserError, match=r"train row 1 .*'one', 'two'.*text\.format"
  ):
    list(Text.of(format=f'{hub})', **train).read('', 0)['train'])


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'train': ()}, r'text\.train = \(\) must be at least one'),
    ({'unknown_labels': 'keep'}, r"labels = 'keep' must be one of 'error', 'd"),
    ({'format': 'xml'}, "format = 'xml' is not one of"),
    ({'format': 'hub'}, "format = hub: name = '' must be"),
    ({'format': 'csv(delimiter=bar)'}, "delimiter = 'bar' must be comma"),
    ({'text_columns': ()}, r'text_columns = \(\) must be at least one'),
    ({'label_depth': -1}, r'text\.label_depth = -1 must be at least 0'),
    ({'encoding': 'utf8x'}, r"text\.encoding = 'utf8x' must be an encoding"),
  ],
)
def test_wrong_options_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    Text.of().changed(options)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'format': 'hub(name=glue)'}, r"data\.dir = 'anywhere' must be empty"),
    ({'label_columns': ('a',), 'format': 'lines'}, 'label_columns .* be empty'),
    ({'join': 'pair'}, 'text_columns = .* must be 2 columns'),
  ],
)
def test_options_that_exclude_each_other_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    Text.of(**options).check('anywhere')


# By format: content of files without labels, and a name of train.
UNLABELLED = {
  'csv': ({'more': 'text\na b\nc\n'}, 'more'),
  'lines': ({'more': 'a b\n\nc\n'}, 'more'),
  'json': ({'more': '{"text": "a b"}\n{"text": "c"}\n'}, 'more'),
  'class_files': ({'more': 'a b\nc\n'}, 'more'),
  'class_folders': ({'unsup/0': 'a b', 'unsup/1': 'c'}, 'unsup'),
}


@pytest.mark.parametrize('format', UNLABELLED)
def test_each_format_has_texts_without_labels(format, tmp_path):
  files, name = UNLABELLED[format]
  write(tmp_path, files)
  source = Text.of(format=format, train=(name,), label_column='')
  rows = source.read(str(tmp_path), 0)['train']
  assert [(row.text, row.label) for row in rows] == [('a b', ''), ('c', '')]


def test_a_format_of_ones_own_is_read_anew_and_its_errors_have_their_line(
  small_config, tmp_path, monkeypatch
):
  monkeypatch.setenv('SELFATTN_CACHE', str(tmp_path / 'cache'))
  modules.search(str(tmp_path))
  (tmp_path / 'a').write_text('text')
  data = small_config.data
  data.source, data.dir = 'text', str(tmp_path)
  data.text.format, data.text.train = 'mine:Rows', ('a',)
  data.test_fraction = data.validation_fraction = 0.3

  def words(body):
    (tmp_path / 'mine.py').write_text(
      'import dataclasses\n'
      'from experiments.data.contract import Format\n\n\n'
      '@dataclasses.dataclass(frozen=True)\nclass Rows(Format):\n'
      '  def records(self, file, columns, encoding, all_columns):\n'
      f'    for n in range(20):\n      {body}\n'
    )
    loaded = loading.load(from_config(small_config).data, '')
    return {loaded.row('train', n).text for n in range(4)}

  row = 'yield {"text": f"WORD {n}", "label": str(n % 2)}'
  for word in ('one', 'two'):
    assert {text[:3] for text in words(row.replace('WORD', word))} == {word}
  with pytest.raises(UserError, match=r'mine\.py line 9: .*KeyError'):
    words('yield {}["no"]')


@pytest.mark.parametrize(
  ('format', 'name'), [('class_folders', 'neg'), ('class_files', 'neg/2.txt')]
)
def test_another_file_is_named_as_those_of_a_run_without_labels(
  format, name, folder, small_config, monkeypatch
):
  monkeypatch.chdir(folder / 'train')
  small_config.task, data = 'masked_tokens', small_config.data
  data.source, data.dir = 'text', str(folder / 'train')
  data.text.format, data.text.label_column = format, ''
  data.text.train = data.text.validation = data.text.test = (name,)
  settings, run = from_config(small_config).data, folder / 'run'
  run.mkdir()
  for file, content in loading.load(settings, '', labels=None).files.items():
    (run / file).write_text(content)
  loaded = loading.load_file(settings, str(run), name, {}, None)
  assert len(loaded.splits['test']) == len(loaded.rows)


def test_another_file_says_which_classes_it_lacks(
  small_config, tmp_path, capsys
):
  """Its AUROC, of classes that all texts have or none has, is null."""
  lines = [f'good\tfine {n}\nbad\tdull {n}\n' for n in range(9)]
  (tmp_path / 'train.tsv').write_text(''.join(['label\ttext\n', *lines]))
  (tmp_path / 'new.tsv').write_text('label\ttext\ngood\tfine\n')
  data, run = small_config.data, tmp_path / 'run'
  data.source, data.dir, data.test_fraction = 'text', str(tmp_path), 0.2
  settings = from_config(small_config).data
  run.mkdir()
  for file, content in loading.load(settings, '').files.items():
    (run / file).write_text(content)
  capsys.readouterr()
  new = str(tmp_path / 'new.tsv')
  loading.load_file(settings, str(run), new, {}, CLASSES)
  said = "classes without test texts: 1 of 2 ('bad')"
  assert said in capsys.readouterr().err


def test_a_task_without_labels_needs_none(small_config, tmp_path):
  small_config.task = 'masked_tokens'
  (tmp_path / 'book').write_text('one two\nthree four\nfive\n' * 9)
  data = small_config.data
  data.source, data.dir = 'text', str(tmp_path)
  data.text.format, data.text.label_column = 'lines', ''
  data.text.train, data.validation_fraction = ('book',), 0.4
  data.test_fraction = 0.3
  loaded = loading.load(from_config(small_config).data, '', labels=None)
  assert len(loaded.splits['train']) == 9
  small_config.task = 'classify'
  with pytest.raises(UserError, match=r"label_column = ''.*config\.task = cl"):
    from_config(small_config)
