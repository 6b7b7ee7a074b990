"""Every format of labelled text is read exactly, or refused with the row."""

import os
import re
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs import length_generalization
from experiments.command.errors import UserError
from experiments.data import (
  algorithmic,
  datasets,
  file_records,
  selection,
  strings,
  word_order,
)
from experiments.data import rows as rows_lib
from experiments.data.rows import Row
from experiments.data.text_files import Text
from experiments.settings.settings import from_config
from tests.conftest import ROOT

# --- word_order --------------------------------------------------------------

SMALL = datasets.WordOrder(60, 20, 30)


def test_twins_are_adjacent_with_the_same_words_and_the_other_label():
  for rows in SMALL.read('', 3).values():
    for one, other in zip(rows[0::2], rows[1::2], strict=True):
      assert sorted(one.text.split()) == sorted(other.text.split())
      assert one.text != other.text
      assert (one.label, other.label) == ('positive', 'negative')


@pytest.mark.parametrize('seed', range(3))
def test_no_sentence_is_in_two_splits_or_twice_in_one(seed):
  splits = SMALL.read('', seed)
  texts = [row.text for rows in splits.values() for row in rows]
  assert len(texts) == len(set(texts)) == 2 * (60 + 20 + 30)
  assert {name: len(rows) for name, rows in splits.items()} == {
    'train': 120,
    'validation': 40,
    'test': 60,
  }


def test_sentences_depend_on_the_seed_alone():
  assert SMALL.read('', 1) == SMALL.read('', 1)
  assert SMALL.read('', 1) != SMALL.read('', 2)


def mood(text):
  good = any(word in text.split() for word in word_order._GOOD)
  bad = any(word in text.split() for word in word_order._BAD)
  assert good != bad
  return 'positive' if good else 'negative'


def test_the_deciding_clause_decides():
  """The label is derived from the sentence, without the grammar."""
  joins = {'although': 0, 'even though': 0, 'but': 1, 'yet': 1, 'still': 1}
  for row in SMALL.read('', 0)['train']:
    if row.text.startswith('although '):
      deciding = row.text.split(' , ')[1]
    else:
      (join,) = re.findall('but|yet|even though|although|still', row.text)
      deciding = row.text.split(join)[joins[join]]
    assert mood(deciding) == row.label


# --- algorithmic --------------------------------------------------------------


def exact(task, text):
  """The label, computed from the text by another algorithm."""
  tokens = text.split()
  if task == 'even_pairs':
    return 'yes' if tokens[0] == tokens[-1] else 'no'
  if task == 'parity':
    return 'yes' if len(re.findall('b', text)) % 2 == 0 else 'no'
  if task == 'cycle_navigation':
    place = 0
    for token in tokens:
      place = (place + {'f': 1, 'b': 4, 's': 0}[token]) % 5
    return str(place)
  if task.startswith('modular_arithmetic'):
    return str(eval(''.join(tokens)) % 5)
  if task == 'solve_equation':
    left, right = ''.join(tokens).split('=')
    fits = [
      x for x in range(5) if eval(left.replace('x', str(x))) % 5 == int(right)
    ]
    assert len(fits) == 1
    return str(fits[0])
  if task == 'missing_duplicate':
    half = len(tokens) // 2
    place = tokens.index('_')
    return tokens[(place + half) % (2 * half)]
  if task == 'flip_flop':
    memory = None
    for instruction, bit in re.findall(r'([wi]) ([01])', text):
      memory = bit if instruction == 'w' else memory
    assert re.match('w .* r', text)
    return memory
  if task == 'indirect_indexing':
    string, name, sign, distance = re.fullmatch(
      r'([a-dP-S ]+) ; ([P-S]) ([<>])(\d+)', text
    ).groups()
    assert sorted(re.findall('[P-S]', string)) == list('PQRS')
    place = string.split().index(name)
    step = int(distance) if sign == '>' else -int(distance)
    return string.split()[place + step]
  if task == 'associative_recall':
    pairs = dict(re.findall(r'(k\d+) ([a-d])', text))
    assert len(pairs) == len(re.findall(r'k\d+', text)) - 1
    return pairs[tokens[-1]]
  assert task == 'a_before_b'
  assert tokens.count('a') == tokens.count('b') == 1
  return 'yes' if text.index('a') < text.index('b') else 'no'


@pytest.mark.parametrize('name', algorithmic.ALGORITHMS)
def test_labels_of_every_task_by_another_way(name):
  source = datasets.Algorithmic(name, 300, 60, 80, 20, 50)
  splits = source.read('', 1)
  assert {split: len(rows) for split, rows in splits.items()} == {
    'train': 300,
    'validation': 60,
    'test': 80,
  }
  task = algorithmic.ALGORITHMS[name]
  for split, rows in splits.items():
    for row in rows:
      assert row.label == exact(name, row.text)
      assert row.label in task.labels
      length = len(row.text.split())
      assert length <= 20 if split != 'test' else 21 <= length <= 50
  everything = {row.text for row in splits['train']}
  assert not everything & {row.text for row in splits['validation']}
  assert {row.label for row in splits['train']} == set(task.labels)
  lengths = {len(row.text.split()) for row in splits['train']}
  assert len(lengths) > 7
  assert source.read('', 1) == splits
  assert source.read('', 2) != splits


@pytest.mark.parametrize('name', algorithmic.ALGORITHMS)
def test_tasks_are_order_sensitive_as_declared(name):
  """Sorting the tokens of a text changes some label, or none."""
  task = algorithmic.ALGORITHMS[name]
  rng = np.random.default_rng(0)
  by_bag = {}
  lengths = (10, 11) if task.twin else (6, 7)
  for text, label in strings.strings(task, rng, lengths, 3_000):
    by_bag.setdefault(tuple(sorted(text.split())), set()).add(label)
  assert task.is_order_sensitive == any(len(s) > 1 for s in by_bag.values())


TWINS = [name for name, task in algorithmic.ALGORITHMS.items() if task.twin]


@pytest.mark.parametrize('name', TWINS)
def test_twins_have_the_same_tokens_and_other_labels(name):
  rows = datasets.Algorithmic(name, 40, 10, 40).read('', 0)['test']
  for one, other in zip(rows[0::2], rows[1::2], strict=True):
    assert sorted(one.text.split()) == sorted(other.text.split())
    assert one.label != other.label


def bag_of_words_share(counts):
  """Best share of right answers from the counts of all labels in a string.

  The label v of a string is that of one of n places, all with the same
  probability, and that of its twin one of another content.
  """
  n = sum(counts.values())

  def probability(v):
    of_twin = sum(
      counts[u] / n * counts[v] / (n - counts[u]) for u in counts if u != v
    )
    return (counts[v] / n + of_twin) / 2

  return max(map(probability, counts))


@pytest.mark.parametrize('name', ['associative_recall', 'indirect_indexing'])
def test_what_a_bag_of_words_can_reach_is_as_the_page_says(name):
  config = length_generalization.get_config()
  config.data.source = length_generalization.strings(name)
  rows = from_config(config).data.dataset().read('', 0)
  shown = {}
  for split in ('test', 'validation'):
    texts = (row.text.partition(';')[0].split() for row in rows[split])
    counts = [Counter(t for t in text if t in 'abcd') for text in texts]
    shown[split] = f'{np.mean(list(map(bag_of_words_share, counts))):.2f}'
  page = (ROOT / 'docs/positions.md').read_text()
  known = f'{shown["test"]} ({shown["validation"]}) on `{name}`'
  assert known in ' '.join(page.split())


@pytest.mark.parametrize('n', [5, 9])
def test_what_the_last_step_of_a_flip_flop_tells(n):
  task, rng = algorithmic.ALGORITHMS['flip_flop'], np.random.default_rng(0)
  length = 2 * n + 1
  right = []
  for text, label in strings.strings(task, rng, (length, length), 4_000):
    *_, write, bit, _ = text.split()
    right.append((bit == label) == (write == 'w'))
  np.testing.assert_allclose(np.mean(right), 1 / 2 + 1 / n, atol=0.02)


def test_the_last_write_of_a_flip_flop_is_anywhere():
  task, rng = algorithmic.ALGORITHMS['flip_flop'], np.random.default_rng(0)
  last = [
    text.split()[0::2][:-1][::-1].index('w')
    for text, _ in strings.strings(task, rng, (17, 17), 4_000)
  ]
  shares = np.bincount(last, minlength=8) / len(last)
  np.testing.assert_allclose(shares, 1 / 8, atol=0.03)


# --- files -------------------------------------------------------------------


def read(folder, **options):
  data = Text(**options)
  data.check(str(folder))
  rows = data.read(str(folder), 0)
  return {split: list(found) for split, found in rows.items()}


def pairs(rows):
  return [(row.text, row.label) for row in rows]


TEXTS = ['None', 'NA', 'null', '"', 'say "no"', 'a, b', ' x ', "it's 01", '']


def test_tab_separated_texts_are_read_to_the_letter(tmp_path):
  lines = ['text\tlabel', *(f'{text}\t01' for text in TEXTS)]
  (tmp_path / 'train.tsv').write_text('\n'.join(lines) + '\n')
  rows = read(tmp_path)['train']
  assert pairs(rows) == [(text, '01') for text in TEXTS]
  assert rows[2] == Row('null', '01', str(tmp_path / 'train.tsv'), 3)


def test_quoted_commas_without_a_header(tmp_path):
  (tmp_path / 'a.csv').write_text(
    '"3","a ""b"", c","d\ne"\n"1",plain,f\n', encoding='utf-8'
  )
  rows = read(
    tmp_path,
    train=('a.csv',),
    delimiter='comma',
    quoted=True,
    header=False,
    text_columns=('1', '2'),
    label_column='0',
    labels=('1=world', '3'),
  )['train']
  assert pairs(rows) == [('a "b", c d\ne', '3'), ('plain f', 'world')]


TREC = 'DESC:manner How did it ?\nNUM:date When \xe9 ?\n'


@pytest.mark.parametrize(
  ('depth', 'labels'),
  [
    (0, ['DESC:manner', 'NUM:date']),
    (1, ['DESC', 'NUM']),
    (2, ['DESC:manner', 'NUM:date']),
  ],
)
def test_label_text_lines_with_parts_of_the_label(tmp_path, depth, labels):
  (tmp_path / 'TREC.train').write_bytes(TREC.encode('latin-1'))
  rows = read(
    tmp_path,
    format='lines',
    train=('TREC.train',),
    encoding='latin-1',
    label_depth=depth,
  )['train']
  assert [row.label for row in rows] == labels
  assert [row.text for row in rows] == ['How did it ?', 'When \xe9 ?']


def test_json_lines(tmp_path):
  (tmp_path / 'a.jsonl').write_text(
    '{"s": "one", "y": 1}\n{"s": "two", "y": 0}\n'
  )
  rows = read(
    tmp_path,
    format='json',
    train=('a.jsonl',),
    text_columns=('s',),
    label_column='y',
  )['train']
  assert pairs(rows) == [('one', '1'), ('two', '0')]


def test_parquet(tmp_path):
  table = pa.table({'text': ['one', 'two'], 'label': [1, 0]})
  pq.write_table(table, tmp_path / 'a.parquet')
  rows = read(tmp_path, format='parquet', train=('a.parquet',))['train']
  assert pairs(rows) == [('one', '1'), ('two', '0')]


def test_one_file_a_class_in_another_encoding(tmp_path):
  """Byte 0x85 is a line break in Unicode, but not in these files."""
  (tmp_path / 'neg').write_bytes(b'bad\x85 film\nworse\n')
  (tmp_path / 'pos').write_bytes(b'good\n')
  rows = read(
    tmp_path,
    format='class_files',
    train=('no=neg', 'yes=pos'),
    encoding='latin-1',
  )['train']
  assert pairs(rows) == [
    ('bad\x85 film', 'no'),
    ('worse', 'no'),
    ('good', 'yes'),
  ]


def test_one_folder_a_class(tmp_path):
  for label in ('pos', 'neg', 'unsup'):
    (tmp_path / 'train' / label).mkdir(parents=True)
    (tmp_path / 'train' / label / '0.txt').write_text(f'two\nlines {label}')
  options = {'format': 'class_folders', 'train': ('train',)}
  rows = read(tmp_path, **options, labels=('neg=bad', 'pos=good'))['train']
  assert pairs(rows) == [
    ('two\nlines neg', 'bad'),
    ('two\nlines pos', 'good'),
  ]
  assert len(read(tmp_path, **options)['train']) == 3


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
    UserError, match=r"split 'train': .*'one', 'two'.*hub_config"
  ):
    list(Text(**options).read('', 0)['train'])


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
  'lines': {'part-1': '1 a\n', 'part-2': '1 b\n'},
  'json': {
    'part-1': '{"text": "a", "label": 1}\n',
    'part-2': '{"text": "b", "label": 1}\n',
  },
  'class_files': {'part-1': 'a\n', 'part-2': 'b\n'},
  'class_folders': {'part-1/1/x': 'a', 'part-2/1/x': 'b'},
}


@pytest.mark.parametrize('split', ['train', 'validation', 'test'])
@pytest.mark.parametrize('format', [*PATTERNS, 'parquet'])
def test_every_format_and_split_takes_patterns(format, split, tmp_path):
  for name, content in PATTERNS.get(format, {}).items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
  if format == 'parquet':
    for number, text in enumerate('ab', 1):
      table = pa.table({'text': [text], 'label': [1]})
      pq.write_table(table, tmp_path / f'part-{number}')
  prefix = '1=' if format == 'class_files' else ''
  names = {'train': (f'{prefix}part-1',)} | {split: (f'{prefix}part-*',)}
  rows = read(tmp_path, format=format, **names)[split]
  assert pairs(rows) == [('a', '1'), ('b', '1')]


def test_a_pattern_that_matches_nothing_is_refused(tmp_path):
  (tmp_path / 'folder.csv').mkdir()
  (tmp_path / 'a.tsv').write_text('text\tlabel\na\t1\n')
  for split in ('train', 'validation', 'test'):
    names = {'train': ('a.tsv',)} | {split: ('*.csv',)}
    with pytest.raises(UserError, match=rf'text\.{split} .*csv.* matches no'):
      read(tmp_path, **names)


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


@pytest.mark.parametrize('format', [*PATTERNS, 'parquet'])
@pytest.mark.parametrize('path', ['a::b/part', 'part::1', '.'])
def test_a_path_that_reads_as_a_chained_url_is_refused(
  format, path, tmp_path, monkeypatch
):
  """Also if the working directory of a relative path has such a name."""
  name = 'text=' * (format == 'class_files') + path
  folder = tmp_path
  if path == '.':
    folder = tmp_path / 'w::d'
    folder.mkdir()
    name = name.replace('.', 'part')
  monkeypatch.chdir(folder)
  place = folder / name.removeprefix('text=')
  place /= 'label/text' if format == 'class_folders' else ''
  place.parent.mkdir(parents=True, exist_ok=True)
  place.touch()
  wanted = r"::.*: '::' .*; rename it \(config\.data\.dir, text\.train\)"
  with pytest.raises(UserError, match=wanted):
    read('.', format=format, train=(name,))


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


BROKEN = {
  'no label': ('csv', 'text\tlabel\na\t1\nb\n', r'row 2: no text or no label'),
  'many fields': ('csv', 'text\tlabel\na\t1\na\t1\tb\n', r'row 2: 3 fields'),
  'of commas': ('csv', 'text,label\na,1\n', r'no column.*delimiter=comma'),
  'quoted': ('csv', 'text\tlabel\n"a\tb"\t1\n', r'row 1.*quoted=True'),
  'quoted header': (
    'csv',
    '"text"\t"label"\n"a"\t"1"\n',
    r"no column 'text'.*quoted=True",
  ),
  'no column': ('csv', 'txt\tlabel\na\t1\n', r"no column 'text' but .*txt"),
  'two columns': ('csv', 'text\tlabel\ttext\n', r"two columns 'text'"),
  'empty': ('csv', '', r"no column 'text'"),
  'bytes': ('csv', 'text\tlabel\na\t1\n\udce9\t2\n', r"row 2 .*'utf-8'"),
  'json': ('json', '{"text": "a", "label": 1}\n{"text": \n', r'row 2 is not J'),
  'json list': ('json', '[1]\n', r'row 1 is not a JSON object'),
  'json null': ('json', '{"text": "a", "label": null}\n', r'row 1: no text'),
  'json pair': (
    'json',
    '{"text": "\\ud83d", "label": 1}\n',
    r"row 1 .*'utf-8'",
  ),
  'lines': ('lines', '1 a\n\n', r'row 2: no text or no label'),
  'bytes of lines': ('lines', '1 a\n2 \udce9\n', r"row 2 .*'utf-8'"),
}


@pytest.mark.parametrize('name', BROKEN)
def test_broken_data_names_the_file_and_the_row(name, tmp_path):
  format, content, message = BROKEN[name]
  (tmp_path / 'a').write_text(content, errors='surrogateescape')
  with pytest.raises(UserError, match=message) as error:
    read(tmp_path, format=format, train=('a',))
  assert str(tmp_path / 'a') in str(error.value)


KEPT = {
  'a replacement character': ('csv', 'text\tlabel\na \ufffd\t1\nb\t2\n'),
  'no last field': ('csv', 'text\tlabel\tnote\na\t1\nb\t2\t3\n'),
  'an empty line': ('csv', 'text\tlabel\na\t1\n\nb\t2\n'),
  'a replacement character in JSON': (
    'json', '{"text": "\ufffd", "label": "1"}\n{"text": "b", "label": "2"}\n'
  ),
  'an empty line of JSON': (
    'json', '{"text": "a", "label": 1}\n\n{"label": 2, "more": 0, "text": ""}\n'
  ),
  'one in a line': ('lines', '1 \ufffd\n2 b\n'),
}  # fmt: skip


@pytest.mark.parametrize('name', KEPT)
def test_odd_rows_are_read_and_numbered(name, tmp_path):
  format, content = KEPT[name]
  (tmp_path / 'a').write_text(content)
  rows = read(tmp_path, format=format, train=('a',))['train']
  assert [(row.label, row.number) for row in rows] == [('1', 1), ('2', 2)]


@pytest.mark.parametrize('format', ['csv', 'json', 'lines'])
def test_truncated_zst_files_are_refused(format, tmp_path):
  module = pytest.importorskip(
    'zstandard', reason='the extra zst is not installed'
  )
  whole = module.compress(COMPRESSED[format].encode() * 9)
  for content in (whole[:-1], whole + whole[:9], b''):
    (tmp_path / 'a.txt.zst').write_bytes(content)
    with pytest.raises(UserError, match='truncated'):
      read(tmp_path, format=format, train=('a.txt.zst',))
  (tmp_path / 'a.txt.zst').write_bytes(whole + whole)
  options = {'format': format, 'train': ('a.txt.zst',)}
  assert len(read(tmp_path, **options)['train']) > 18


def test_a_long_text_is_read(tmp_path):
  (tmp_path / 'a').write_text(f'text\tlabel\n{"a" * 140_000}\t1\n')
  rows = read(tmp_path, train=('a',))['train']
  assert [len(row.text) for row in rows] == [140_000]


COMPRESSED = {
  'csv': 'text\tlabel\na\t1\nb\t2\n',
  'json': '{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n',
  'lines': '1 a\n2 b\n',
}


@pytest.mark.parametrize('end', ['gz', 'bz2', 'xz', 'zst'])
@pytest.mark.parametrize('format', COMPRESSED)
def test_compressed_files_are_read(format, end, tmp_path):
  module = pytest.importorskip(
    {'gz': 'gzip', 'xz': 'lzma', 'zst': 'zstandard'}.get(end, end),
    reason='the extra zst is not installed',
  )
  content = module.compress(COMPRESSED[format].encode())
  (tmp_path / f'a.txt.{end}').write_bytes(content)
  rows = read(tmp_path, format=format, train=(f'a.txt.{end}',))['train']
  assert pairs(rows) == [('a', '1'), ('b', '2')]


@pytest.mark.parametrize('format', COMPRESSED)
def test_zst_files_without_the_extra_say_what_to_install(
  format, tmp_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, 'zstandard', None)
  (tmp_path / 'a.txt.zst').write_bytes(b'')
  with pytest.raises(UserError, match=r'pip install zstandard$'):
    read(tmp_path, format=format, train=('a.txt.zst',))


CORRUPT = {
  'lines': ('a.zip', b'no archive'),
  'class_files': ('1=a.xz', b'no archive'),
  'csv': ('a.bz2', b'no archive'),
  'json': ('a.json', b'no table'),
  'parquet': ('a.parquet', b'no table'),
}


@pytest.mark.parametrize('format', CORRUPT)
def test_a_corrupt_file_is_named_in_one_line(format, tmp_path):
  name, content = CORRUPT[format]
  path = tmp_path / name.rpartition('=')[2]
  path.write_bytes(content)
  line = re.escape(f'{path}: cannot read this train file: ') + '.+'
  with pytest.raises(UserError, match=f'^{line}$'):
    read(tmp_path, format=format, train=(name,))


NUMBERED = {'text_columns': ('0',), 'label_column': '1'}
MARKED = {
  'a header': ('csv', 'text\tlabel\na\t1\n', {}),
  'a quoted header': ('csv', '"text"\t"label"\n"a"\t"1"\n', {'quoted': True}),
  'a table': ('csv', 'a\t1\n', {'header': False, **NUMBERED}),
  'a quoted table': (
    'csv',
    '"a"\t"1"\n',
    {'header': False, 'quoted': True, **NUMBERED},
  ),
  'lines': ('lines', '1 a\n', {}),
  'json': ('json', '{"text": "a", "label": 1}\n', {}),
  'class_files': ('class_files', 'a\n', {'train': ('1=a/1/x',)}),
  'class_folders': ('class_folders', 'a', {'train': ('a',)}),
}


@pytest.mark.parametrize('encoding', ['utf-8', 'UTF8', 'utf-8-sig'])
@pytest.mark.parametrize('name', MARKED)
def test_a_byte_order_mark_is_no_text(name, encoding, tmp_path):
  format, content, options = MARKED[name]
  (tmp_path / 'a' / '1').mkdir(parents=True)
  (tmp_path / 'a' / '1' / 'x').write_text(content, encoding='utf-8-sig')
  options = {'train': ('a/1/x',), 'encoding': encoding, **options}
  rows = read(tmp_path, format=format, **options)['train']
  assert pairs(rows) == [('a', '1')]


def test_quoting_is_suggested_only_for_quoted_fields(tmp_path):
  for line in ('say "no"\t1\t2', '"no\t1\t2', 'a\t1\t"'):
    (tmp_path / 'a').write_text(f'text\tlabel\n{line}\n')
    with pytest.raises(UserError, match='row 1: 3 fields') as error:
      read(tmp_path, train=('a',))
    assert 'quoted' not in str(error.value)
  (tmp_path / 'a').write_text('"text"\t"label"\n"a"\t"1"\n')
  assert pairs(read(tmp_path, train=('a',), quoted=True)['train'])


@pytest.mark.parametrize(
  ('line', 'message'),
  [('"b\t2\n', 'unexpected end'), ('"b" c\t2\n', 'line 3: .* expected')],
)
def test_a_quote_that_is_open_or_inside_a_field_is_refused(
  line, message, tmp_path
):
  (tmp_path / 'a').write_text(f'text\tlabel\na\t1\n{line}')
  with pytest.raises(UserError, match=message):
    read(tmp_path, train=('a',), quoted=True)


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
  monkeypatch.setattr(file_records, 'read', None)
  with pytest.raises(UserError, match=message):
    read(tmp_path, **options)


def test_a_missing_folder_is_refused_where_it_is_read(tmp_path):
  with pytest.raises(UserError, match=r'data\.dir = .*gone.* is not a folder'):
    read(tmp_path / 'gone')


# --- real data, if available -------------------------------------------------

REAL = {
  'trec': ({'train': 5_452, 'test': 500}, 6),
  'sst2': ({'train': 67_349, 'test': 872}, 2),
  'sst2_sentences': ({'train': 6_920, 'validation': 872, 'test': 1_821}, 2),
  'mr': ({'train': 10_662}, 2),
  'r8': ({'train': 5_485, 'test': 2_189}, 8),
}
FOLDERS = {'sst2': 'sst2_glue', 'sst2_sentences': 'sst2_sentence'}


@pytest.mark.parametrize('name', REAL)
def test_published_counts(name):
  root = os.environ.get('SELFATTN_DATA')
  if not root:
    pytest.skip('set SELFATTN_DATA to a folder of the real data sets')
  from conftest import ROOT

  from experiments.command import app

  config = app.load_config(str(ROOT / f'configs/{name}.py'))
  text = {key: value for key, value in config.data.text.items()}
  rows = read(os.path.join(root, FOLDERS.get(name, name)), **text)
  counts, classes = REAL[name]
  assert {split: len(found) for split, found in rows.items()} == counts
  assert len({row.label for row in rows['train']}) == classes


def test_a_long_text_asks_for_no_distance_that_a_short_one_lacks():
  splits = datasets.Algorithmic('indirect_indexing', 3_000, 60, 900).read('', 0)
  words = {
    split: {word for row in rows for word in row.text.split()}
    for split, rows in splits.items()
  }
  assert words['test'] <= words['train']


@pytest.mark.parametrize('name', ['flip_flop', 'missing_duplicate'])
def test_lengths_that_a_task_lacks_are_refused_or_skipped(name):
  source = datasets.Algorithmic(name, 20, 10, 20, 13, 15)
  source.check('')
  assert source.read('', 0)['test']
  with pytest.raises(UserError, match='at least 2 more than config'):
    datasets.Algorithmic(name, 20, 10, 20, 13, 14).check('')
