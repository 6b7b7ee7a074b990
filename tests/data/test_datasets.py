"""Generated texts have the labels that they say, and real ones are counted."""

import os
import re
from collections import Counter

import numpy as np
import pytest

from configs import length_generalization
from experiments.data import (
  algorithmic,
  datasets,
  strings,
  word_order,
)
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
  with pytest.raises(ValueError, match='at least 2 more than longest'):
    datasets.Algorithmic(name, 20, 10, 20, 13, 14).check('')


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
  folder = os.path.join(root, FOLDERS.get(name, name))
  rows = Text(**text).read(folder, 0)
  rows = {split: list(part) for split, part in rows.items()}
  counts, classes = REAL[name]
  assert {split: len(found) for split, found in rows.items()} == counts
  assert len({row.label for row in rows['train']}) == classes
