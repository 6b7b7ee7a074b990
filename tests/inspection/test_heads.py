"""Heads of a small model: statistics, importance, ablation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_small_config

from experiments.data import loading
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Byte
from experiments.inspection import ablation, head_analysis
from experiments.learning import steps
from experiments.learning.multilabel import Multilabel
from experiments.learning.regression import Regression
from experiments.learning.tasks import cross_entropy, padding_mask
from experiments.settings.settings import from_config
from experiments.training import compiled, evaluation
from selfattn import analysis
from selfattn.pools import Cls


def make_model(tmp_path_factory):
  """(classifier, parameters far from zero, data, program)."""
  config = make_small_config()
  config.model.num_layers = 2
  settings = from_config(config)
  loaded = loading.load(settings.data, str(tmp_path_factory.mktemp('none')))
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  params = program.init(program.hparams([settings])).params
  params = jax.tree.map(lambda x: 1.5 * x, params)
  return program.classifier, params, loaded, program


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  return make_model(tmp_path_factory)


@pytest.fixture(scope='module')
def names(model):
  _, _, loaded, _ = model
  import tokenizers

  return head_analysis.names(
    tokenizers.Tokenizer.from_str(loaded.files['tokenizer.json'])
  )


def some(loaded, count=3):
  return loaded.splits['validation'].take(np.arange(count))


@pytest.fixture(scope='module')
def maps(model, names):
  """Those of `some` texts."""
  classifier, params, loaded, _ = model
  return list(
    head_analysis.attention_maps(classifier, params, some(loaded), names)
  )


def test_attention_maps_have_the_weights_that_were_sown(model, maps, names):
  _, _, loaded, _ = model
  examples, found = some(loaded), maps
  for row, one in enumerate(found):
    length = examples.lengths[row]
    ids = examples.tokens[examples.starts[row] :][:length]
    assert one.tokens == [names[i] for i in ids]
    assert one.weights.shape == (2, 2, length, length)
    np.testing.assert_allclose(one.weights.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(one.rollout().sum(axis=-1), 1, rtol=1e-5)
  assert 'the' in found[0].tokens


def test_attention_on_a_text_is_that_of_the_text_alone(model, maps, names):
  classifier, params, loaded, _ = model
  examples = some(loaded)
  shortest = int(examples.lengths.argmin())
  assert examples.lengths[shortest] < examples.lengths.max()
  (alone,) = head_analysis.attention_maps(
    classifier, params, examples.take(np.array([shortest])), names
  )
  np.testing.assert_allclose(
    alone.weights, maps[shortest].weights, rtol=1e-5, atol=1e-6
  )


@pytest.mark.slow
def test_a_scanned_stack_is_read_like_a_plain_one(model):
  classifier, params, loaded, _ = model
  scanned = classifier.clone(encoder=classifier.encoder.clone(scan=True))
  batch = some(loaded).batch(np.arange(3), 3, 17)
  plain, found = (
    head_analysis.sown_weights(head_analysis.sown(model, params, batch))
    for model in (classifier, scanned)
  )
  np.testing.assert_allclose(found, plain, atol=1e-5)


def test_statistics_are_means_over_texts(model, maps, names):
  classifier, params, loaded, _ = model
  examples = some(loaded)
  found = head_analysis.statistics(
    classifier, params, examples, loaded.bucket_lengths, names
  )
  statistics = jax.jit(jax.vmap(analysis.head_statistics, (0, None, None)))
  alone = []
  for one in maps:
    length = len(one.tokens)
    is_separator = [head_analysis.is_separator(name) for name in one.tokens]
    alone.append(
      statistics(
        jnp.asarray(one.weights)[:, None],
        jnp.ones((1, length, length), bool),
        jnp.array(is_separator)[None],
      )
    )
  for name in analysis.STATISTICS:
    expected = np.mean([a[name][:, 0] for a in alone], axis=0)
    np.testing.assert_allclose(found[name], expected, rtol=1e-4)


def test_names_of_bytes_are_visible():
  found = head_analysis.names(Byte().train([]))
  assert {'␣', '↵', '⇥', 'a', 'Z'} < {*found}
  # Part of a character is no separator.
  assert '\ufffd' in found
  assert not head_analysis.is_separator('\ufffd')
  assert head_analysis.is_separator('␣')
  assert head_analysis.is_separator('[SEP]')


def test_a_statistic_that_no_text_has_is_none(model, names):
  classifier, params, loaded, _ = model
  examples = some(loaded)
  lone = dataclasses.replace(examples, lengths=np.ones(3, np.int32))
  found = head_analysis.statistics(classifier, params, lone, (1,), names)
  assert np.isnan(found['entropy']).all()
  np.testing.assert_array_equal(found['self'], 1)
  row = head_analysis.statistics_rows(found)[1]
  assert (row['head'], row['entropy'], row['self']) == (1, None, 1)


def test_importance_equals_finite_differences(model):
  classifier, params, loaded, _ = model
  examples = some(loaded)
  found = ablation.importance(
    classifier, params, examples, loaded.bucket_lengths
  )
  batch = examples.batch(np.arange(3), 3, 17)

  @jax.jit
  def losses(gates):
    gated = params | {'encoder': analysis.gate_heads(params['encoder'], gates)}
    logits = classifier.apply(
      {'params': gated}, batch.tokens, padding_mask(batch)
    )
    return cross_entropy(logits, batch.labels)

  step = 1e-2
  for head in np.ndindex(2, 2):
    up, down = (
      losses(jnp.ones((2, 2)).at[head].add(sign * step)) for sign in (1, -1)
    )
    expected = np.mean(abs(np.asarray(up - down)) / (2 * step))
    assert found[head] == pytest.approx(expected, rel=2e-2, abs=1e-5)
  assert found.min() > 1e-3


def test_accuracy_under_gates_is_that_of_the_gated_model(model):
  classifier, params, loaded, program = model
  examples, lengths = loaded.splits['test'], loaded.bucket_lengths
  _, logits = evaluation.evaluate(program, params, examples, 7, lengths)
  # Labels are the predictions of the model without ablation.
  examples = dataclasses.replace(examples, labels=logits.argmax(axis=-1))
  gates = [
    ablation.ones(classifier),
    np.array([[-2, 1], [3, 0]], np.float32),
  ]
  found = ablation.measured(classifier, params, examples, lengths, gates)
  encoder = analysis.gate_heads(params['encoder'], gates[1])
  gated = params | {'encoder': encoder}
  _, logits = evaluation.evaluate(program, gated, examples, 7, lengths)
  other = (logits.argmax(axis=-1) == examples.labels).mean()
  assert found == pytest.approx([1, other])
  assert other < 1


@pytest.mark.slow
def test_numbers_and_sets_of_labels_have_a_metric_without_heads(model):
  classifier, params, loaded, _ = model
  examples = some(loaded)
  for task, labels in (
    (Regression(facts=LabelFacts(std=2.0)), np.float32([3, -3, 0])),
    (Multilabel(), np.float32([[1, 0], [0, 1], [1, 1]])),
  ):
    examples = dataclasses.replace(examples, labels=labels)
    rows, ablated = ablation.ablate(
      classifier, params, examples, loaded.bucket_lengths, task
    )
    batch = examples.batch(np.arange(3), 3, 17)
    outputs = steps.make_eval_step(classifier, task=task)(params, batch)
    scores = task.scores(tuple(map(np.asarray, outputs)), labels)
    name = ablated['metric']
    expected = pytest.approx(scores[name], rel=1e-5)
    assert ablated['least_important_first'][0] == expected
    assert f'{name}_without' in rows[0]


def test_heads_are_ablated_from_the_least_important_on():
  order = np.array([[0.3, 0.1], [0.2, 0.4]])
  found = [gates.tolist() for gates in ablation.ablation_gates(order)]
  assert found == [
    [[1, 1], [1, 1]],
    [[1, 0], [1, 1]],
    [[1, 0], [0, 1]],
    [[0, 0], [0, 1]],
    [[0, 0], [0, 0]],
  ]


def test_the_first_token_is_cls_where_the_model_pools_it(model, names):
  classifier, params, loaded, _ = model
  with_cls = dataclasses.replace(classifier, pool=Cls())
  params = {**params, 'cls': jnp.zeros(12)}
  (one,) = head_analysis.attention_maps(
    with_cls, params, some(loaded, 1), names
  )
  assert one.tokens[0] == head_analysis.CLS
  assert one.weights.shape[-1] == len(one.tokens)
  lengths = loaded.bucket_lengths
  found = head_analysis.statistics(
    with_cls, params, some(loaded), lengths, names
  )
  assert np.isfinite(list(found.values())).all()
