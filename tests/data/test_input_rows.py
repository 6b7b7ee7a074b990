"""Rows to predict: in order, whole, with all columns, as soon as they come."""

import io
import json
import os

import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.command.errors import UserError
from experiments.data import input_rows, readers
from experiments.data.text_files import Text

ROWS = [{'id': '07', 'text': 'a, b'}, {'id': '08', 'text': 'say "c"'}]
COMMAS = 'id,text\n07,"a, b"\n08,"say ""c"""\n'
TABS = 'id\ttext\n07\ta, b\n08\tsay "c"\n'
LATIN = {'encoding': 'latin-1'}


def read(content, name, changes=(), **options):
  """(text, row) of each row of a file."""
  file = content if hasattr(content, 'read') else io.BytesIO(content.encode())
  options = input_rows.options_of(Text.of(**options), name, dict(changes))
  rows = readers.rows(options, 'F', options.text_columns, True, file)
  return [(texts and ' '.join(texts), row) for _, texts, row in rows]


def test_lines_are_read_to_the_letter():
  content = '\ufeffa\n\nçé\r\nd\u2028d\n\x0ce \rx\n\n€'
  for format in ('lines', 'csv', 'hub(name=a)'):
    rows = read(content, '', format=format, text_columns=('s',), **LATIN)
    texts = [row.get('text') for _, row in rows]
    assert texts == ['a', None, 'çé', 'd\u2028d', '\x0ce \rx', None, '€']


def test_lines_have_no_columns():
  with pytest.raises(UserError, match=r'text_columns = s must not .* = lines'):
    input_rows.options_of(Text.of(), '', {'text_columns': 's'})


def test_rows_of_a_pipe_do_not_wait_for_later_ones():
  source, target = os.pipe()
  with open(source, 'rb') as file:
    options = input_rows.options_of(Text.of(), '', {})
    rows = readers.rows(options, 'pipe', ('text',), True, file)
    windows = input_rows.windows((text for _, (text,), _ in rows), 2, file)
    os.write(target, b'first\nhalf')
    assert next(windows) == ['first']
    os.write(target, b' of it\nthird\nfourth\n')
    os.close(target)
    assert list(windows) == [['half of it', 'third'], ['fourth']]


def test_an_object_keeps_its_keys_and_an_empty_line_is_an_empty_row():
  rows = [{'id': 7, 'text': 'a', 'x': 0.5}, {}, {'text': None, 'more': [1]}]
  content = '\n'.join(json.dumps(row) if row else '' for row in rows)
  answered = read(content, 'a.json')
  assert [text for text, _ in answered] == ['a', None, '']
  assert json.dumps([row for _, row in answered]) == json.dumps(rows)


@pytest.mark.parametrize(
  ('name', 'content', 'options'),
  [
    ('csv', COMMAS, {'format': 'hub(name=a)', **LATIN}),
    ('csv', COMMAS, {'format': 'tsv(header=False)'}),
    ('csv', COMMAS, {'format': 'csv'}),
    ('csv', COMMAS.replace(',', ';').replace('a;', 'a,'),
     {'format': 'csv(delimiter=";")'}),
    ('tsv', TABS, {'format': 'json', **LATIN}),
    ('tsv', TABS, {'format': 'csv'}),
    ('json', '[{"id": "07", "text": "a, b"},{"id":"08","text":"say \\"c\\""}]',
     {}),
  ],
)  # fmt: skip
def test_a_table_is_read_as_those_of_the_run_or_by_its_kind(
  name, content, options
):
  assert read(content, f'a.{name}', **options) == [(r['text'], r) for r in ROWS]


@pytest.mark.parametrize(
  ('kind', 'format'), [('csv', 'csv'), ('json', 'json'), ('json', 'csv')]
)
def test_a_file_of_the_format_of_the_run_has_its_encoding(kind, format):
  options = {'format': format}
  content = '{"text": "é"}' if kind == 'json' else 'text\né\n'
  encoding = 'latin-1' if kind == format else 'utf-8'
  file = io.BytesIO(content.encode(encoding))
  assert read(file, f'a.{kind}', **options, **LATIN) == [('é', {'text': 'é'})]


def test_what_a_file_has_otherwise_comes_first():
  content = 'a;7\n"b;c";8\n'.encode('utf-16')
  changes = {
    'format': 'csv(delimiter=semicolon, header=False)', 'text_columns': '0',
    'encoding': 'utf-16',
  }  # fmt: skip
  for name in ('a.csv', 'a.txt'):
    rows = read(io.BytesIO(content), name, changes, format='lines')
    assert [text for text, _ in rows] == ['a', 'b;c']
  with pytest.raises(
    UserError, match=r"format = csv.*: delimiter = ';;' must be"
  ):
    read('', 'a.csv', {'format': "csv(delimiter=';;')"})


def test_rows_of_a_table_keep_their_place_and_all_columns():
  options = {'format': 'tsv(header=False)', 'text_columns': (1,)}
  content = '\n7\tone\n\n8\ttwo\n'
  one, two = {'0': '7', '1': 'one'}, {'0': '8', '1': 'two'}
  rows = [(None, {}), ('one', one), (None, {}), ('two', two)]
  assert read(content, 'a.tsv', **options) == rows
  content = '\n,n,n,text\n0,1,2,a\n\n3,4,5,b\n'
  one = {'0': '0', 'n': '1', '2': '2', 'text': 'a'}
  two = {'0': '3', 'n': '4', '2': '5', 'text': 'b'}
  assert read(content, 'a.csv') == [('a', one), (None, {}), ('b', two)]


def test_a_parquet_file_keeps_all_columns():
  rows = [{'id': n, 'text': f'text {n}'} for n in range(5)]
  rows.append({'id': None, 'text': None})
  file = io.BytesIO()
  parquet.write_table(pa.Table.from_pylist(rows), file)
  assert read(file, 'a.parquet') == [(row['text'] or '', row) for row in rows]


def test_the_text_of_a_row_is_that_of_its_columns():
  content = '{"title": "a", "body": null, "id": 3}'
  ((text, _),) = read(content, 'a.json', text_columns=('title', 'body', 'id'))
  assert text == 'a  3'
  with pytest.raises(UserError, match="F row 1: no column 'text'"):
    read(content, 'a.json')


@pytest.mark.parametrize(
  ('name', 'format'),
  [
    ('a.jsonl', 'json'),
    ('a.b.TSV', 'tsv'),
    ('a.csv.gz', 'csv'),
    ('a.gz', 'lines'),
    ('a.txt', 'lines'),
    ('', 'lines'),
  ],
)
def test_the_format_is_that_of_the_ending(name, format):
  assert input_rows.format_of(name) == format
