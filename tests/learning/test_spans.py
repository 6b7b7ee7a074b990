"""Spans of words against seqeval 1.2.2, whose results are stored."""

import importlib.util
import json
import pathlib
import random

import numpy as np
import pytest

from experiments.data.labels import LabelFacts
from experiments.learning import spans
from experiments.learning.classify_tokens import ClassifyTokens

GOLDENS = json.loads(
  (pathlib.Path(__file__).parent / 'goldens/spans.json').read_text()
)
TAGS = ['O', *(f'{part}-{kind}' for part in 'BIES' for kind in ('PER', 'LOC'))]


@pytest.mark.parametrize('letters', ['ES', 'LU'])
@pytest.mark.parametrize('text', GOLDENS['texts'])
def test_spans_are_those_of_seqeval(text, letters):
  """BILOU has other letters for the last word of a span, and the only one."""
  of_part = dict(zip('ES', letters, strict=True))
  names = [of_part.get(n[0], n[0]) + n[1:] for n in text['labels']]
  found = spans.of_words(names)
  assert [list(span) for span in found] == text['spans']


@pytest.mark.oracle
@pytest.mark.skipif(
  importlib.util.find_spec('seqeval') is None, reason='needs seqeval'
)
def test_spans_of_any_labels_are_those_of_seqeval():
  from seqeval.metrics.sequence_labeling import get_entities

  rng = random.Random(0)
  for _ in range(3000):
    labels = rng.choices(TAGS, k=rng.randrange(1, 9))
    found = [(s.label, s.begin, s.end - 1) for s in spans.of_words(labels)]
    assert found == get_entities(labels)


def padded(texts):
  """1 + the index of each class, (texts, words); 0 after those of a text."""
  width = max(map(len, texts))
  rows = [[TAGS.index(name) + 1 for name in labels] for labels in texts]
  return np.array([row + [0] * (width - len(row)) for row in rows])


def test_f1_of_spans_is_that_of_seqeval():
  task = ClassifyTokens(facts=LabelFacts(tuple(TAGS)))
  truth = padded([text['labels'] for text in GOLDENS['texts']]) - 1
  predicted = padded(GOLDENS['predicted'])
  sums = (np.ones(len(truth)),) * 3
  words = np.broadcast_to(np.arange(truth.shape[1]), truth.shape)
  labels = np.stack([words, truth, words], axis=-1)
  scores = task.scores((*sums, predicted), labels)
  assert scores['span_f1'] == pytest.approx(GOLDENS['f1'])
  # Classes that are no parts of spans have none.
  others = ClassifyTokens(facts=LabelFacts(('NN', 'VB')))
  assert others.scores((*sums, predicted), labels)['span_f1'] is None


@pytest.mark.parametrize(
  ('names', 'are'),
  [
    (TAGS, True),
    (['O'], False),
    (['I', 'O'], False),
    (['B-x', 'NN'], False),
    (['B', 'I', 'O'], True),
    (['B', 'E', 'S'], False),
    (['U-x', 'O'], True),
    (['B', 'I', 'L', 'O', 'U'], True),
    (['L', 'O', 'U'], False),
  ],
)
def test_parts_of_spans_are_known_by_their_names(names, are):
  assert spans.are_parts(names) == are


def test_spans_have_the_words_of_the_text():
  task = ClassifyTokens(facts=LabelFacts(tuple(TAGS)))
  found = task.spans_of(
    'Ada  Lovelace in Rome', ['B-PER', 'I-PER', 'O', 'S-LOC']
  )
  assert found == [
    {'label': 'PER', 'begin': 0, 'end': 2, 'text': 'Ada Lovelace'},
    {'label': 'LOC', 'begin': 3, 'end': 4, 'text': 'Rome'},
  ]
