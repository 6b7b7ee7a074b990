"""Losses, metrics and probabilities of tasks with one answer for each text."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn import calibration as sklearn_calibration
from sklearn import metrics

from experiments.data.batches import Batch, Examples
from experiments.data.labels import LabelFacts
from experiments.learning import calibration
from experiments.learning.classify import Classify
from experiments.learning.multilabel import Multilabel
from experiments.learning.regression import Regression
from experiments.learning.scores import confusion_matrix
from experiments.learning.scores import scores as of_classes

GOLDENS = pathlib.Path(__file__).parent / 'goldens/tasks.npz'
NAMES = ('a', 'b', 'c', 'd', 'e')
FACTS = LabelFacts(NAMES, 40, (10, 4, 2, 20, 4))
WEIGHTS = 'a=0.5,c=2,d=3.5,e=0'


def trained(task, logits, labels, smoothing=0.0):
  """(loss of a batch as a step has it, its gradient)."""
  rows = np.ones(len(labels), np.int32)
  batch = Batch(rows[:, None], rows, labels, rows.astype(np.float32))
  targets = task.targets(batch, 9, None)

  def loss(logits):
    losses, _ = task.losses(logits, targets, smoothing)
    return (losses * targets.weights).sum() / targets.weights.sum()

  return jax.value_and_grad(loss)(jnp.asarray(logits))


@pytest.mark.parametrize(
  ('name', 'task', 'labels', 'smoothing'),
  [
    ('weights', Classify(class_weights=WEIGHTS, facts=FACTS), 'classes', 0.0),
    ('smooth', Classify(facts=FACTS), 'classes', 0.1),
    ('focal', Classify(focal=2.0, facts=FACTS), 'classes', 0.0),
    ('positive', Multilabel(pos_weight=WEIGHTS, facts=FACTS), 'sets', 0.0),
    ('mse', Regression(), 'numbers', 0.0),
    ('huber', Regression(loss='huber'), 'numbers', 0.0),
  ],
)
def test_losses_and_gradients_are_those_of_pytorch(
  name, task, labels, smoothing
):
  with np.load(GOLDENS) as goldens:
    loss, gradient = trained(
      task, goldens['logits'], goldens[labels], smoothing
    )
    np.testing.assert_allclose(loss, goldens[f'{name}/loss'], rtol=2e-6)
    expected = goldens[f'{name}/gradient']
  np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
  ('plain', 'of_one', 'labels'),
  [
    (Classify, {'class_weights': 'a=1,e=1'}, 'classes'),
    (Multilabel, {'pos_weight': 'a=1'}, 'sets'),
  ],
)
def test_weights_of_one_change_no_bit(plain, of_one, labels):
  with np.load(GOLDENS) as goldens:
    logits, labels = goldens['logits'], goldens[labels]
  expected = trained(plain(facts=FACTS), logits, labels)
  weighted = trained(plain(facts=FACTS, **of_one), logits, labels)
  for one, other in zip(expected, weighted, strict=True):
    np.testing.assert_array_equal(one, other)


def test_balanced_weights_are_those_of_the_counts_of_train():
  rows = np.zeros((5, 1), np.int32)
  batch = Batch(rows, rows[:, 0], np.arange(5), np.ones(5, np.float32))
  task = Classify(class_weights='balanced', facts=FACTS)
  weights = task.targets(batch, 9, None).weights
  np.testing.assert_allclose(weights, 40 / 5 / np.array(FACTS.counts))


@pytest.mark.parametrize(
  ('weights', 'said'),
  [
    ('a=2,f=1', "'f' is not one of a, b"),
    ('a=much', 'NAME=NUMBER'),
    ('a=-1', 'NAME=NUMBER'),
    ('3', 'NAME=NUMBER'),
    ('a=2,a=3', 'each name once'),
  ],
)
def test_weights_that_are_none_are_refused(weights, said):
  for task in (
    Classify(class_weights=weights, facts=FACTS),
    Multilabel(pos_weight=weights, facts=FACTS),
  ):
    with pytest.raises(ValueError, match=f'weight.*{weights}.*{said}'):
      task.check()


def test_a_quoted_name_of_a_weight_may_have_commas():
  facts = LabelFacts(('a, b', 'c'), 2, (1, 1))
  task = Classify(class_weights='"a, b"=2,c=3', facts=facts)
  assert task.label_weights('class_weights').tolist() == [2, 3]


def test_weights_of_labels_leave_smoothed_texts_without_them_as_they_are():
  logits, labels = np.array([[1.0, -2.0]]), np.array([[0.0, 1.0]])
  losses = [
    trained(
      Multilabel(pos_weight=f'a={weight}', facts=LabelFacts(('a', 'b'))),
      logits, labels, smoothing=0.1,
    )[0]
    for weight in (1, 9)
  ]  # fmt: skip
  assert losses[0] == losses[1]


def test_the_correlation_of_millions_of_texts_is_that_of_few():
  confusion = np.array([[9, 1], [1, 9]])
  few, many = (
    of_classes(np.ones(1), times * confusion)['mcc'] for times in (1, 1_000_000)
  )
  assert many == pytest.approx(few) == pytest.approx(0.8)


@pytest.mark.parametrize('seed', range(3))
def test_scores_of_classes_are_those_of_scikit_learn(seed):
  rng = np.random.default_rng(seed)
  count = int(rng.integers(2, 5))
  labels = np.append(np.arange(count), rng.integers(0, count, 20))
  logits = rng.normal(size=(len(labels), count))
  logits[:, 0] -= seed % 3  # a class that is called seldom, or never
  scores = Classify().scores((np.ones(len(labels)), logits), labels)
  called = logits.argmax(axis=1)
  probabilities = scipy.special.softmax(logits, axis=1)
  binary = probabilities[:, 1] if count == 2 else probabilities
  expected = {
    'loss': 1.0,
    'accuracy': metrics.accuracy_score(labels, called),
    'macro_f1': metrics.f1_score(labels, called, average='macro'),
    'balanced_accuracy': metrics.balanced_accuracy_score(labels, called),
    'mcc': metrics.matthews_corrcoef(labels, called),
    'auroc': metrics.roc_auc_score(labels, binary, multi_class='ovr'),
  }
  assert scores == pytest.approx(expected)
  # Scores of training and of calibrated logits are the same, AUROC included.
  fitted = Classify().fitted([{'temperature': 3.5}])
  calibrated = fitted.scores((np.ones(len(labels)), logits / 3.5), labels)
  assert calibrated == pytest.approx(expected)
  # Classes that do not occur do not count.
  confusion = confusion_matrix(labels, called, count + 2)
  more = of_classes(np.ones(1), confusion)['macro_f1']
  assert more == pytest.approx(expected['macro_f1'])
  lengths = np.ones(len(labels), np.int32)
  report = Classify(facts=LabelFacts(NAMES[:count])).details(
    (lengths, logits), Examples(lengths, lengths, lengths, labels)
  )
  of_each = metrics.precision_recall_fscore_support(
    labels, called, zero_division=0
  )
  for name, values in zip(('precision', 'recall', 'f1'), of_each, strict=False):
    np.testing.assert_allclose(report.values[name], values)
  matrix = metrics.confusion_matrix(labels, called)
  np.testing.assert_array_equal(report.confusion, matrix)


@pytest.mark.parametrize('seed', range(2))
def test_scores_of_sets_are_those_of_scikit_learn(seed):
  rng = np.random.default_rng(seed)
  truth = (rng.random((30, 4)) < [0.5, 0.2, 0.0, 0.9]).astype(np.float32)
  logits = rng.normal(size=(30, 4))
  task = Multilabel(facts=LabelFacts(NAMES[:4], 30, (1, 2, 3, 4)))
  task = task.fitted([{'thresholds': [0.5, 0.3, 0.99, 0.1]}])
  called = scipy.special.expit(logits) > task.thresholds
  scores = task.scores((np.ones(30), logits), truth)
  options = {'zero_division': 0}
  assert scores == pytest.approx(
    {
      'loss': 1.0,
      'micro_f1': metrics.f1_score(truth, called, average='micro', **options),
      'macro_f1': metrics.f1_score(truth, called, average='macro', **options),
      'subset_accuracy': metrics.accuracy_score(truth, called),
    }
  )
  lengths = np.ones(30, np.int32)
  examples = Examples(lengths, lengths, lengths, truth)
  report = task.report(*[(np.ones(30), logits)] * 2, examples).values
  expected = metrics.precision_recall_fscore_support(truth, called, **options)
  for name, values in zip(
    ('precision', 'recall', 'f1'), expected, strict=False
  ):
    np.testing.assert_allclose(report[name], values)


def test_scores_of_numbers_are_in_the_units_of_the_data():
  rng = np.random.default_rng(0)
  truth = rng.normal(100, 20, 50).round(-1).astype(np.float32)
  values = truth[:, None] + rng.normal(0, 5, (50, 1))
  scores = Regression().scores((np.ones(50), values), truth)
  called = values[:, 0]
  assert scores['rmse'] == pytest.approx(
    metrics.root_mean_squared_error(truth, called)
  )
  assert scores['mae'] == pytest.approx(
    metrics.mean_absolute_error(truth, called)
  )
  for name in ('pearson', 'spearman'):
    correlation = getattr(scipy.stats, f'{name}r')(truth, called)
    assert scores[name] == pytest.approx(correlation.statistic)


def test_numbers_of_runs_with_other_means_are_averaged_in_their_units():
  of_runs = [
    Regression(facts=LabelFacts(('value',), 3, mean=mean, std=std))
    for mean, std in ((3.0, 1.0), (103.0, 4.0))
  ]
  logits = np.array([[0.5], [-1.0]])
  first = of_runs[0]
  converted = [first.converted(logits, one) for one in of_runs]
  for row, mean in zip(first.mean(converted), (54.25, 50.5), strict=True):
    assert first.answer(row) == (pytest.approx(mean), None)


def test_a_number_that_is_not_finite_is_an_answer():
  assert np.isnan(Regression().answer(np.array([np.nan]))[0])


def test_texts_that_are_almost_sure_are_not_equal():
  logits = np.array([[20, 0], [25, 0]], np.float32)
  scores = Classify().scores((np.zeros(2), logits), np.array([1, 0]))
  assert scores['auroc'] == 1


def test_of_one_class_no_auroc_is_defined():
  logits = np.random.default_rng(0).normal(size=(9, 2))
  scores = Classify().scores((np.ones(9), logits), np.ones(9, np.int32))
  assert scores['auroc'] is None
  assert Classify().reasons(scores) == [
    'auroc is undefined: all texts are of one class'
  ]


def test_equal_numbers_have_no_correlation():
  """As SciPy says, and no NaN, which would end a run as diverged."""
  values = np.full((9, 1), 3.0)
  scores = Regression().scores((np.ones(9), values), np.arange(9.0))
  assert (scores['pearson'], scores['spearman']) == (None, None)


def test_reliability_is_the_calibration_curve_of_scikit_learn():
  rng = np.random.default_rng(0)
  confidences = np.append(rng.random(500), [0.0, 1.0, 0.2])
  hits = rng.random(503) < confidences**2
  rows = calibration.bins(confidences, hits)
  accuracies, means = sklearn_calibration.calibration_curve(
    hits, confidences, n_bins=calibration.NUM_BINS
  )
  np.testing.assert_allclose([r['confidence'] for r in rows], means)
  np.testing.assert_allclose([r['accuracy'] for r in rows], accuracies)
  counts = np.array([r['count'] for r in rows])
  ece = (abs(means - accuracies) * counts).sum() / 503
  assert calibration.expected_error(rows) == pytest.approx(ece)


@pytest.mark.parametrize('count', [2, 4])
def test_nll_and_brier_are_those_of_scikit_learn(count):
  rng = np.random.default_rng(count)
  labels, logits = rng.integers(0, count, 60), rng.normal(size=(60, count))
  probabilities = scipy.special.softmax(logits, axis=1)
  honesty = Classify().measured(logits, labels)
  classes = list(range(count))
  nll = metrics.log_loss(labels, probabilities, labels=classes)
  assert honesty['nll'] == pytest.approx(nll)
  brier = metrics.brier_score_loss(
    labels, probabilities, scale_by_half=False, labels=classes
  )
  assert honesty['brier'] == pytest.approx(brier)
  # Of sets, the means over labels.
  sets = (rng.random(logits.shape) < 0.3) * 1.0
  likely = scipy.special.expit(logits)
  honesty = Multilabel().measured(logits, sets)
  for name, measure in (
    ('nll', metrics.log_loss),
    ('brier', metrics.brier_score_loss),
  ):
    columns = zip(sets.T, likely.T, strict=True)
    of_labels = [measure(truth, one) for truth, one in columns]
    assert honesty[name] == pytest.approx(np.mean(of_labels))


@pytest.mark.parametrize('factor', [0.5, 3.0])
def test_the_temperature_undoes_a_factor_of_honest_logits(factor):
  rng = np.random.default_rng(0)
  honest = rng.normal(size=(4_000, 3))
  labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
  fit = Classify().fit((np.ones(len(labels)), factor * honest), labels)
  assert fit['temperature'] == pytest.approx(factor, rel=0.1)
  sets = (rng.random(honest.shape) < scipy.special.expit(honest)) * 1.0
  fit = Multilabel().fit((np.ones(len(sets)), factor * honest), sets)
  assert fit['temperature'] == pytest.approx(factor, rel=0.1)


def test_a_few_texts_that_are_all_right_are_no_reason_to_be_sure():
  labels = np.arange(40) % 2
  logits = np.where(labels[:, None] == np.arange(2), 2.0, -2.0)
  outputs = np.ones(40), logits
  fit = Classify().fit(outputs, labels)
  _, scaled = Classify().average([outputs], [fit], labels)
  assert scipy.special.softmax(scaled, axis=1).max() < 0.995


def test_a_temperature_of_one_and_one_run_change_no_bit():
  logits = np.random.default_rng(0).normal(size=(9, 5))
  outputs, labels = (np.ones(9), logits), np.zeros(9, np.int32)
  for fit in ({}, {'temperature': 1.0}):
    averaged = Classify().average([outputs], [fit], labels)
    for one, other in zip(outputs, averaged, strict=True):
      np.testing.assert_array_equal(one, other)


def test_each_run_of_an_ensemble_has_its_own_temperature():
  rng = np.random.default_rng(0)
  runs = [(np.ones(7), rng.normal(size=(7, 5))) for _ in range(2)]
  labels = rng.integers(0, 5, 7)
  fits = [{'temperature': 2.0}, {'temperature': 0.5}]
  losses, logits = Classify().average(runs, fits, labels)

  def mean(temperatures):
    parts = zip(runs, temperatures, strict=True)
    return np.mean(
      [scipy.special.softmax(x / t, axis=1) for (_, x), t in parts], axis=0
    )

  np.testing.assert_allclose(np.exp(logits), mean([2.0, 0.5]))
  expected = -np.log(mean([1.0, 1.0])[np.arange(7), labels])
  np.testing.assert_allclose(losses, expected)


@pytest.mark.parametrize('seed', range(2))
def test_a_threshold_has_the_greatest_f1(seed):
  rng = np.random.default_rng(seed)
  probabilities = rng.integers(0, 12, 30) / 12
  truth = rng.random(30) < probabilities / 2
  limit = calibration.threshold(probabilities, truth)
  reached = metrics.f1_score(truth, probabilities > limit, zero_division=0)
  others = np.linspace(-0.01, 1, 41)
  best = max(
    metrics.f1_score(truth, probabilities > other, zero_division=0)
    for other in others
  )
  assert reached == pytest.approx(best)
  # That of a label that validation lacks.
  assert calibration.threshold(probabilities, np.zeros(30, bool)) == 0.5


def test_an_answer_has_the_probabilities_of_all_labels():
  logits = np.array([0.0, 0.1, 0.0, 0.0, 0.0])
  label, probabilities = Classify(facts=FACTS).answer(logits)
  assert label == 'b'
  assert list(probabilities) == list(NAMES)
  logits = np.array([3.0, 0.1, -1.0, -1.0, -1.0])
  assert Multilabel(facts=FACTS).answer(logits)[0] == ['a', 'b']
