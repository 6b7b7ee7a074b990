"""The data of a run is deterministic and fixed by its workdir."""

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import encoding, loading
from experiments.data import problems as problems_lib
from experiments.data import rows as rows_lib
from experiments.data.labels import CLASSES
from experiments.data.rows import Row
from experiments.settings.settings import from_config


def test_loading_is_deterministic_and_writes_nothing(small_config, tmp_path):
  settings = from_config(small_config)
  one = loading.load(settings.data, str(tmp_path))
  other = loading.load(settings.data, str(tmp_path))
  assert one.files == other.files
  for split in one.splits:
    np.testing.assert_array_equal(
      one.splits[split].tokens, other.splits[split].tokens
    )
  assert list(tmp_path.iterdir()) == []


def test_texts_are_concatenated_with_64_bit_offsets(small_config):
  for split in loading.load(from_config(small_config).data, '').splits.values():
    assert split.starts.dtype == np.int64
    np.testing.assert_array_equal(
      split.starts[1:], (split.starts + split.lengths)[:-1]
    )
    assert split.starts[-1] + split.lengths[-1] < len(split.tokens)


def test_data_that_changed_under_a_workdir_is_refused(small_config, tmp_path):
  settings = from_config(small_config)
  for name, text in loading.load(settings.data, str(tmp_path)).files.items():
    (tmp_path / name).write_text(text)
  loading.load(settings.data, str(tmp_path))
  small_config.data.source = (
    'word_order(train_pairs=38, validation_pairs=11, test_pairs=13)'
  )
  changed = from_config(small_config)
  with pytest.raises(
    loading.UserError, match=r'the data has changed since .* was created'
  ):
    loading.load(changed.data, str(tmp_path))


# --- labels that train lacks -------------------------------------------------


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
OTHERS = {
  'validation': [('invoice invoice', 'billing'), ('crash crash', 'bug')],
  'test': [
    ('invoice 1 2', 'billing'),
    ('crash 2 1', 'bug'),
    ('0', 'other'),
    ('1', 'spam'),
    ('2', 'other'),
  ],
}


def test_a_label_that_train_lacks_is_refused_with_the_keys_to_change(tickets):
  with pytest.raises(UserError) as error:
    loading.load(tickets(train=TRAIN, **OTHERS), '')
  assert "test.tsv row 3: label 'other' is not one of" in str(error.value)
  for key in ("config.data.text.unknown_labels='drop'", 'data.text.labels'):
    assert key in str(error.value)


def test_rows_of_labels_that_train_lacks_are_dropped_on_request(
  tickets, capsys
):
  loaded = loading.load(
    tickets(train=TRAIN, unknown_labels='drop', **OTHERS), ''
  )
  assert [*loaded.label_facts.names] == ['billing', 'bug']
  assert {name: len(split) for name, split in loaded.splits.items()} == {
    'train': 15,
    'validation': 2,
    'test': 2,
  }
  (line,) = capsys.readouterr().err.splitlines()
  assert line == (
    'WARNING: test texts of unknown labels, dropped: 3 of 5 '
    "('other' 2, 'spam' 1)"
  )


def test_named_labels_choose_the_classes(tickets, capsys):
  splits = {'train': [*TRAIN, ('d', 'spam')], **OTHERS}
  wanted = ('bug', 'billing=money', 'other', 'spam')
  loaded = loading.load(tickets(labels=wanted, **splits), '')
  assert [*loaded.label_facts.names] == [
    'bug',
    'money',
    'other',
    'spam',
  ]
  capsys.readouterr()
  loaded = loading.load(
    tickets(labels=('bug', 'billing'), unknown_labels='drop', **splits), ''
  )
  assert len(loaded.splits['train']) == 15
  said = capsys.readouterr().err
  assert "train texts of unknown labels, dropped: 1 of 16 ('spam' 1)" in said
  assert 'test texts of unknown labels, dropped: 3 of 5' in said


def test_a_split_with_no_known_label_is_refused(tickets):
  splits = OTHERS | {'test': [('a', 'other')]}
  with pytest.raises(UserError, match='the test split is empty'):
    loading.load(tickets(train=TRAIN, unknown_labels='drop', **splits), '')


def test_labels_that_are_numbers_may_be_named_as_such(tickets):
  rows = [*numbered('no', 6, '0'), *numbered('yes', 6, '1')]
  splits = dict.fromkeys(('train', 'validation', 'test'), rows)
  loaded = loading.load(tickets(labels=(1, 0), **splits), '')
  assert loaded.label_facts.names == ('1', '0')


def test_labels_that_are_numbers_are_sorted_by_value(tickets):
  labels = ['10', '-1', '0.5', '2', 'b', 'a']
  rows = [row for label in labels for row in numbered(label, 2, label)]
  splits = dict.fromkeys(('train', 'validation', 'test'), rows)
  loaded = loading.load(tickets(**splits), '')
  assert [*loaded.label_facts.names] == ['-1', '0.5', '2', '10', 'a', 'b']


def test_labels_with_equals_signs_may_be_named(tickets):
  rows = [*numbered('a', 2, 'x=1'), *numbered('b', 2, 'x')]
  splits = dict.fromkeys(('train', 'validation', 'test'), rows)
  loaded = loading.load(tickets(labels=('x==1', 'x=no'), **splits), '')
  assert [*loaded.label_facts.names] == ['x=1', 'no']


def test_labels_that_are_shown_alike_are_one_class(tickets):
  rows = [*TRAIN, *numbered('typo', 3, 'bugs')]
  splits = dict.fromkeys(('train', 'validation', 'test'), rows)
  wanted = ('billing=money', 'bugs=bug', 'bug')
  loaded = loading.load(tickets(labels=wanted, **splits), '')
  assert [*loaded.label_facts.names] == ['money', 'bug']
  labels = loaded.splits['train'].labels
  np.testing.assert_array_equal(labels, [0] * 8 + [1] * 10)


def test_labels_that_are_all_shown_alike_are_too_few(tickets):
  splits = dict.fromkeys(('train', 'validation', 'test'), TRAIN)
  with pytest.raises(UserError, match=r"\['x'\].*data\.text\.label_column"):
    loading.load(tickets(labels=('billing=x', 'bug=x'), **splits), '')


def test_an_empty_train_split_names_the_fractions_to_lower(
  tickets, small_config
):
  tickets(train=TRAIN)
  small_config.data.text.test = ()
  small_config.data.test_fraction = 0.99
  with pytest.raises(UserError, match='the train split is empty') as error:
    loading.load(from_config(small_config).data, '')
  assert (
    'lower config.data.test_fraction or config.data.validation_fraction'
    in str(error.value)
  )


@pytest.mark.parametrize(
  'content', [b'', b'{"labels": [', b'\xff', b'[]', b'{"labels": []}']
)
def test_facts_that_are_broken_are_refused_with_their_path(content, tmp_path):
  path = tmp_path / 'data.json'
  path.write_bytes(content)
  with pytest.raises(UserError) as error:
    loading.read_facts(str(tmp_path))
  assert str(error.value).startswith(f'{path} is corrupt')
  assert '\n' not in str(error.value)


# --- another file ------------------------------------------------------------


@pytest.fixture
def workdir(tickets, tmp_path):
  """(settings, a folder with the facts and the vocabulary of a run)."""
  settings = tickets(train=TRAIN, **(OTHERS | {'test': OTHERS['test'][:2]}))
  folder = tmp_path / 'run'
  folder.mkdir()
  for name, text in loading.load(settings, '').files.items():
    (folder / name).write_text(text)
  return settings, str(folder)


def load_file(workdir, tmp_path, text, labels=CLASSES, **changed):
  (tmp_path / 'new.tsv').write_text(text)
  name = str(tmp_path / 'new.tsv')
  return loading.load_file(*workdir, name, changed, labels, 'error')


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
  with pytest.raises(UserError, match=r'data\.text\.format = .yaml. must be'):
    load_file(workdir, tmp_path, text, format='yaml')


def test_a_task_without_labels_reads_no_column_of_them(workdir, tmp_path):
  text = 'text\ncrash 1\ninvoice\n'
  loaded = load_file(workdir, tmp_path, text, labels=None)
  assert len(loaded.splits['test']) == 2
  with pytest.raises(UserError, match='label'):
    load_file(workdir, tmp_path, text)


def test_a_task_without_labels_leaves_out_those_of_lines(workdir, tmp_path):
  text = 'bug crash 1\nnew invoice\n'
  loaded = load_file(workdir, tmp_path, text, labels=None, format='lines')
  assert loaded.splits['test'].lengths.tolist() == [2, 1]


def test_another_file_that_is_missing_is_one_line_with_its_flag(
  workdir, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError) as error:
    loading.load_file(*workdir, 'gone.tsv', {}, CLASSES, 'error')
  assert str(error.value).startswith("--file = 'gone.tsv': ")
  assert 'config' not in str(error.value)


@pytest.mark.parametrize('unknown', ['error', 'drop'])
def test_class_folders_that_the_run_does_not_know_are_said(
  unknown, tickets, small_config, tmp_path, monkeypatch, capsys
):
  for label in ('bug', 'billing', 'spam'):
    (tmp_path / 'train' / label).mkdir(parents=True)
    for number in range(9):
      text = f'{label} {number}'
      (tmp_path / 'train' / label / str(number)).write_text(text)
  small_config.data.text.format = 'class_folders'
  small_config.data.text.train = ('train',)
  small_config.data.test_fraction = 0.2
  settings = tickets(labels=('bug', 'billing'))
  (tmp_path / 'run').mkdir()
  for name, text in loading.load(settings, '').files.items():
    (tmp_path / 'run' / name).write_text(text)
  monkeypatch.chdir(tmp_path)
  load = lambda: loading.load_file(  # noqa: E731
    settings, 'run', 'train', {}, CLASSES, unknown
  )
  if unknown == 'error':
    with pytest.raises(UserError, match=r"'spam' is not.*9 of 27.*unknown_lab"):
      load()
    return
  capsys.readouterr()
  assert len(load().splits['test']) == 18
  assert "dropped: 9 of 27 ('spam' 9)" in capsys.readouterr().err


def test_another_file_of_a_run_of_generated_data_is_refused(
  small_config, workdir, tmp_path
):
  small_config.data.source, small_config.data.dir = 'word_order', ''
  generated = from_config(small_config).data
  with pytest.raises(UserError, match=r'--file=.*word_order'):
    load_file((generated, workdir[1]), tmp_path, 'a b')


def test_data_in_no_folder_has_not_moved(small_config):
  with pytest.raises(UserError, match=r'--data_dir=x .*word_order'):
    from_config(small_config).data.moved_to('x')


# --- probable mistakes -------------------------------------------------------


def rows_of(*pairs, file='f.tsv'):
  return [Row(*pair, file, number) for number, pair in enumerate(pairs, 1)]


CLEAN = {
  'train': rows_of(*TRAIN),
  'validation': rows_of(*OTHERS['validation'], file='v.tsv'),
  'test': rows_of(*OTHERS['test'][:2], file='t.tsv'),
}
LABELS = ['billing', 'bug']


def problems(splits, labels):
  rows = rows_lib.gather(splits)
  return problems_lib.problems(rows, rows.splits(), labels)


def test_clean_rows_have_no_problem():
  assert problems(CLEAN, LABELS) == []


def test_empty_texts_are_a_problem():
  pairs = [('', 'bug'), *TRAIN, (' \t', 'bug'), ('', 'billing'), ('', 'bug')]
  dirty = CLEAN | {'train': rows_of(*pairs)}
  found = problems(dirty, LABELS)
  assert found[0] == (
    'empty train texts: 4 of 19 (f.tsv:1, f.tsv:17, f.tsv:18, ...)'
  )
  dirty = CLEAN | {'test': rows_of(*OTHERS['test'][:2], ('', 'bug'))}
  assert problems(dirty, LABELS) == ['empty test texts: 1 of 3 (f.tsv:3)']


def test_equal_texts_with_different_labels_are_a_problem():
  """In any splits; equal texts with equal labels are no problem."""
  more = [('invoice 3', 'bug'), ('same', 'bug'), ('same', 'bug')]
  dirty = CLEAN | {
    'train': rows_of(*TRAIN, *more),
    'test': rows_of(*OTHERS['test'][:2], ('crash 0', 'billing'), file='t.tsv'),
  }
  assert problems(dirty, LABELS)[-1] == (
    'equal texts with different labels: 4 rows of 2 texts '
    "(f.tsv:4 'billing', f.tsv:16 'bug', f.tsv:9 'bug', ...)"
  )


def test_texts_of_other_splits_that_are_also_in_train_are_a_problem():
  """Equal but for case, space and Unicode normal form."""
  rows = rows_of(
    ('CRASH  3', 'bug'),
    ('crash 30', 'bug'),
    ('', 'bug'),
    ('cafe\u0301', 'billing'),
    file='v.tsv',
  )
  train = rows_of(*TRAIN, ('caf\u00e9', 'billing'), ('', 'bug'))
  found = problems(CLEAN | {'train': train, 'validation': rows}, LABELS)
  assert (
    'validation texts also in train (equal but for case and space): '
    '2 of 4 (v.tsv:1, v.tsv:4)'
  ) in found
  assert not any('test texts' in line for line in found)


def test_texts_of_test_that_are_also_in_validation_are_a_problem():
  test = rows_of(*OTHERS['test'][:2], ('Crash crash', 'bug'), file='t.tsv')
  assert problems(CLEAN | {'test': test}, LABELS) == [
    'test texts also in validation (equal but for case and space): '
    '1 of 3 (t.tsv:3)'
  ]


def test_labels_that_differ_by_case_or_space_are_a_problem():
  more = [*numbered('late', 6, 'Bug '), *numbered('later', 5, 'bill ing')]
  splits = {
    split: [*rows, *rows_of(('x', 'Bug '), ('y', 'bill ing'), file='o.tsv')]
    for split, rows in CLEAN.items()
  }
  splits['train'] = rows_of(*TRAIN, *more)
  names = ['Bug ', 'bill ing', 'billing', 'bug', 'other']
  assert problems(splits, names)[1] == (
    "labels that differ only by case or space: 4 of 5 ('Bug ' 6: f.tsv:16, "
    "f.tsv:17, f.tsv:18, ...; 'bug' 7: f.tsv:9, f.tsv:10, f.tsv:11, ...; "
    "'bill ing' 5: f.tsv:22, f.tsv:23, f.tsv:24, ...; ...)"
  )


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


def test_classes_with_few_examples_are_a_problem():
  names = ['bag', *LABELS, 'bugs']
  pairs = [*TRAIN, *numbered('e', 4, 'bugs'), ('g', 'bag')]
  dirty = {
    'train': rows_of(*pairs),
    **{
      split: [
        *CLEAN[split],
        *rows_of((f'{split} g', 'bag'), (f'{split} e', 'bugs')),
      ]
      for split in ('validation', 'test')
    },
  }
  assert problems(dirty, names) == [
    "classes with fewer than 5 train texts: 2 of 4 ('bag' 1: f.tsv:20; "
    "'bugs' 4: f.tsv:16, f.tsv:17, f.tsv:18, ...)"
  ]


def test_classes_missing_from_a_split_are_a_problem():
  dirty = CLEAN | {'test': rows_of(('a', 'bug'))}
  assert problems(dirty, [*LABELS, 'late']) == [
    "classes without train texts: 1 of 3 ('late')",
    "classes without validation texts: 1 of 3 ('late')",
    "classes without test texts: 2 of 3 ('billing', 'late')",
  ]
  *_, last = problems(CLEAN, [*LABELS, *'abcd'])
  assert last == "classes without test texts: 4 of 6 ('a', 'b', 'c', ...)"


def test_problems_are_warned_of_once_a_workdir(tickets, tmp_path, capsys):
  splits = OTHERS | {'test': OTHERS['test'][:2]}
  settings = tickets(train=[*TRAIN, ('', 'bug')], **splits)
  files = loading.load(settings, str(tmp_path)).files
  assert capsys.readouterr().err == (
    f'WARNING: empty train texts: 1 of 16 ({tmp_path}/train.tsv:16)\n'
  )
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  loading.load(settings, str(tmp_path))
  assert capsys.readouterr().err == ''


def test_generated_data_has_no_problem(small_config, capsys):
  for name in ('word_order', 'algorithmic'):
    small_config.data.source = name
    loading.load(from_config(small_config).data, '')
  assert 'WARNING' not in capsys.readouterr().err
