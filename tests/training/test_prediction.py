"""predict.load: a trained run as a function of texts, without its data."""

import itertools
import json

import numpy as np
import pytest

from experiments import predict
from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.training import evaluation

WORDS = ['the', 'plot', 'was', 'dull', 'but', 'cast', 'fine', 'zzz']


@pytest.fixture(scope='module')
def classify(finished_run):
  """The run, with windows of 48 texts."""
  return predict.load(str(finished_run), batch_size=3)


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
  for text, found in zip(texts[-9:], together[-9:], strict=True):
    (alone,) = classify([text])
    assert alone.label == found.label
    assert alone.is_truncated == found.is_truncated
    assert alone.probabilities == near(found.probabilities)


def test_a_prediction_has_a_label_and_probabilities_of_all_classes(
  classify, finished_run
):
  labels = loading.read_facts(str(finished_run))['labels']
  (found,) = classify(['the plot was dull'])
  assert list(found.probabilities) == labels
  assert sum(found.probabilities.values()) == pytest.approx(1)
  best = max(found.probabilities, key=found.probabilities.get)
  assert found.label == best


def test_the_next_list_is_read_while_one_is_computed(classify):
  read = []

  def windows():
    for text in ('fine', 'dull', 'the'):
      read.append(text)
      yield [text]

  for count, (texts, found) in enumerate(classify.stream(windows())):
    assert len(read) == min(count + 2, 3)
    assert texts == read[count : count + 1]
    assert found[0].probabilities == near(classify(texts)[0].probabilities)
  assert count == 2


def test_a_list_is_not_held_back_while_the_next_one_is_waited_for(classify):
  found = []

  def windows():
    yield []
    for text in ('fine', 'dull'):
      yield [text]
      yield []
      assert found[-1] == [text]

  for texts, _ in classify.stream(windows()):
    found.append(texts)
  assert found == [['fine'], ['dull']]


@pytest.mark.parametrize('kind', [UserError, OSError, MemoryError])
def test_lists_before_one_that_cannot_be_read_are_predicted(classify, kind):
  found = []

  def windows():
    yield ['fine']
    yield ['dull']
    raise kind('line 3')

  with pytest.raises(kind, match='line 3'):
    found.extend(texts for texts, _ in classify.stream(windows()))
  assert found == [['fine'], ['dull']]


def test_lists_before_one_that_is_not_of_texts_are_predicted(classify):
  found = []
  with pytest.raises(TypeError, match='not a int'):
    found.extend(classify.stream([['fine'], [3], ['dull']]))
  assert [texts for texts, _ in found] == [['fine']]


def test_an_error_of_a_device_is_raised_once_and_ends_it(classify, monkeypatch):
  dispatch, count = evaluation.dispatch, itertools.count(1)

  def failing(*given):
    outputs, number = dispatch(*given), next(count)

    def wait():
      if number == 2:
        raise RuntimeError('out of memory')
      return outputs()

    return wait

  monkeypatch.setattr(evaluation, 'dispatch', failing)
  found = []
  with pytest.raises(RuntimeError, match='out of memory'):
    found.extend(classify.stream([['fine'], ['dull'], ['the']]))
  assert [texts for texts, _ in found] == [['fine']]


def test_a_list_may_be_used_again_by_its_owner(classify):
  def windows():
    texts = []
    for text in ('fine', 'dull', 'the'):
      texts[:] = [text]
      yield texts

  found = [texts for texts, _ in classify.stream(windows())]
  assert found == [['fine'], ['dull'], ['the']]


def test_a_text_without_tokens_has_no_label(classify):
  first, empty, _ = classify(['fine', '', 'dull'])
  assert empty == (None, None, False)
  assert first.label is not None


def test_only_a_text_above_max_length_is_truncated(classify):
  texts = [' '.join(['fine'] * count) for count in (64, 65, 64 + 9)]
  found = classify(texts)
  assert [each.is_truncated for each in found] == [False, True, True]
  same = [each.probabilities for each in found]
  assert same[1] == near(same[0])


def test_no_text_gives_no_prediction(classify):
  assert classify([]) == []


def test_one_text_in_place_of_a_list_is_refused(classify):
  with pytest.raises(TypeError, match='a list of texts'):
    classify('fine')


@pytest.mark.parametrize('text', [('the', 'plot'), ['the', 'plot'], b'plot', 3])
def test_a_text_that_is_not_a_str_is_refused(classify, text):
  with pytest.raises(TypeError, match=f'not a {type(text).__name__}'):
    classify(['fine', text])


def test_each_of_a_few_lengths_is_compiled_once(finished_run):
  classify = predict.load(str(finished_run), 'last', batch_size=3)
  assert classify.padded_lengths == (8, 12, 16, 24, 32, 48, 64)
  step = classify.run.program.eval_step
  for seed in range(2):
    classify(draw(200, 80, seed))
    assert step._cache_size() == 7
  for count in (1, 2, 3):
    classify(draw(count, 3))
  # One row, and three, of the shortest length; three were known.
  assert step._cache_size() == 8


def test_unknown_runs_and_checkpoints_are_refused(finished_run, tmp_path):
  with pytest.raises(UserError, match='--checkpoint = '):
    predict.load(str(finished_run), 13)
  with pytest.raises(UserError, match='does not exist'):
    predict.load(str(tmp_path))


def test_eight_devices_predict_as_one(classify, finished_run, eight_devices):
  texts = draw(20, 30)
  printed = eight_devices(
    """
    import json, sys, jax
    from experiments import predict
    classify = predict.load(sys.argv[1], batch_size=3)
    assert classify.run.program.mesh.size == jax.device_count() == 8
    found = classify(json.loads(sys.argv[2]))
    print(json.dumps([each.probabilities for each in found]))
    """,
    finished_run,
    json.dumps(texts),
  )
  wanted = [each.probabilities for each in classify(texts)]
  for found, each in zip(json.loads(printed), wanted, strict=True):
    assert found == near(each)


def test_a_window_that_was_computed_is_written_though_a_signal_came(classify):
  signals, written = Signals(), []

  def windows():
    yield ['fine']
    signals.received = 'SIGTERM'
    yield ['dull']

  with pytest.raises(Interrupted):
    predict._predict(
      classify, windows(), lambda texts, found: written.append(texts), signals
    )
  assert written[:1] == [['fine']]
