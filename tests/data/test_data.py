"""The data of a run is deterministic and fixed by its workdir."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import encoding, loading, selection
from experiments.data import rows as rows_lib
from experiments.data.labels import CLASSES, Classes
from experiments.data.rows import Row
from experiments.settings.settings import from_config


def write_files(loaded, folder):
  """What a run keeps of its data."""
  folder.mkdir(exist_ok=True)
  for name, text in loaded.files.items():
    (folder / name).write_text(text)


def test_data_is_deterministic_and_may_not_change_under_a_workdir(
  small_config, tmp_path
):
  settings = from_config(small_config)
  one = loading.load(settings.data, str(tmp_path))
  other = loading.load(settings.data, str(tmp_path))
  assert list(tmp_path.iterdir()) == []
  assert one.files == other.files
  for split, examples in one.splits.items():
    np.testing.assert_array_equal(examples.tokens, other.splits[split].tokens)
  write_files(one, tmp_path)
  loading.load(settings.data, str(tmp_path))
  small_config.data.source = (
    'word_order(train_pairs=38, validation_pairs=11, test_pairs=13)'
  )
  changed = from_config(small_config)
  with pytest.raises(UserError, match=r'the data has changed since .* was cr'):
    loading.load(changed.data, str(tmp_path))


# --- classes -----------------------------------------------------------------


@pytest.fixture
def tickets(small_config, tmp_path):
  """Writes tables of (text, label), one per split; returns their settings."""
  small_config.data.source = 'text'
  small_config.data.dir = str(tmp_path)

  def write(labels=(), unknown_labels='error', **splits):
    options = small_config.data.text
    options.labels, options.unknown_labels = labels, unknown_labels
    for split, rows in splits.items():
      lines = ['text\tlabel', *('\t'.join(row) for row in rows)]
      (tmp_path / f'{split}.tsv').write_text('\n'.join(lines) + '\n')
      options[split] = (f'{split}.tsv',)
    return from_config(small_config).data

  return write


def numbered(name, count, label):
  return [(f'{name} {number}', label) for number in range(count)]


TRAIN = [*numbered('invoice', 8, 'billing'), *numbered('crash', 7, 'bug')]
KNOWN = [('invoice 1 2', 'billing'), ('crash 2 1', 'bug')]
OTHERS = {
  'validation': [('invoice invoice', 'billing'), ('crash crash', 'bug')],
  'test': [*KNOWN, ('0', 'other'), ('1', 'spam'), ('2', 'other')],
}


@pytest.mark.parametrize(
  ('splits', 'options', 'said'),
  [
    (
      OTHERS, {},
      r"test.tsv row 3: label 'other' is not one of .*list all in "
      r"config.data.text.labels, or .*config.data.text.unknown_labels='drop'",
    ),
    (
      OTHERS | {'test': [('a', 'other')]}, {'unknown_labels': 'drop'},
      'the test split is empty',
    ),
    (
      OTHERS | {'test': KNOWN}, {'labels': ('billing=x', 'bug=x')},
      r"\['x'\].*data\.text\.label_column",
    ),
  ],
)  # fmt: skip
def test_labels_that_cannot_be_classes_are_refused(
  splits, options, said, tickets
):
  with pytest.raises(UserError, match=said):
    loading.load(tickets(train=TRAIN, **splits, **options), '')


def test_an_empty_train_split_names_the_fractions_to_lower(
  tickets, small_config
):
  tickets(train=TRAIN)
  small_config.data.text.test = ()
  small_config.data.test_fraction = 0.99
  with pytest.raises(UserError, match=r'train split is empty.* or change '):
    loading.load(from_config(small_config).data, '')


def test_rows_of_other_labels_are_dropped_on_request(tickets, capsys):
  splits = {'train': [*TRAIN, ('d', 'spam')], **OTHERS}
  options = {'labels': ('bug', 'billing'), 'unknown_labels': 'drop'}
  loaded = loading.load(tickets(**splits, **options), '')
  sizes = [len(split) for split in loaded.splits.values()]
  assert sizes == [15, 2, 2]
  assert capsys.readouterr().err.splitlines() == [
    f'WARNING: {split} texts of unknown labels, dropped: {what}'
    for split, what in (
      ('train', "1 of 16 ('spam' 1)"),
      ('test', "3 of 5 ('other' 2, 'spam' 1)"),
    )
  ]


@pytest.mark.parametrize(
  ('labels', 'options', 'names'),
  [
    (['b', 'a'], (), ['a', 'b']),
    # Numbers by value, and named as such.
    (
      ['10', '-1', '0.5', '2', 'b', 'a'], (),
      ['-1', '0.5', '2', '10', 'a', 'b'],
    ),
    (['0', '1'], (1, 0), ['1', '0']),
    # By other names, with equals signs, and several as one.
    (['x=1', 'x'], ('x==1', 'x=no'), ['x=1', 'no']),
    (['a', 'b', 'bs'], ('a=money', 'bs=b', 'b'), ['money', 'b']),
    (['a', 'b'], ('b', 'a', 'other'), ['b', 'a', 'other']),
  ],
)  # fmt: skip
def test_names_and_order_of_classes(labels, options, names, tickets):
  rows = [row for label in labels for row in numbered(label, 2, label)]
  splits = dict.fromkeys(('train', 'validation', 'test'), rows)
  loaded = loading.load(tickets(labels=options, **splits), '')
  assert [*loaded.label_facts.names] == names


@pytest.mark.parametrize('content', [b'{"labels": [', b'\xff', b'[]', b'{}'])
def test_facts_that_are_broken_are_refused_with_their_path(content, tmp_path):
  path = tmp_path / 'data.json'
  path.write_bytes(content)
  with pytest.raises(UserError, match=f'^{path} (is|has) '):
    loading.read_facts(str(tmp_path))


# --- another file ------------------------------------------------------------


@pytest.fixture
def workdir(tickets, tmp_path):
  """(settings, a folder with the facts and the vocabulary of a run)."""
  settings = tickets(train=TRAIN, **(OTHERS | {'test': KNOWN}))
  write_files(loading.load(settings, ''), tmp_path / 'run')
  return settings, str(tmp_path / 'run')


def load_file(workdir, tmp_path, text, labels=CLASSES, **changed):
  (tmp_path / 'new.tsv').write_text(text)
  name = str(tmp_path / 'new.tsv')
  return loading.load_file(*workdir, name, changed, labels)


def test_another_file_has_the_classes_and_the_ids_of_the_run(workdir, tmp_path):
  text = 'label\ttext\nbug\tcrash 1\nbilling\tinvoice\n'
  loaded = load_file(workdir, tmp_path, text)
  assert [*loaded.label_facts.names] == ['billing', 'bug']
  assert loaded.splits['test'].labels.tolist() == [1, 0]
  batch = loaded.splits['test'].batch(np.arange(2), 2, 2)
  tokenizer = encoding.read_tokenizer(workdir[1])
  ids = [tokenizer.token_to_id(word) for word in ('crash', '1', 'invoice')]
  assert batch.tokens.tolist() == [ids[:2], [ids[2], 0]]


def test_another_file_may_have_another_format(workdir, tmp_path):
  text = '{"x": "crash 1", "y": "bug"}\n'
  changed = {'format': 'json', 'text_columns': 'x', 'label_column': 'y'}
  loaded = load_file(workdir, tmp_path, text, **changed)
  assert loaded.splits['test'].labels.tolist() == [1]
  with pytest.raises(UserError, match=r'data\.text\.format = .yaml. is not'):
    load_file(workdir, tmp_path, text, format='yaml')


def test_a_task_without_labels_reads_none_of_another_file(workdir, tmp_path):
  text = 'text\ncrash 1\ninvoice\n'
  loaded = load_file(workdir, tmp_path, text, labels=None)
  assert len(loaded.splits['test']) == 2
  with pytest.raises(UserError, match='label'):
    load_file(workdir, tmp_path, text)
  text = 'bug crash 1\nnew invoice\n'
  loaded = load_file(workdir, tmp_path, text, labels=None, format='lines')
  assert loaded.splits['test'].lengths.tolist() == [2, 1]


def test_labels_of_another_file_that_the_run_does_not_know(
  workdir, tmp_path, capsys
):
  text = 'text\tlabel\ncrash 1\tbug\n' + 'so\tugly\n' * 2
  with pytest.raises(
    UserError,
    match=r"new.tsv row 2: .*'ugly'.* 2 of 3 .*text.unknown_labels=drop",
  ):
    load_file(workdir, tmp_path, text)
  dropping = str(tmp_path / 'new.tsv'), {'unknown_labels': 'drop'}, CLASSES
  loaded = loading.load_file(*workdir, *dropping)
  assert len(loaded.splits['test']) == 1
  assert "dropped: 2 of 3 ('ugly' 2)" in capsys.readouterr().err
  (tmp_path / 'new.tsv').write_text('text\tlabel\nso\tugly\n')
  with pytest.raises(UserError, match='has no text of a label'):
    loading.load_file(*workdir, *dropping)


def test_another_file_that_cannot_be_is_one_line_with_its_flag(
  small_config, workdir, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=r"^--file = 'gone\.tsv': "):
    loading.load_file(*workdir, 'gone.tsv', {}, CLASSES)
  small_config.data.source, small_config.data.dir = 'word_order', ''
  generated = from_config(small_config).data
  with pytest.raises(UserError, match=r'--file=.*word_order'):
    load_file((generated, workdir[1]), tmp_path, 'a b')
  with pytest.raises(UserError, match=r'--data_dir=x .*word_order'):
    generated.moved_to('x')


# --- probable mistakes -------------------------------------------------------


def rows_of(*pairs, file='f.tsv'):
  return [Row(*pair, file, number) for number, pair in enumerate(pairs, 1)]


FILES = {'train': 'f.tsv', 'validation': 'v.tsv', 'test': 't.tsv'}
CLEAN = {'train': TRAIN, 'validation': OTHERS['validation'], 'test': KNOWN}
LATE = [*numbered('late', 6, 'Bug '), *numbered('later', 5, 'bill ing')]
ALIKE = [('x', 'Bug '), ('y', 'bill ing')]
# By what is wrong: splits, messages.
PROBLEMS = {
  'nothing': ({}, []),
  'empty texts': (
    {
      'train': [('', 'bug'), *TRAIN, (' \t', 'bug'), ('', 'billing')],
      'test': [*KNOWN, ('', 'bug')],
    },
    [
      'empty train texts: 3 of 18 (f.tsv:1, f.tsv:17, f.tsv:18)',
      'empty test texts: 1 of 3 (t.tsv:3)',
    ],
  ),
  'texts of one split in another, whatever case, space and normal form': (
    {
      'train': [*TRAIN, ('caf\u00e9', 'billing')],
      'validation': [
        ('CRASH  3', 'bug'), ('crash 30', 'bug'), ('cafe\u0301', 'billing'),
      ],
      'test': [*KNOWN, ('Crash 30', 'bug')],
    },
    [
      'validation texts also in train (equal but for case and space): 2 of 3 '
      '(v.tsv:1, v.tsv:3)',
      'test texts also in validation (equal but for case and space): 1 of 3 '
      '(t.tsv:3)',
    ],
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', PROBLEMS)
def test_what_is_probably_wrong_is_said_with_counts_and_rows(name):
  changed, messages = PROBLEMS[name]
  rows = rows_lib.gather(
    {
      split: rows_of(*pairs, file=FILES[split])
      for split, pairs in (CLEAN | changed).items()
    }
  )
  assert selection.problems(rows, rows.splits()) == messages


def test_two_labels_that_differ_by_white_space_are_named():
  (line,) = selection.alike(['a', 'b', 'b ', ' a', 'a b'])
  assert line.startswith("labels 'b' and 'b ' differ by white space only")
  assert selection.alike(['a', 'b']) == []


def test_classes_without_texts_are_named():
  values = {'train': np.array([0, 1, 1]), 'test': np.array([1])}
  assert selection.missing(values, ['billing', 'bug', 'late']) == [
    "classes without train texts: 1 of 3 ('late')",
    "classes without test texts: 2 of 3 ('billing', 'late')",
  ]


@dataclasses.dataclass(frozen=True)
class Polarity(Classes):
  """Classes of stars, as a reader of one's own may make them."""

  cut: ClassVar[str] = '3'

  def names(self, train):
    return ['high', 'low']

  def values(self, strings, names):
    shown = ['high' if string > self.cut else 'low' for string in strings]
    return super().values(shown, names)


def test_a_reader_of_ones_own_names_classes_and_is_never_stale(
  small_config, tmp_path, monkeypatch
):
  monkeypatch.setenv('SELFATTN_CACHE', str(tmp_path / 'cache'))
  lines = [f'word {n}\t{n % 5 + 1}' for n in range(60)]
  (tmp_path / 'train.tsv').write_text('\n'.join(['text\tlabel', *lines]))
  small_config.data.source, small_config.data.dir = 'text', str(tmp_path)
  small_config.data.test_fraction = 0.2
  settings = from_config(small_config).data
  counts = []
  for cut in '31':
    monkeypatch.setattr(Polarity, 'cut', cut)
    loaded = loading.load(settings, '', labels=Polarity())
    assert loaded.label_facts.names == ('high', 'low')
    counts.append(loaded.label_facts.counts[0])
  assert counts[1] > 1.5 * counts[0]


def test_many_unknown_tokens_are_said_with_a_vocabulary_without(
  tickets, small_config, capsys
):
  test = [('crash 0', 'bug'), ('invoice unheard', 'billing')]
  splits = {'train': TRAIN, 'validation': TRAIN, 'test': test}
  settings = tickets(**splits)
  loading.load(settings, '')
  said = capsys.readouterr().err
  assert 'unknown tokens of test: 1 of 4 (25%)' in said
  assert 'bpe' in said
  assert 'unknown tokens of validation' not in said
  small_config.data.vocabulary = 'bpe'
  loading.load(from_config(small_config).data, '')
  assert 'unknown tokens' not in capsys.readouterr().err


def test_problems_are_warned_of_once_a_workdir(tickets, tmp_path, capsys):
  splits = OTHERS | {'test': KNOWN}
  settings = tickets(train=[*TRAIN, ('', 'bug')], **splits)
  write_files(loading.load(settings, str(tmp_path)), tmp_path)
  assert capsys.readouterr().err == (
    f'WARNING: empty train texts: 1 of 16 ({tmp_path}/train.tsv:16)\n'
  )
  loading.load(settings, str(tmp_path))
  assert capsys.readouterr().err == ''
