"""Files as other programs write them: marks, hints, escapes, lists, forks."""

import bz2
import gzip
import json
import lzma

import pytest

from experiments.command.errors import UserError
from experiments.data.text_files import Text

CSV = 'text,label\nhello,a\nbye,b\n'
ROWS = [('hello', 'a'), ('bye', 'b')]


@pytest.fixture
def read(tmp_path):
  """(text, label) of each row of a file with a content, or of other files."""

  def read(content=None, **options):
    options = {'format': 'csv', 'train': ('a',)} | options
    if content is not None:
      data = content if isinstance(content, bytes) else content.encode()
      (tmp_path / 'a').write_bytes(data)
    rows = Text.of(**options).read(str(tmp_path), 0)['train']
    return [(row.text, row.label) for row in rows]

  return read


@pytest.mark.parametrize('format', ['tsv', 'json'])
@pytest.mark.parametrize(
  ('label', 'options'),
  [
    ("['a', 'b']", {}),
    ('["a", "b"]', {}),
    ("('a',)", {}),
    ("{'a'}", {}),
    ('[ 0 27]', {}),
    ('[0.  -1.5]', {}),
    ('[1.e-05 2.e+00]', {}),
    ('[0, 27]', {'label_separator': ' '}),
    ("['a', 'b']", {'label_separator': ','}),
    ('[]', {'label_separator': ','}),
  ],
)
def test_a_printed_list_is_no_label(label, options, format, read):
  said = 'row 1: the label .* is a list as programs print it.*label_separator'
  content = f'text\tlabel\na\t{label}\n'
  if format == 'json':
    content = json.dumps({'text': 'a', 'label': label})
  with pytest.raises(UserError, match=said):
    read(content, format=format, **options)


@pytest.mark.parametrize('options', [{}, {'label_separator': ';'}])
def test_a_string_that_looks_like_a_list_is_none(options, read):
  lines = [{'text': 'a', 'label': ['1', 'x;y']}]
  lines += [{'text': 'b', 'label': '[1-2 3]'}] if not options else []
  rows = read('\n'.join(map(json.dumps, lines)), format='json', **options)
  assert rows == [('a', '["1", "x;y"]'), ('b', '[1-2 3]')][: len(lines)]


@pytest.mark.parametrize(
  ('label', 'options'),
  [([1, 0, 1], {}), ([False, False], {}), ('1,0,1', {'label_separator': ','})],
)
def test_labels_of_a_text_that_are_repeated_are_refused(label, options, read):
  content = json.dumps({'text': 'a', 'label': label})
  said = r'row 1: the labels \[.*\] are repeated.*text\.label_columns'
  with pytest.raises(UserError, match=said):
    read(content, format='json', **options)


def test_a_label_that_is_written_twice_is_one(read):
  content = json.dumps({'text': 'a', 'label': ['b', 'a', 'b']})
  assert read(content, format='json') == [('a', '["a", "b"]')]


@pytest.mark.parametrize(
  'name', ['utf-8', 'utf-16-le', 'utf-16-be', 'utf-32-le', 'utf-32-be']
)
@pytest.mark.parametrize('format', ['csv', 'lines'])
def test_a_byte_order_mark_is_no_part_of_the_first_cell(format, name, read):
  text = CSV if format == 'csv' else 'a hello\nb bye\n'
  content = ('\ufeff' + text).encode(name)
  assert read(content, format=format, encoding=name) == ROWS


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('\ufeff'.encode() + CSV.encode(), 'UTF-8.*encoding to utf-8'),
    (CSV.encode('utf-16'), 'UTF-16.*encoding to utf-16'),
    (CSV.encode('utf-16-le'), 'UTF-16.*encoding to utf-16-le'),
    (gzip.compress(CSV.encode(), mtime=0), r'gzip.*\.gz'),
    (bz2.compress(CSV.encode()), r'bzip2.*\.bz2'),
    (lzma.compress(CSV.encode()), r'xz.*\.xz'),
    (b'PK\3\4\0\0', 'zip: unpack'),
    (b'PK\3\4' + bytes(26) + b'a.csv', 'zip: unpack'),
    (b'PK\3\4' + bytes(26) + b'[Content_Types].xml', 'Excel.*as CSV'),
    (b'PK\3\4' + bytes(26) + b'xl/workbook.xml', 'Excel.*as CSV'),
    (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0', 'old office file: .*as CSV'),
    (b'PAR1\x15', 'Parquet: .*text.format to parquet'),
    (b'SQLite format 3\0', 'SQLite: .*as CSV'),
    (b'%PDF-1.7', 'PDF: extract'),
    (b'\n<!DOCTYPE html>', 'HTML: download'),
    (b'version https://git-lfs.github.com/spec/v1', 'Git LFS.*git lfs pull'),
    (b'a.csv'.ljust(257, b'\0') + b'ustar\x0000', 'tar: unpack'),
  ],
)
@pytest.mark.parametrize('format', ['csv', 'lines'])
def test_what_is_no_such_text_is_named_by_its_first_bytes(
  content, message, format, read
):
  said = f'row 1: the file begins with .*{message}'
  with pytest.raises(UserError, match=said):
    read(content, format=format, encoding='latin-1')


@pytest.mark.parametrize('name', ['PAR1', f'{"x" * 257}ustar'])
def test_names_of_columns_are_no_mark_of_a_binary_file(name, read):
  content = CSV.replace('text', name, 1)
  assert read(content, text_columns=(name,)) == ROWS


def test_a_page_of_a_class_folder_is_a_text(read, tmp_path):
  (tmp_path / 't' / 'home').mkdir(parents=True)
  (tmp_path / 't' / 'home' / '1').write_text('<html>hello')
  rows = read(format='class_folders', train=('t',))
  assert rows == [('<html>hello', 'home')]


def test_a_hint_of_the_delimiter_is_no_row(read):
  assert read('sep=,\r\n' + CSV) == ROWS
  with pytest.raises(UserError, match=r"begins with 'sep=;'.*delimiter.*';'"):
    read('sep=;\n' + CSV.replace(',', ';'))


def test_a_backslash_may_escape_a_quote(read):
  content = 'text,label\n"he said \\"hi\\", ok",a\n'
  rows = read(content, format='csv(escaped=True)')
  assert rows == [('he said "hi", ok', 'a')]
  with pytest.raises(UserError, match=r'row 1 .*escaped=True'):
    read(content)


@pytest.mark.parametrize('options', [{}, {'label_separator': ';'}])
def test_a_space_before_the_quotes_of_a_label_is_named(options, read):
  with pytest.raises(UserError, match=r"row 1: the label ' \"x\"' has white"):
    read('text,label\n"a, b", "x"\n', **options)


BACKSLASHES = [
  (r'C:\new\table', r'C:\new\table'), (r'\N', r'\N'), ('\\\\', '\\'),
  ('a\\\nb', 'a\nb'), (r'\\\\new', r'\\new'),
]  # fmt: skip


@pytest.mark.parametrize(
  ('written', 'text'), [*BACKSLASHES, (r'\\\"', r'\"'), ('\\,', '\\,')]
)
def test_a_backslash_before_anything_else_is_text(written, text, read):
  rows = read(f'text,label\n"{written}",a\n', format='csv(escaped=True)')
  assert rows == [(text, 'a')]


@pytest.mark.parametrize(
  ('written', 'text'), [*BACKSLASHES, ('a\\\tb', 'a\tb'), ('\\"', '\\"')]
)
def test_a_backslash_may_escape_a_tab_where_no_quotes_do(written, text, read):
  rows = read(f'text\tlabel\n{written}\ta\n', format='tsv(escaped=True)')
  assert rows == [(text, 'a')]


@pytest.mark.parametrize(
  ('format', 'options'),
  [
    ('csv(escaped=True)', {}), ('csv', {}), ('csv', {'label_separator': ';'}),
  ],
)  # fmt: skip
def test_a_null_of_mysql_is_no_label(format, options, read):
  with pytest.raises(UserError, match=r'row 1: the label is \\N, the null'):
    read('text,label\na,\\N\n', format=format, **options)


def test_a_label_of_which_no_level_is_left_is_empty(read):
  said = "row 1: the label ':x' is empty at .*label_depth = 1"
  with pytest.raises(UserError, match=said):
    read('text\tlabel\na\t:x\n', format='tsv', label_depth=1)


def test_classes_of_the_hub_have_their_names(monkeypatch, read):
  datasets = pytest.importorskip('datasets')
  features = datasets.Features(
    {
      'text': datasets.Value('string'),
      'label': datasets.ClassLabel(names=['neg', 'pos']),
      'tags': datasets.Sequence(datasets.ClassLabel(names=['x', 'y'])),
    }
  )
  columns = {'text': ['a', 'b', 'c'], 'label': [1, 0, -1]}
  columns['tags'] = [[0, 1], [], [1]]
  data = datasets.Dataset.from_dict(columns, features=features)
  monkeypatch.setattr(datasets, 'load_dataset', lambda *_, **__: data)
  hub = {'format': 'hub(name=n)', 'train': ('train',)}
  assert [label for _, label in read(**hub)] == ['pos', 'neg', '-1']
  tags = [label for _, label in read(label_column='tags', **hub)]
  assert tags == ['["x", "y"]', '[]', '["y"]']


def test_what_systems_put_beside_files_is_not_read(read, tmp_path):
  files = {'pos/1': 'good', 'neg/1': 'bad', 'pos/Thumbs.db': '\0'}
  files |= {'__MACOSX/._1': '\0', '__MACOSX/pos/1': 'x'}
  for name, text in files.items():
    path = tmp_path / 't' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  rows = read(format='class_folders', train=('t',))
  assert rows == [('bad', 'neg'), ('good', 'pos')]
  rows = read(format='lines', train=('**/1',), label_column='')
  assert rows == [('bad', ''), ('good', '')]
