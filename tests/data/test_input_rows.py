"""Rows to predict: in order, whole, with all columns, as soon as they come."""

import io
import json
import os

import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.command.errors import UserError
from experiments.data import input_rows
from experiments.data.text_files import Text


def read_lines(content, is_json=False):
  file = io.BufferedReader(io.BytesIO(content))
  return [r for rows in input_rows.of_lines(file, 'F', is_json) for r in rows]


@pytest.mark.parametrize('num_bytes', [1, 2, 5, 2**18])
def test_lines_are_read_to_the_letter_however_long_a_read_is(
  monkeypatch, num_bytes
):
  monkeypatch.setattr(input_rows, '_BYTES', num_bytes)
  content = '\ufeffa\n\nçé\r\nd\u2028d\n\x0ce \rx\n\n€'.encode()
  found = [row['text'] for row in read_lines(content)]
  assert found == ['a', '', 'çé', 'd\u2028d', '\x0ce \rx', '', '€']


def test_rows_of_a_pipe_do_not_wait_for_later_ones():
  source, target = os.pipe()
  with open(source, 'rb') as file:
    lists = input_rows.of_lines(file, 'pipe', False)
    os.write(target, b'first\nsecond\nhalf')
    assert next(lists) == [{'text': 'first'}, {'text': 'second'}]
    os.write(target, b' of it\n')
    assert next(lists) == [{'text': 'half of it'}]
    os.close(target)
    assert list(lists) == []


def test_an_object_keeps_its_keys_and_an_empty_line_is_an_empty_row():
  rows = [{'id': 7, 'text': 'a'}, {}, {'text': None, 'more': [1]}]
  content = '\n'.join(json.dumps(row) if row else '' for row in rows)
  assert read_lines(content.encode(), is_json=True) == rows


@pytest.mark.parametrize(
  ('content', 'is_json', 'message'),
  [
    (b'a\nb\xff\n', False, 'F row 2 is not UTF-8'),
    (b'{"text": "a"}\n{"text"\n', True, 'F row 2 is not JSON'),
    (b'[1]\n', True, r'F row 1 is not a JSON object: \[1\]; correct it'),
  ],
)
def test_a_row_that_cannot_be_read_is_named(content, is_json, message):
  with pytest.raises(UserError, match=message):
    read_lines(content, is_json)


ROWS = [{'id': '07', 'text': 'a, b'}, {'id': '08', 'text': 'say "c"'}]
COMMAS = 'id,text\n07,"a, b"\n08,"say ""c"""\n'
TABS = 'id\ttext\n07\ta, b\n08\tsay "c"\n'


@pytest.mark.parametrize(
  ('kind', 'content', 'options'),
  [
    ('csv', COMMAS, {'format': 'hub'}),
    ('csv', COMMAS, {'delimiter': 'tab'}),
    ('csv', COMMAS, {'delimiter': 'comma', 'quoted': True}),
    ('csv', COMMAS.replace(',', ';').replace('a;', 'a,'),
     {'delimiter': 'semicolon', 'quoted': True}),
    ('tsv', TABS, {'format': 'json'}),
    ('tsv', TABS, {'delimiter': 'comma', 'quoted': True}),
  ],
)  # fmt: skip
def test_a_table_is_read_as_those_of_the_run_or_by_its_kind(
  kind, content, options, tmp_path
):
  path = tmp_path / 'new'
  path.write_text(content)
  lists = input_rows.of_table(Text(**options), str(path), kind, 2)
  assert list(lists) == [ROWS]


def test_columns_of_a_table_without_a_header_are_numbers(tmp_path):
  options = Text(header=False, text_columns=(1,))
  (tmp_path / 'a').write_text('7\tone\n\n8\ttwo\n')
  lists = input_rows.of_table(options, str(tmp_path / 'a'), 'tsv', 2)
  assert list(lists) == [[{'0': '7', '1': 'one'}, {}], [{'0': '8', '1': 'two'}]]


def test_a_parquet_file_keeps_all_columns(tmp_path):
  rows = [{'id': n, 'text': f'text {n}'} for n in range(5)]
  parquet.write_table(pa.Table.from_pylist(rows), tmp_path / 'a')
  lists = list(input_rows.of_table(Text(), str(tmp_path / 'a'), 'parquet', 3))
  assert lists == [rows[:3], rows[3:]]


def test_the_text_of_a_row_is_that_of_its_columns():
  row = {'title': 'a', 'body': None, 'id': 3}
  assert input_rows.text_of(row, ('title', 'body'), 'row 1') == 'a '
  assert input_rows.text_of({}, ('title',), 'row 1') == ''
  with pytest.raises(UserError, match=r"F row 2 has no 'text' but \['body'"):
    input_rows.text_of(row, ('text',), 'F row 2')


@pytest.mark.parametrize(
  ('name', 'kind'),
  [('a.jsonl', 'json'), ('a.b.tsv', 'tsv'), ('a.txt', 'lines'), ('', 'lines')],
)
def test_the_format_is_that_of_the_ending(name, kind):
  assert input_rows.format_of(name) == kind
