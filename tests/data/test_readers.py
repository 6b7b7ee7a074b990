"""Every format is read to the letter, or refused with file, row and key."""

import bz2
import gzip
import io
import lzma
import re
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.command.errors import UserError
from experiments.data import text_format
from experiments.data.text_files import Text


def parquet(texts, labels=None, names=None):
  """The bytes of a Parquet file."""
  columns = {'other': [None] * len(texts), 'text': texts}
  table = pa.table(columns | ({'label': labels} if labels else {}))
  file = io.BytesIO()
  pq.write_table(table.rename_columns(names or table.column_names), file)
  return file.getvalue()


def written(encoding, content):
  return content.encode(encoding), {'encoding': encoding}


def read(folder, format, content, options):
  """(row number, text, label) of each row of a file."""
  content = content.encode() if isinstance(content, str) else content
  options = {'train': ('a',)} | options
  (folder / options['train'][0].rpartition('=')[2]).write_bytes(content)
  source = Text.of(format=format, **options)
  source.check(str(folder))
  rows = source.read(str(folder), 0)['train']
  return [(row.number, row.text, row.label) for row in rows]


LETTERS = ['None', 'NA', 'null', '"', 'say "no"', 'a, b', ' x ', "it's", 'nan']
TABLE = 'text\tlabel\na\t1\nb\t2\n'
AB = [(1, 'a', '1'), (2, 'b', '2')]
OBJECTS = '{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n'
DATES = '{"text": "2020-01-02", "label": "01"}\n{"text": 3, "label": "1"}\n'
# By what it is: format, content, options, rows.
ROWS = {
  # tables
  'strings of any letters': (
    'tsv', 'text\tlabel\n' + ''.join(f'{text}\t01\n' for text in LETTERS), {},
    [(n, text, '01') for n, text in enumerate(LETTERS, 1)],
  ),
  'quotes, commas and line breaks without a header': (
    'csv(header=False)', '"3","a ""b"", c","d\ne"\n"1",plain,f\n',
    {'text_columns': (1, 2), 'label_column': '0'},
    [(1, 'a "b", c d\ne', '3'), (2, 'plain f', '1')],
  ),
  'a table with CR LF': ('tsv', TABLE.replace('\n', '\r\n'), {}, AB),
  'a table with blank lines': (
    'tsv', '\n \n' + TABLE.replace('\nb', '\n\nb') + '\n\n', {},
    [(1, 'a', '1'), (3, 'b', '2')],
  ),
  'a table whose last fields are left out': (
    'tsv', 'text\tlabel\tnote\na\t1\nb\t2\t3\n', {}, AB
  ),
  'a table whose rows end with empty fields': (
    'tsv', 'text\tlabel\na\t1\t\nb\t2\t\t\n', {}, AB
  ),
  'names of other columns that are empty or repeated': (
    'tsv', '\t\tnote\tnote\ttext\tlabel\n0\t0\t0\t0\ta\t1\n', {},
    [(1, 'a', '1')],
  ),
  'an empty text': ('tsv', 'text\tlabel\n\t1\n', {}, [(1, '', '1')]),
  'a long text': (
    'tsv', f'text\tlabel\n{"a" * 140_000}\t1\n', {},
    [(1, 'a' * 140_000, '1')],
  ),
  'a table in utf-16': (
    'tsv', *written('utf-16', TABLE.replace('a\t', '€\t')),
    [(1, '€', '1'), (2, 'b', '2')],
  ),
  # a byte order mark is no text
  'a table with a mark': ('tsv', '\ufeff' + TABLE, {'encoding': 'UTF8'}, AB),
  'lines with a mark': (
    'lines', '\ufeff1 a\n', {'encoding': 'utf-8-sig'}, AB[:1]
  ),
  # lines
  'lines with spaces and tabs': (
    'lines', '1 a\tb \n2\tc d\r\n3  e\n4\n', {},
    [(1, 'a\tb ', '1'), (2, 'c d', '2'), (3, ' e', '3'), (4, '', '4')],
  ),
  'blank lines among lines': (
    'lines', '\n1 a\n\n2 b\n \n\n', {}, [(2, 'a', '1'), (4, 'b', '2')]
  ),
  'line breaks of Unicode are text': (
    'lines', '1 a\x85b\u2028c\x0cd\re\n', {},
    [(1, 'a\x85b\u2028c\x0cd\re', '1')],
  ),
  'parts of a label': (
    'lines', 'DESC:manner How ?\n', {'label_depth': 1}, [(1, 'How ?', 'DESC')]
  ),
  'lines in utf-16': ('lines', *written('utf-16', '1 €\n'), [(1, '€', '1')]),
  # class_files
  'a file of a class': (
    'class_files', b'bad\x85 film\n\nworse',
    {'train': ('no=a',), 'encoding': 'latin-1'},
    [(1, 'bad\x85 film', 'no'), (3, 'worse', 'no')],
  ),
  'a file of a class with an equals sign': (
    'class_files', 'a\n', {'train': ('x==1=a',)}, [(1, 'a', 'x=1')]
  ),
  # json
  'objects': ('json', OBJECTS, {}, AB),
  'objects with CR LF and blank lines': (
    'json', '\r\n' + OBJECTS.replace('\n', '\r\n\r\n'), {},
    [(2, 'a', '1'), (4, 'b', '2')],
  ),
  'an array': ('json', '[' + OBJECTS.strip().replace('\n', ',') + ']', {}, AB),
  'strings of JSON that look like something else': (
    'json', DATES, {}, [(1, '2020-01-02', '01'), (2, '3', '1')]
  ),
  'numbers and booleans as they are written': (
    'json',
    ''.join(
      f'{{"text": {value}, "label": {value}}}\n'
      for value in ('0', '0.0', '1.50', '1e5', '-0.0', 'true', 'false')
    ), {},
    [
      (n, value, value) for n, value in enumerate(
        ('0', '0.0', '1.50', '1e5', '-0.0', 'true', 'false'), 1)
    ],
  ),
  'columns that no one names, of any kind and in some rows only': (
    'json',
    '{"text": "a", "label": 1, "n": null}\n'
    '{"z": [{}], "label": 2, "text": "b"}',
    {}, AB,
  ),
  'JSON in utf-16': (
    'json', *written('utf-16', OBJECTS.replace('"a"', '"€"')),
    [(1, '€', '1'), (2, 'b', '2')],
  ),
  'a pair of surrogates': (
    'json', '{"text": "\\ud83d\\ude00", "label": 1}', {}, [(1, '😀', '1')]
  ),
  # parquet
  'a Parquet file': ('parquet', parquet(['a', 'b'], [1, 2]), {}, AB),
  **{
    f'floats of {bits} bits of Parquet': (
      'parquet', parquet(['a', 'b'], pa.array([0.1, 5], f'float{bits}')), {},
      [(1, 'a', '0.1'), (2, 'b', '5.0')],
    ) for bits in (16, 32, 64)
  },
  **{
    f'lists of floats of Parquet, {name}': (
      'parquet', parquet(['a'], pa.array([[0.1, 5]], kind)), {},
      [(1, 'a', '["0.1", "5.0"]')],
    ) for name, kind in {
      'short': pa.list_(pa.float32()), 'large': pa.large_list(pa.float32()),
      'fixed': pa.list_(pa.float32(), 2),
    }.items()
  },
  'numbers and booleans of Parquet': (
    'parquet', parquet([True, False], [1.0, 0.5]), {},
    [(1, 'true', '1.0'), (2, 'false', '0.5')],
  ),
  # labels
  'classes by other names': (
    'tsv', TABLE, {'labels': ('2=two', '1=one')},
    [(1, 'a', 'one'), (2, 'b', 'two')],
  ),
  'classes with equals signs': (
    'tsv', 'text\tlabel\na\tx=1\nb\t=\nc\t==\nd\te\n',
    {'labels': ('x==1', '===is', '====', 'e=y=2')},
    [(1, 'a', 'x=1'), (2, 'b', 'is'), (3, 'c', '=='), (4, 'd', 'y=2')],
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', ROWS)
def test_rows_are_read_to_the_letter(name, tmp_path):
  format, content, options, rows = ROWS[name]
  assert read(tmp_path, format, content, options) == rows


COLUMNS = '; .*config.data.text.label_column'
ENCODING = '.*; .*config.data.text.(format or )?encoding'
UNREADABLE = ' cannot be read as .*; .*config.data.text.format.*'
# By what is wrong: format, content, options, message after the path.
BROKEN = {
  'no label': ('tsv', TABLE + 'c\n', {}, ' row 3: 1 fields, but 2 columns.*'),
  'an empty label': ('tsv', 'text\tlabel\na\t\n', {}, ' row 1: the label .*'),
  'many fields': ('tsv', TABLE + 'a\t1\tb\n', {}, ' row 3: 3 f.*text.format.*'),
  'a table of commas': (
    'tsv', 'text,label\na,1\n', {},
    r" row 1: no column 'text' in \['text,label'\]; .*format.*text_columns",
  ),
  'no column': (
    'tsv', 'txt\tlabel\n', {},
    r" row 1: no column 'text' in \['txt', 'label'\]; did you mean txt\? .*"
    'text_columns',
  ),
  'two columns': (
    'tsv', 'text\tlabel\ttext', {},
    " row 1: two columns 'text' .*text_columns.*",
  ),
  'two columns of Parquet': (
    'parquet', parquet(['a'], ['b'], ['text', 'text', 'label']), {},
    " row 1: two columns 'text'; .*text_columns.*",
  ),
  'an empty table': ('tsv', '', {}, ' row 1: the file has no line; .*'),
  'a quote that is open': (
    'csv', TABLE.replace('\t', ',') + '"b,2\n', {},
    ' row 3 cannot be read as csv: unexpected end.*format.*',
  ),
  'bytes of a table': (
    'tsv', TABLE.encode() + b'c\xe9\t3\n', {},
    r" row 3: column 'text' is not 'utf-8': 'c\\udce9'" + ENCODING,
  ),
  'utf-16 in place of utf-8': (
    'tsv', TABLE.encode('utf-16'), {}, ' row 1: .*, the mark of UTF-16.*utf-16'
  ),
  'no JSON': (
    'json', OBJECTS + '{"text": \n' + OBJECTS, {}, ' row 3' + UNREADABLE
  ),
  'an array without a comma': (
    'json', '[{"text": "a", "label": 1} {"text": "b", "label": 2}]', {},
    ' row 1' + UNREADABLE,
  ),
  'a column of another case': (
    'json', '{"text": "a", "Label": 1}', {},
    r" row 1: no column 'label' in \['text', 'Label'\]; .* Label\? .*",
  ),
  'an empty object': (
    'json', OBJECTS + '{}', {}, r" row 3: no column 'text' in \[\]" + '; .*'
  ),
  'no object': ('json', OBJECTS + 'null', {}, ' row 3: not a JSON .* null;.*'),
  'half of a pair of surrogates': (
    'json', '{"text": "\\ud83d", "label": 1}\n', {},
    " row 1: column 'text' is not 'utf-8'" + ENCODING,
  ),
  'an object without a column': (
    'json', OBJECTS + '{"text": "a"}\n', {},
    r" row 3: no column 'label' in \['text'\]" + COLUMNS,
  ),
  **{
    f'{value} in JSON': (
      'json', OBJECTS + f'{{"text": "a", "label": {value}}}\n', {},
      f" row 3: column 'label' is {re.escape(shown)} and no string, .*"
      + COLUMNS,
    ) for value, shown in (
      ('null', 'null'), ('NaN', 'nan'), ('[null]', 'null'),
      ('[["b"]]', "['b']"),
      ('{"a": "b"}', "{'a': 'b'}"),
    )
  },
  **{
    f'{value} in Parquet': (
      'parquet', parquet(['a', 'b'], pa.array([value, value])), {},
      f" row 1: column 'label' is {re.escape(shown)} and no string, .*"
      + COLUMNS,
    ) for value, shown in (
      (None, 'null'), (float('nan'), 'nan'), (b'a', "b'a'"), ([None], 'null'),
      ([[1]], '[1]'),
      ({'a': 1}, "{'a': 1}"),
    )
  },
  'no column of Parquet': (
    'parquet', parquet(['a']), {},
    r" row 1: no column 'label' in \['other', 'text'\]; correct.*",
  ),
  **{
    f'no archive in {ending}': (
      'tsv', b'no archive', {'train': (f'a{ending}',)},
      ' row 1' + UNREADABLE,
    ) for ending in text_format.COMPRESSED
  },
}  # fmt: skip


@pytest.mark.parametrize('name', BROKEN)
def test_what_cannot_be_read_names_file_row_value_and_key(name, tmp_path):
  format, content, options, message = BROKEN[name]
  path = re.escape(str(tmp_path / options.get('train', 'a')[0]))
  with pytest.raises(UserError, match=f'^{path}{message}$'):
    read(tmp_path, format, content, options)


@pytest.mark.parametrize(
  ('content', 'has_hint'),
  [
    ('text\tlabel\n"a"\t1\n', True),
    ('text\tlabel\na\t"1"\n', True),
    ('text\tlabel\nb\t2\n"a ""b"""\t1\n', True),
    ('text\tlabel\nb\t2\n"a"\t1\n', False),
    ('text\tlabel\tnote\n"a" b\t1\t"c"\n"a" "b"\t1\t\n"\t2\t', False),
  ],
)
def test_quotes_that_are_read_as_text_are_said(
  content, has_hint, tmp_path, capsys
):
  read(tmp_path, 'tsv', content, {})
  assert (': quotes enclose' in capsys.readouterr().err) == has_hint
  read(tmp_path, 'tsv(quoted=True)', TABLE, {})
  assert capsys.readouterr().err == ''


COMPRESS = {
  '.gz': gzip.compress,
  '.bz2': bz2.compress,
  '.xz': lzma.compress,
  '.zst': lambda data: pa.compress(data, 'zstd', asbytes=True),
}


@pytest.mark.parametrize('ending', text_format.COMPRESSED)
@pytest.mark.parametrize(
  ('format', 'content'), [('tsv', TABLE), ('json', OBJECTS), ('lines', '1 a')]
)
def test_compressed_files_are_read_and_cut_ones_refused(
  format, content, ending, tmp_path
):
  options = {'train': (f'a{ending}',)}
  rows = read(tmp_path, format, content, {})
  data = COMPRESS[ending](content.encode())
  assert read(tmp_path, format, data, options) == rows
  with pytest.raises(UserError, match=rf'a\{ending} row . cannot be read'):
    read(tmp_path, format, data[:-1], options)


@pytest.mark.parametrize('ending', text_format.COMPRESSED)
def test_an_archive_in_a_compressed_file_is_no_text(ending, tmp_path):
  archive = COMPRESS[ending](b'a.csv'.ljust(257, b'\0') + b'ustar\x0000')
  with pytest.raises(UserError, match=r'row 1: .*, as tar: unpack it'):
    read(tmp_path, 'lines', archive, {'train': (f'a.tar{ending}',)})


ENDLESS = {
  'tsv': '{text}\t{n}\n', 'lines': '{n} {text}\n',
  'json': '{{"text": "{text}", "label": {n}}}\n',
}  # fmt: skip


@pytest.mark.parametrize('format', ENDLESS)
def test_memory_does_not_grow_with_the_rows(format, tmp_path):
  count, size = 4_000, 2_000
  rows = [ENDLESS[format].format(text='x' * size, n=n) for n in range(count)]
  begin = 'text\tlabel\n' * (format == 'tsv')
  (tmp_path / 'a').write_text(begin + ''.join(rows))
  del rows
  source = Text.of(format=format, train=('a',))
  tracemalloc.start()
  try:
    read_rows = sum(1 for _ in source.read(str(tmp_path), 0)['train'])
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert read_rows == count
  assert peak < count * size / 2
