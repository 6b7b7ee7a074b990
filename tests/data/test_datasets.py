"""Generated texts have the labels that they say, and real ones are counted."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from experiments.data import (
  algorithmic,
  datasets,
  recall,
  strings,
  transductions,
  word_order,
)

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
  if task in transductions.TRANSDUCTIONS:
    return of_tokens(task, tokens)
  assert task == 'a_before_b'
  assert tokens.count('a') == tokens.count('b') == 1
  return 'yes' if text.index('a') < text.index('b') else 'no'


def of_tokens(task, tokens):
  """The labels of the tokens of a string, computed by another algorithm."""
  asked = tokens.count('?')
  read = tokens[: len(tokens) - asked]
  text, answer = ''.join(read), []
  if task == 'reverse_string':
    answer = [*reversed(text)]
  elif task == 'duplicate_string':
    answer = [*(text * 2)]
  elif task == 'odds_first':
    answer = sorted(range(len(text)), key=lambda n: n % 2)
    answer = [text[n] for n in answer]
  elif task == 'bucket_sort':
    answer = [c for c, n in sorted(Counter(text).items()) for _ in range(n)]
  elif task == 'compute_sqrt':
    root = int(int(text, 2) ** 0.5 + 1e-9)
    answer = [str(root >> n & 1) for n in range((len(text) + 1) // 2)][::-1]
  elif task == 'stack_manipulation':
    # Each pop takes the last token before it that is still there.
    words = ' '.join(read).replace('push', '')
    while 'pop' in words:
      words = re.sub(r'^ *pop|[01] +pop', '', words, count=1).strip()
    answer = [*words.split()[::-1], 'end']
  else:
    one, other = re.split(r'[+*]', text)
    values = [
      sum(2**n for n, digit in enumerate(part) if digit == '1')
      for part in (one, other)
    ]
    result = sum(values) if '+' in text else np.prod(values)
    answer = [*np.binary_repr(result)[::-1], 'end']
  labels = ['_'] * len(read) + answer
  return ' '.join(labels + ['_'] * (len(tokens) - len(labels)))


@pytest.mark.parametrize('name', algorithmic.ALGORITHMS)
def test_labels_of_every_task_by_another_way(name):
  source = datasets.Algorithmic(name, 300, 60, 80, 20, 50)
  splits = source.read('', 1)
  assert {split: len(rows) for split, rows in splits.items()} == {
    'train': 300,
    'validation': 60,
    'test': 80,
  }
  for split, rows in splits.items():
    for row in rows:
      assert row.label == exact(name, row.text)
      length = len(row.text.split())
      assert length <= 20 if split != 'test' else 21 <= length <= 50
  everything = {row.text for row in splits['train']}
  assert not everything & {row.text for row in splits['validation']}
  lengths = {len(row.text.split()) for row in splits['train']}
  assert len(lengths) > 5
  assert source.read('', 1) == splits
  assert source.read('', 2) != splits


# --- mqar ---------------------------------------------------------------------


def test_each_key_is_asked_once_and_its_label_is_its_value():
  source = recall.AssociativeRecall(
    vocab_size=40, num_pairs=6, length=24, test_lengths=(24, 60), train=200,
    validation=20, test=10,
  )  # fmt: skip
  splits = source.read('', 0)
  assert source.read('', 0) == splits
  assert [len(rows) for rows in splits.values()] == [200, 20, 20]
  assert {len(row.text.split()) for row in splits['test']} == {24, 60}
  for row in itertools.chain(*splits.values()):
    tokens, labels = row.text.split(), row.label.split()
    value_of = dict(zip(tokens[:12:2], tokens[1:12:2], strict=True))
    assert len(value_of) == len(set(value_of.values())) == 6
    assert all(1 <= int(key) < 20 for key in value_of)
    assert all(20 <= int(value) < 40 for value in value_of.values())
    asked = {n: label for n, label in enumerate(labels) if label != '_'}
    assert len(labels) == len(tokens)
    assert all(n >= 12 and n % 2 == 0 for n in asked)
    assert {tokens[n]: label for n, label in asked.items()} == value_of


@pytest.mark.parametrize('power', [0.01, 1.0])
def test_places_of_keys_follow_the_power_law(power):
  rng = np.random.default_rng(0)
  source = recall.AssociativeRecall(vocab_size=8, num_pairs=1, power=power)
  drawn = (source.write(rng, 22, n)[1] for n in range(1_500))
  places = [
    max(labels.index(x) for x in labels if x != '_') for labels in drawn
  ]
  shares = np.bincount(places, minlength=22)[2::2] / len(places)
  expected = np.arange(1, 11) ** (power - 1)
  np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.04)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'num_pairs': 0}, 'num_pairs = 0'),
    ({'length': 15}, 'length = 15 must be at least 16'),
    ({'test_lengths': (64, 8)}, 'test_lengths'),
    ({'test_lengths': ()}, 'test_lengths'),
    ({'vocab_size': 9}, 'vocab_size = 9 must be at least 10'),
    ({'power': 0.0}, 'power'),
    ({'train': 0}, 'train'),
  ],
)
def test_sizes_of_mqar_that_do_not_fit_are_refused(options, said):
  with pytest.raises(ValueError, match=said):
    recall.AssociativeRecall(**options).check('')


@pytest.mark.parametrize('depths', [1, 10])
def test_depths_are_different_places(depths):
  source = recall.Passkey(
    num_pairs=2, length=16, test_lengths=(64,), depths=depths
  )
  said = f'depths = {depths} must be between 2 and 9, the places in 16 tokens'
  with pytest.raises(ValueError, match=said):
    source.check('')
  recall.Passkey(num_pairs=2, length=16, depths=9).check('')


def test_pairs_stand_at_each_depth_and_are_asked_for_at_the_end():
  source = recall.Passkey(
    vocab_size=12, num_pairs=2, length=20, test_lengths=(20, 62), train=40,
    validation=5, test=15, depths=5,
  )  # fmt: skip
  splits = source.read('', 0)
  assert [len(rows) for rows in splits.values()] == [40, 5, 30]
  first = {20: [0, 3, 6, 9, 12], 62: [0, 14, 27, 40, 54]}
  for split, lengths in (('train', [20]), ('test', [20, 62])):
    for index, row in enumerate(splits[split]):
      tokens, labels = row.text.split(), row.label.split()
      number, of_lengths = divmod(index, len(lengths))
      assert len(tokens) == len(labels) == lengths[of_lengths]
      at = first[len(tokens)][source.depth(number)]
      value_of = dict(
        zip(tokens[at:][:4:2], tokens[at + 1 :][:4:2], strict=True)
      )
      assert all(1 <= int(key) < 6 <= int(value_of[key]) for key in value_of)
      assert len(value_of) == len(set(value_of.values())) == 2
      asked = {n: label for n, label in enumerate(labels) if label != '_'}
      assert [*asked] == [len(tokens) - 4, len(tokens) - 2]
      assert {tokens[n]: label for n, label in asked.items()} == value_of
      # A key stands nowhere else.
      assert all(tokens.count(key) == 2 for key in value_of)


TWINS = [name for name, task in algorithmic.ALGORITHMS.items() if task.twin]


@pytest.mark.parametrize('name', TWINS)
def test_twins_have_the_same_tokens_and_other_labels(name):
  rows = datasets.Algorithmic(name, 40, 10, 40).read('', 0)['test']
  for one, other in zip(rows[0::2], rows[1::2], strict=True):
    assert sorted(one.text.split()) == sorted(other.text.split())
    assert one.label != other.label


def test_the_last_write_of_a_flip_flop_is_anywhere():
  task, rng = algorithmic.ALGORITHMS['flip_flop'], np.random.default_rng(0)
  last = [
    text.split()[0::2][:-1][::-1].index('w')
    for text, _ in strings.strings(task, rng, (17, 17), 4_000)
  ]
  shares = np.bincount(last, minlength=8) / len(last)
  np.testing.assert_allclose(shares, 1 / 8, atol=0.03)


@pytest.mark.parametrize('name', ['flip_flop', 'duplicate_string'])
def test_lengths_that_a_task_lacks_are_refused_or_skipped(name):
  source = datasets.Algorithmic(name, 20, 10, 20, 13, 16)
  source.check('')
  assert source.read('', 0)['test']
  with pytest.raises(ValueError, match='at least 3 more than longest'):
    datasets.Algorithmic(name, 20, 10, 20, 13, 15).check('')
