"""Labels of texts: one class, a set of them, or a number."""

import json

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import labels, loading
from experiments.data.labels import Classes, LabelFacts, Numbers, Sets
from experiments.learning.regression import Regression
from experiments.learning.tasks import Targets
from experiments.settings.settings import from_config

TEXTS = [
  ('one', ('joy', 'fear')),
  ('two', ()),
  ('three', ('fear',)),
  ('four', ('joy',)),
  ('five', ()),
]
COLUMNS = {
  'text': lambda text, _: text,
  'fear': lambda _, labels: str('fear' in labels).lower(),
  'joy': lambda _, labels: int('joy' in labels),
}
FILES = {
  'separator': (
    {'label_separator': ';'},
    ['text\tlabel', *(f'{text}\t{" ; ".join(ls)}' for text, ls in TEXTS)],
  ),
  'columns': (
    {'label_columns': ('fear', 'joy')},
    [
      '\t'.join(COLUMNS),
      *('\t'.join(str(of(*row)) for of in COLUMNS.values()) for row in TEXTS),
    ],
  ),
  'lists': (
    {'format': 'json'},
    [json.dumps({'text': text, 'label': ls[::-1]}) for text, ls in TEXTS],
  ),
}


@pytest.fixture
def data(small_config, tmp_path, monkeypatch):
  """A function from lines and options to Data."""
  monkeypatch.setenv('SELFATTN_CACHE', str(tmp_path / 'cache'))

  def load(lines, reader, task='multilabel', **options):
    (tmp_path / 'train.tsv').write_text('\n'.join(lines))
    small_config.task = task
    if task == 'multilabel':
      small_config.checkpoint.best_metric = 'macro_f1'
    if task == 'regression':
      small_config.checkpoint.best_metric = 'rmse'
    small_config.data.source = 'text'
    small_config.data.dir = str(tmp_path)
    options = {'validation': ('train.tsv',), 'test': ('train.tsv',)} | options
    small_config.data.text.update(options)
    return loading.load(from_config(small_config).data, '', labels=reader)

  return load


@pytest.mark.parametrize('name', FILES)
def test_sets_are_the_same_however_they_are_written(name, data):
  options, lines = FILES[name]
  loaded = data(lines, Sets(), **options)
  assert loaded.label_facts == LabelFacts(('fear', 'joy'), 5, (2, 2))
  labels = loaded.splits['test'].labels
  np.testing.assert_array_equal(
    labels, [[1, 1], [0, 0], [1, 0], [0, 1], [0, 0]]
  )


def test_labels_of_a_set_are_renamed_one_by_one(data):
  lines = ['text\tlabel', 'a\t0,1', 'b\t1', 'c\t0', 'd\t']
  names = ('1=joy', '0=fear')
  loaded = data(lines, Sets(), label_separator=',', labels=names)
  assert loaded.label_facts == LabelFacts(('joy', 'fear'), 4, (2, 2))


@pytest.mark.parametrize(
  ('lines', 'reader', 'options', 'said'),
  [
    (
      ['text\tlabel', 'a\tjoy;fear', 'b\tjoy'],
      Sets(),
      {'task': 'multilabel'},
      r'too few labels for config.task: \[\]; .*label_separator',
    ),
    (
      ['text\tjoy\tfear', 'a\t0\t1', 'b\t1\t2'],
      Sets(),
      {'label_columns': ('joy', 'fear')},
      "row 2: column 'fear' is '2' and must be 0 or 1.*label_columns",
    ),
    (
      ['text\tlabel', 'a\t1.5', 'b\tmuch'],
      Numbers(),
      {'task': 'regression'},
      "row 2: label 'much' is not a finite number.*unknown_labels='drop'",
    ),
    *(
      (
        ['text\tlabel', 'a\t1.5', f'b\t{number}'],
        Numbers(),
        {'task': 'regression'},
        f"row 2: label '{number}' is not a finite number, .* below 1e[+]15;",
      )
      for number in ('1e15', '-2e24', 'inf', '1_000', '\uff11')
    ),
    (
      ['text\tlabel', 'a\t1', 'b\t2'],
      Numbers(),
      {'task': 'regression', 'labels': (1, 2)},
      'data.text.labels = .* must be empty for config.task = regression',
    ),
    (
      ['text\tlabel', 'a\t1', 'b\t2'],
      Classes(),
      {'task': 'classify', 'labels': (3, 4), 'unknown_labels': 'drop'},
      'train texts of unknown labels, dropped: 2 of 2 .* split is empty',
    ),
    *(
      (
        [json.dumps({'text': t, 'label': label}) for t in 'ab'],
        Classes(),
        {'task': 'classify', 'format': 'json'},
        r'the label \["a".*\] is a list.*config.task=multilabel',
      )
      for label in (['a'], ['a', 'c'])
    ),
    (
      ['text\tlabel', 'a\tx', 'b\ty'],
      Classes(),
      {'task': 'classify', 'label_separator': ';'},
      'label_separator = .;. must be empty for config.task = classify',
    ),
  ],
)
def test_labels_that_cannot_be_read_are_one_line(
  lines, reader, options, said, data
):
  with pytest.raises(UserError, match=said) as error:
    data(lines, reader, **options)
  assert '\n' not in str(error.value)


def test_numbers_have_the_mean_and_the_deviation_of_train(data):
  lines = ['text\tlabel', 'a\t1', 'b\t-2.5', 'c\t4e1', 'd\tnan']
  options = {'task': 'regression', 'unknown_labels': 'drop'}
  loaded = data(lines, Numbers(), **options)
  numbers, facts = np.array([1.0, -2.5, 40.0]), loaded.label_facts
  assert (facts.names, facts.counts, facts.rows) == (('value',), (), 3)
  assert facts.mean == pytest.approx(numbers.mean())
  assert facts.std == pytest.approx(numbers.std())
  learned = loaded.splits['train'].labels
  assert learned.dtype == np.float32
  np.testing.assert_allclose(
    learned, (numbers - numbers.mean()) / numbers.std(), rtol=1e-6
  )


def test_large_numbers_that_differ_little_differ_when_they_are_learned(data):
  """In float32 all of them are 100,000,000."""
  texts = [f'{text}\t{100_000_000 + i}' for i, text in enumerate('abcde')]
  loaded = data(['text\tlabel', *texts], Numbers(), task='regression')
  learned = loaded.splits['train'].labels
  np.testing.assert_allclose(learned, np.arange(-2, 3) / 2**0.5, rtol=1e-6)
  task = Regression(facts=loaded.label_facts)
  assert [task.truth(x) for x in learned] == [100_000_000 + i for i in range(5)]
  assert task.answer(learned[1:2]) == (100_000_001.0, None)
  scores = task.scores((learned, learned[:, None]), learned[::-1])
  assert scores['rmse'] == pytest.approx(8**0.5)


def test_the_largest_numbers_have_finite_losses():
  values, _ = Numbers().values(['0', '9e14', '-9e14'], ['value'])
  task = Regression(facts=Numbers().facts(['value'], values))
  ones = np.ones(3, np.float32)
  targets = Targets(ones, ones, Numbers().learned(values, task.facts), ones)
  loss, squares = task.losses(-2 * targets.labels[:, None], targets)
  assert np.isfinite([loss.sum(), squares.sum()]).all()


def test_equal_numbers_have_a_deviation_of_one():
  assert Numbers().facts(['value'], np.full(7, 0.1)).std == 1


def test_names_are_sorted_by_value_however_numbers_are_written():
  names = ['b', '1e5', '10', 'nan', '.5', '-1', '1e1', '2_0']
  in_order = ['-1', '.5', '10', '1e1', '1e5', '2_0', 'b', 'nan']
  assert Classes().names(names) == in_order


def test_what_is_known_of_labels_is_the_same_from_a_workdir(data, tmp_path):
  loaded = data(FILES['columns'][1], Sets(), **FILES['columns'][0])
  (tmp_path / 'data.json').write_text(loaded.files['data.json'])
  facts = LabelFacts.of(loading.read_facts(str(tmp_path)))
  assert facts == loaded.label_facts


@pytest.mark.parametrize(
  ('text', 'found'),
  [
    ("['joy', 'fear']", ['joy', 'fear']),
    ('["joy", "it\'s, so"]', ['joy', "it's, so"]),
    # NumPy prints no commas, which Python would join to one string.
    ("['joy' 'fear']", ['joy', 'fear']),
    ('[ 0 27]', ['0', '27']),
    ('[0, 1.5]', ['0', '1.5']),
    (r"['it\'s']", ["it's"]),
    ('[]', []),
    ("('joy',)", ['joy']),
    ('[joy]', None),
    ("['joy'", None),
    ("['joy', ['fear']]", None),
    ('[0 1 ... 8 9]', None),
    ('joy', None),
    ("['jo\ny']", None),
    (r"['C:\Users']", None),
    (r'["a\/b", "\u00e9", 1.0, 1e3]', ['a/b', 'é', '1.0', '1e3']),
    (r'["a", true]', None),
    ('["a", NaN]', None),
    ('{"a": 1}', None),
    ("['a')", None),
    ('{0 27]', None),
  ],
)
def test_printed_lists_are_read_or_refused(text, found):
  if found is not None:
    assert labels.printed(text) == found
    return
  with pytest.raises(ValueError, match='is no list of strings or numbers'):
    labels.printed(text)
