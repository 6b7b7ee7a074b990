"""Scores by hand and by loops, and the same numbers at every batch size."""

import jax
import numpy as np
import pytest

from experiments import build, data, evaluate, steps
from experiments.settings import from_config


def test_scores_of_a_matrix_by_hand():
  confusion = np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])
  found = evaluate.scores(np.array([1.0, 2.0, 3.0]), confusion)
  assert found['loss'] == 2.0
  assert found['accuracy'] == 0.7
  precision, recall, f1 = evaluate.per_class(confusion)
  np.testing.assert_allclose(precision, [3 / 5, 4 / 5, 0])
  np.testing.assert_allclose(recall, [3 / 4, 4 / 6, 0])
  np.testing.assert_allclose(f1, [2 / 3, 8 / 11, 0])
  # A class that never occurs is not a class one can fail at.
  assert found['macro_f1'] == pytest.approx((2 / 3 + 8 / 11) / 2)


def test_confusion_counts_rows_as_truth():
  matrix = evaluate.confusion_matrix(
    np.array([0, 0, 1, 2]), np.array([0, 2, 1, 2]), 3
  )
  np.testing.assert_array_equal(matrix, [[1, 0, 1], [0, 1, 0], [0, 0, 1]])


def test_evaluation_is_the_same_at_batch_sizes_1_7_and_64(
  small_config, tmp_path
):
  settings = from_config(small_config)
  loaded = data.load(settings.data, str(tmp_path))
  classifier = build.model(settings, loaded.vocab_size, 2)
  params = build.init_state(settings, classifier, build.hyper(settings)).params
  eval_step = jax.jit(steps.make_eval_step(classifier))
  split = loaded.splits['test']
  results = {
    size: evaluate.summarize(
      eval_step, params, split, size, loaded.bucket_lengths
    )
    for size in (1, 7, 64)
  }
  for scores, confusion in results.values():
    assert confusion.sum() == len(split)
    np.testing.assert_array_equal(confusion, results[1][1])
    assert scores == pytest.approx(results[1][0], rel=1e-6)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('encoder', ['none', 'bag'])
def test_what_cannot_see_order_is_right_on_one_twin_of_each_pair(
  encoder, seed, small_config, tmp_path
):
  """Whatever its parameters are, so training cannot help either."""
  small_config.seed = small_config.data.seed = seed
  small_config.data.word_order.test_pairs = 200
  if encoder == 'bag':
    small_config.model.encoder.name = 'bag'
  else:
    small_config.model.position.name = 'none'
  settings = from_config(small_config)
  loaded = data.load(settings.data, str(tmp_path))
  classifier = build.model(settings, loaded.vocab_size, 2)
  params = build.init_state(settings, classifier, build.hyper(settings)).params
  _, logits = evaluate.evaluate(
    jax.jit(steps.make_eval_step(classifier)),
    params,
    loaded.splits['test'],
    64,
    loaded.bucket_lengths,
  )
  np.testing.assert_allclose(logits[0::2], logits[1::2], rtol=1e-5, atol=1e-5)
  predictions = logits.argmax(axis=-1)
  hits = (predictions == loaded.splits['test'].labels).sum()
  assert abs(hits - 200) <= 2  # ties that rounding breaks
