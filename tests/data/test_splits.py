"""What is held out, and folds: stratified, disjoint, and of whole groups."""

import collections
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.data import loading, splits
from experiments.data import rows as rows_lib
from experiments.data.rows import Row
from experiments.settings import settings


def parted(cut, rows, *arguments):
  """(the rest, the part) of a list of rows."""
  columns = rows_lib.gather({'train': rows})
  parts = cut(columns, columns.splits()['train'], *arguments)
  return tuple([rows[index] for index in part] for part in parts)


def hold_out(rows, *arguments):
  return parted(splits.hold_out, rows, *arguments)


def fold(rows, *arguments):
  return parted(splits.fold, rows, *arguments)


def sentences(texts):
  """The sentence of each text."""
  sentence_of = splits.sentences(texts)
  return {text: texts[n] for text, n in zip(texts, sentence_of, strict=True)}


@pytest.mark.parametrize('seed', range(4))
def test_hold_out_is_stratified_and_keeps_equal_texts_together(seed):
  rng = np.random.default_rng(seed)
  rows = [
    Row(f'text {n}', 'ab'[n % 5 == 0], 'f', i + 1)
    for i, n in enumerate(rng.integers(0, 200, 300).tolist())
  ]
  rest, held_out = hold_out(rows, 0.2, seed)
  assert sorted(rest + held_out) == sorted(rows)
  assert not {r.text for r in rest} & {r.text for r in held_out}
  for label in 'ab':
    whole = {r.text for r in rows if r.label == label}
    part = {r.text for r in held_out if r.label == label}
    assert abs(len(part) - 0.2 * len(whole)) <= 0.5
  assert hold_out(rows, 0.2, seed) == (rest, held_out)
  assert hold_out(rows, 0.2, seed + 1) != (rest, held_out)


@pytest.mark.parametrize('grouping', splits.GROUPINGS)
def test_texts_that_differ_in_case_or_white_space_stay_together(grouping):
  rows = [
    Row(text, 'ab'[n % 2], 'f', 1)
    for n in range(50)
    for text in (f'text number {n}', f'Text  number {n} ')
  ]
  for index in range(5):
    rest, held_out = fold(rows, 5, index, 0, grouping)
    seen, unseen = (
      {' '.join(row.text.lower().split()) for row in part}
      for part in (rest, held_out)
    )
    assert len(held_out) == 20
    assert not seen & unseen


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  st.lists(st.integers(1, 30), min_size=1, max_size=8),
  st.floats(0.01, 0.9),
  st.integers(0, 3),
)
@hypothesis.example([5] * 1_000, 0.1, 0)
@hypothesis.example([15] * 1_000, 0.1, 0)
def test_each_class_has_its_share_rounded_up_or_down(sizes, fraction, seed):
  rows = [
    Row(f'{label} of {text}', str(label), 'f', 1)
    for label, size in enumerate(sizes)
    for text in range(size)
  ]
  _, part = hold_out(rows, fraction, seed)
  assert len(part) == round(fraction * len(rows))
  of_class = collections.Counter(row.label for row in part)
  shares = [fraction * size for size in sizes]
  counts = [of_class[str(label)] for label in range(len(sizes))]
  for share, count in zip(shares, counts, strict=True):
    assert math.floor(share) <= count <= math.ceil(share)
  assert hold_out(rows, fraction, seed)[1] == part
  # As near as rounding each class alone, where these have the right sum.
  rounded = [round(share) for share in shares]
  if sum(rounded) == len(part):
    assert counts == rounded


def drawn_rows(seed):
  rng = np.random.default_rng(seed)
  return [
    Row(f'text {n}', 'abc'[n % 7 % 3], 'f', i + 1)
    for i, n in enumerate(rng.integers(0, 150, 200).tolist())
  ]


@pytest.mark.parametrize('num_folds', [2, 3, 10])
def test_folds_are_disjoint_whole_stratified_and_as_large_as_each_other(
  num_folds,
):
  rows = drawn_rows(0)
  parts = [fold(rows, num_folds, index, 5) for index in range(num_folds)]
  assert sorted(row for _, part in parts for row in part) == sorted(rows)
  for rest, part in parts:
    assert sorted(rest + part) == sorted(rows)
    assert not {row.text for row in rest} & {row.text for row in part}
  texts = [{row.text for row in part} for _, part in parts]
  sizes = [len(of_fold) for of_fold in texts]
  assert max(sizes) - min(sizes) <= 1
  for label in 'abc':
    of_label = {row.text for row in rows if row.label == label}
    counts = [len(of_fold & of_label) for of_fold in texts]
    assert max(counts) - min(counts) <= 1


def test_folds_of_numbers_are_those_of_their_values():
  rows = [Row(f'text {n}', str(n), 'f', n) for n in (9, 10, 1, 100, 5, 20)]
  _, part = fold(rows, 3, 0, 0)
  assert sorted(int(row.label) for row in part) == [1, 10]


PHRASES = [
  'a fine film', 'the plot is thin', 'fine', 'plot is',
  'a fine film , with wit',
  'with wit', 'thin', 'a dull end', 'dull', 'is', 'wit wins', 'wit',
]  # fmt: skip


def sentences_of_all_phrases(texts):
  """By a table of all phrases of all sentences."""
  owner, sentence_of = {}, {}
  for text in sorted(texts, key=lambda t: -len(t.split())):
    words = text.split()
    sentence_of[text] = owner.setdefault(' '.join(words), text)
    if sentence_of[text] is text and len(words) <= 100:
      for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
          owner.setdefault(' '.join(words[start:end]), text)
  return sentence_of


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
  st.lists(
    st.lists(st.sampled_from(['a', 'b', 'c', ' ']), max_size=9).map(' '.join),
    min_size=1,
    max_size=40,
    unique=True,
  ),
)
@hypothesis.example(['', ' ', 'a'])
@hypothesis.example([' '.join('ab' * 51), ' '.join('ab' * 50), 'a b'])
def test_sentences_are_those_of_a_table_of_all_phrases(texts):
  sentence_of = splits.sentences(texts)
  expected = sentences_of_all_phrases(texts)
  assert [texts[n] for n in sentence_of] == [expected[text] for text in texts]


@pytest.mark.parametrize('split', [0.4, 2])
def test_a_sentence_and_its_phrases_are_on_one_side(split):
  rows = [Row(text, 'ab'[n % 2], 'f', n) for n, text in enumerate(PHRASES)]
  of = sentences(PHRASES)
  for seed in range(5):
    if split == 2:
      rest, part = fold(rows, 2, 0, seed, 'sentence')
    else:
      rest, part = hold_out(rows, split, seed, 'sentence')
    assert part
    assert not {of[r.text] for r in rest} & {of[r.text] for r in part}


def folds_config(tmp_path, **data):
  config = make_small_config()
  lines = ['label\ttext'] + [f'{"xy"[n % 2]}\tword {n}' for n in range(40)]
  (tmp_path / 'all.tsv').write_text('\n'.join(lines) + '\n')
  (tmp_path / 'test.tsv').write_text('label\ttext\nx\tnever read\n')
  config.data.source = 'text'
  config.data.dir = str(tmp_path)
  config.data.text.train = ('all.tsv',)
  config.data.text.test = ('test.tsv',)
  config.data.validation_fraction = 0.2
  config.data.update(data)
  return config


def test_a_fold_stands_for_test_and_validation_is_of_the_rest(tmp_path):
  counts = []
  for index in range(4):
    config = folds_config(tmp_path, num_folds=4, fold=index)
    loaded = loading.load(settings.from_config(config).data, '')
    counts.append({n: len(part.labels) for n, part in loaded.splits.items()})
  assert counts == [{'train': 24, 'validation': 6, 'test': 10}] * 4


def test_a_fold_without_texts_names_the_key_to_lower(tmp_path):
  config = folds_config(tmp_path, num_folds=100, fold=99)
  with pytest.raises(UserError, match='num_folds = 100'):
    loading.load(settings.from_config(config).data, '')


def test_classes_are_those_of_train_before_parts_are_held_out(tmp_path):
  """Also where a fold has the only text of a class."""
  lines = ['label\ttext'] + [f'x\tword {n}' for n in range(39)]
  for index in range(5):
    config = folds_config(tmp_path, num_folds=5, fold=index)
    (tmp_path / 'all.tsv').write_text('\n'.join([*lines, 'y\tthe one']) + '\n')
    loaded = loading.load(settings.from_config(config).data, '')
    assert [*loaded.label_facts.names] == ['x', 'y']
    assert loaded.splits['test'].labels.tolist().count(1) == (index == 4)


@pytest.mark.parametrize(
  ('data', 'said'),
  [
    ({'num_folds': 1}, 'data.num_folds = 1 must be at least 2, or 0'),
    ({'num_folds': 3, 'fold': 3}, 'data.fold = 3 must be less than'),
    ({'fold': 1}, 'data.fold = 1 must be 0 for config.data.num_folds = 0'),
    ({'num_folds': -2}, 'data.num_folds = -2 must be at least 0'),
    ({'num_folds': 2, 'test_fraction': 0.1}, 'data.test_fraction = 0.1 must'),
    (
      {'source': 'word_order', 'dir': '', 'num_folds': 5},
      'num_folds = 5 must be 0 for',
    ),
    ({'split_by': ''}, "data.split_by = '' must be 'text', 'sentence' or"),
  ],
)
def test_wrong_folds_are_one_line(data, said, tmp_path):
  with pytest.raises(UserError) as error:
    settings.from_config(folds_config(tmp_path, **data))
  assert said in str(error.value)
