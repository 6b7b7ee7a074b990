"""predict.load: a trained run as a function of texts, without its data."""

import json

import numpy as np
import pytest

from experiments import predict
from experiments.command.errors import UserError
from experiments.data import loading
from experiments.training import answers
from experiments.training.prediction import Prediction

WORDS = ['the', 'plot', 'was', 'dull', 'but', 'cast', 'fine', 'zzz']


@pytest.fixture(scope='module')
def run(finished_run):
  return str(finished_run)


@pytest.fixture(scope='module')
def classify(run):
  """The run, with windows of 48 texts."""
  return predict.load(run, batch_size=3)


def near(probabilities):
  return probabilities and pytest.approx(probabilities, rel=1e-5)


def draw(count, longest, seed=0):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, longest + 1, count)
  return [' '.join(rng.choice(WORDS, length)) for length in lengths]


def test_texts_are_predicted_as_they_are_alone_and_in_their_order(classify):
  texts = draw(50, 70)
  together = classify(texts)
  assert len(together) == len(texts)
  for text, found in zip(texts[-4:], together[-4:], strict=True):
    (alone,) = classify([text])
    assert alone.label == found.label
    assert alone.is_truncated == found.is_truncated
    assert alone.probabilities == near(found.probabilities)


def test_a_prediction_has_a_label_and_probabilities_of_all_classes(
  run, classify
):
  labels = loading.read_facts(run)['labels']
  (found,) = classify(['the plot was dull'])
  assert list(found.probabilities) == labels
  assert sum(found.probabilities.values()) == pytest.approx(1)
  best = max(found.probabilities, key=found.probabilities.get)
  assert found.label == best


def test_only_a_text_above_max_length_is_truncated(classify):
  texts = [' '.join(['fine'] * count) for count in (64, 65, 64 + 9)]
  whole, *cut = classify(texts)
  assert [one.is_truncated for one in (whole, *cut)] == [False, True, True]
  assert cut[0].probabilities == near(whole.probabilities)


def test_what_is_no_list_of_texts_is_refused(classify):
  assert classify([]) == []
  with pytest.raises(TypeError, match='a list of texts'):
    classify('fine')
  for text in (('the', 'plot'), b'plot', 3):
    with pytest.raises(TypeError, match=f'not a {type(text).__name__}'):
      classify(['fine', text])


def test_each_of_a_few_lengths_is_compiled_once(run):
  classify = predict.load(run, 'last', batch_size=3)
  assert classify.padded_lengths == (8, 12, 16, 24, 32, 48, 64)
  step = classify.runs[0].program.eval_step
  for seed in range(2):
    classify(draw(200, 80, seed))
    assert step._cache_size() == 7
  for count in (1, 2, 3):
    classify(draw(count, 3))
  # One row, and three, of the shortest length; three were known.
  assert step._cache_size() == 8


def test_unknown_runs_and_checkpoints_are_refused(run, tmp_path):
  with pytest.raises(UserError, match=r"^checkpoint = '13' of .* best, last, "):
    predict.load(run, 13)
  with pytest.raises(
    UserError, match=f'^{tmp_path}/config.json does not exist'
  ):
    predict.load(str(tmp_path))


@pytest.mark.slow
def test_eight_devices_predict_as_one(run, classify, eight_devices):
  texts = draw(20, 30)
  printed = eight_devices(
    """
    import json, sys, jax
    from experiments import predict
    classify = predict.load(sys.argv[1], batch_size=3)
    assert classify.runs[0].program.mesh.size == jax.device_count() == 8
    found = classify(json.loads(sys.argv[2]))
    print(json.dumps([each.probabilities for each in found]))
    """,
    run,
    json.dumps(texts),
  )
  wanted = [each.probabilities for each in classify(texts)]
  for found, each in zip(json.loads(printed), wanted, strict=True):
    assert found == near(each)


def test_a_large_number_is_printed_to_the_digits_that_it_has(capsys):
  show = answers.printed(as_json=False)
  numbers = [100_000_001.5, 100_000_002.0, -0.25]
  rows = [{'text': 'a'}] * 3
  show(rows, [Prediction(number, None, False) for number in numbers])
  lines = capsys.readouterr().out.splitlines()
  assert [float(line.split('\t')[0]) for line in lines] == numbers
