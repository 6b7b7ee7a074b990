"""Tasks: their targets, losses and scores; no other code names a task."""

import dataclasses
import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from conftest import ROOT, draw, last_json, make_small_config

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data.batches import Batch
from experiments.data.labels import Classes, LabelFacts
from experiments.learning import gradients, steps, tasks
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.learning.hparams import HParams
from experiments.learning.masked_tokens import MaskedTokens
from experiments.learning.task_table import TASKS
from experiments.learning.tasks import Targets, Task
from experiments.settings.settings import from_config
from experiments.training import build
from experiments.training import run as run_lib
from selfattn.dropout import Dropout

pytestmark = pytest.mark.usefixtures('shared_programs')
V, B, L = 23, 8, 9


def make_batch(rows=B, length=L, seed=0):
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, length + 1, rows).astype(np.int32)
  tokens = rng.integers(2, V, (rows, length)).astype(np.int32)
  tokens = np.where(np.arange(length) < lengths[:, None], tokens, 0)
  weights = np.array([1] * (rows - 2) + [0] * 2, np.float32)
  return Batch(tokens, lengths, np.zeros(rows, np.int32), weights)


def make_settings(name, **changes):
  config = make_small_config()
  config.task = name
  config.model.dropout_rate = 0.0
  if name.startswith('next_token'):
    config.model.encoder = 'attention(causal=True)'
  config.update_from_flattened_dict(changes)
  return from_config(config)


def model_of(settings):
  classifier = build.model(settings, V, 2)
  tokens = jnp.zeros((1, 1), jnp.int32)
  key = jax.random.key(0)
  params = draw(classifier.init, key, tokens, tokens == 0)['params']
  return classifier, params


def gradients_of(params, classifier, batch, hparams, num_microbatches, task):
  """`gradients` of step 5, as one program rather than one per operation."""

  @jax.jit
  def of(params, batch, hparams):
    return gradients.gradients(
      params,
      batch,
      hparams,
      5,
      classifier=classifier,
      num_microbatches=lambda shape: num_microbatches,
      task=task,
    )

  return of(params, batch, hparams)


@functools.cache
def drawn(rows=400, length=50):
  """(batch, targets) of many tokens under a fixed key."""
  batch = make_batch(rows, length)._replace(weights=np.ones(rows, np.float32))
  bits = Dropout.create(jax.random.key(3), 0.0)
  targets = MaskedTokens().targets(batch, V, bits)
  return batch, jax.tree.map(np.asarray, targets)


def within(count, total, share):
  """Whether a count is one that a share gives but for once in 10^6."""
  low, high = scipy.stats.binom.interval(1 - 1e-6, total, share)
  return low <= count <= high


def test_a_share_of_the_tokens_is_chosen_and_of_those_some_are_masked():
  batch, targets = drawn()
  total, asked = batch.lengths.sum(), targets.weights > 0
  assert within(asked.sum(), total, 0.15)
  new = np.take_along_axis(targets.tokens, targets.label_index, axis=1)[asked]
  old = targets.labels[asked]
  assert within((new == V).sum(), len(new), 0.8)
  assert within((new == old).sum(), len(new), 0.1 + 0.1 / (V - 2))
  others = new[(new != V) & (new != old)]
  assert within(len(others), len(new), 0.1 - 0.1 / (V - 2))
  assert set(others) == set(range(2, V))


def test_only_what_is_asked_is_changed_and_nothing_of_the_padding_is_asked():
  batch, targets = drawn()
  is_asked = np.zeros(batch.tokens.shape, bool)
  rows, columns = np.nonzero(targets.weights)
  places = targets.label_index[rows, columns]
  is_asked[rows, places] = True
  assert is_asked.sum() == len(rows)
  assert (places < batch.lengths[rows]).all()
  np.testing.assert_array_equal(
    targets.tokens[~is_asked], batch.tokens[~is_asked]
  )
  np.testing.assert_array_equal(
    targets.labels[rows, columns], batch.tokens[rows, places]
  )


def test_loss_and_accuracy_are_those_of_a_loop_over_the_masked_places():
  settings = make_settings('masked_tokens')
  classifier, params = model_of(settings)
  batch, hparams = make_batch(), HParams.of(settings)
  task = settings.task.make()
  (loss, hits, count), _ = gradients_of(
    params, classifier, batch, hparams, 1, task
  )
  bits = gradients.dropout_of(hparams, 5, 0).at(4)
  targets = task.targets(batch, V, bits)
  apply = jax.jit(classifier.apply)
  logits = np.asarray(
    apply({'params': params}, targets.tokens, tasks.padding_mask(batch)),
    np.float64,
  )
  assert logits.shape == (B, L, V)
  wanted = np.zeros(3)
  for row, (places, weights) in enumerate(
    zip(targets.label_index, targets.weights, strict=True)
  ):
    for place, weight in zip(places, weights, strict=True):
      label = batch.tokens[row, place]
      log_probs = scipy.special.log_softmax(logits[row, place])
      is_right = log_probs.argmax() == label
      wanted += float(weight) * np.array([-log_probs[label], is_right, 1])
  assert wanted[2] > 2
  np.testing.assert_allclose([loss, hits, count], wanted, rtol=1e-5)


def test_the_gradient_of_the_tied_table_is_that_of_both_its_uses():
  settings = make_settings('masked_tokens')
  classifier, params = model_of(settings)
  batch, hparams = make_batch(), HParams.of(settings)
  task = settings.task.make()
  targets = task.targets(batch, V, gradients.dropout_of(hparams, 5, 0).at(4))

  def loss_of(params):
    logits = classifier.apply(
      {'params': params}, targets.tokens, tasks.padding_mask(targets)
    )
    logits = jnp.take_along_axis(logits, targets.label_index[..., None], axis=1)
    losses = tasks.cross_entropy(logits, targets.labels)
    return (losses * targets.weights).sum()

  wanted = jax.jit(jax.grad(loss_of))(params)
  for num_microbatches in (1, 4):
    _, found = gradients_of(
      params, classifier, batch, hparams, num_microbatches, task
    )
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      found,
      wanted,
    )


def test_masks_in_evaluation_follow_the_text_alone():
  task = MaskedTokens()
  classifier = build.model(make_settings('masked_tokens'), V, 2)
  batch = make_batch(12, 30)
  targets_of = jax.jit(
    lambda batch: steps.eval_targets(task, classifier, batch)
  )
  whole = targets_of(batch)
  order = np.arange(12)[::-1]
  for length in (30, 41):
    tokens = np.pad(batch.tokens[order], ((0, 0), (0, length - 30)))
    other = Batch(
      tokens, batch.lengths[order], batch.labels, batch.weights[order]
    )
    found = targets_of(other)
    np.testing.assert_array_equal(
      found.tokens[:, :30], np.asarray(whole.tokens)[order]
    )
  masked = {tuple(np.flatnonzero(row == V)) for row in whole.tokens}
  assert len(masked) > 6


def test_masks_in_training_are_those_of_the_whole_batch_in_any_part_of_it():
  batch, task = make_batch(), MaskedTokens()
  bits = Dropout.create(jax.random.key(3), 0.0)
  whole = task.targets(batch, V, bits)
  part = jax.tree.map(lambda x: x[4:], batch)
  found = task.targets(part, V, bits.replace(first_row=4))
  np.testing.assert_array_equal(found.tokens, whole.tokens[4:])


def test_the_next_token_is_asked_of_all_but_the_last():
  batch = make_batch()
  found = TASKS['next_token']().targets(batch, V, None)
  for row, length in enumerate(batch.lengths):
    real = np.flatnonzero(np.asarray(found.weights[row]))
    asked = length - 1 if batch.weights[row] else 0
    np.testing.assert_array_equal(real, np.arange(asked))
    wanted = batch.tokens[row, 1 : asked + 1]
    np.testing.assert_array_equal(found.labels[row, :asked], wanted)
  scored = TASKS['next_token']().scores([np.array([3.0, 5.0])] * 3, None)
  assert scored['perplexity'] == pytest.approx(np.e)


@functools.cache
def several_offsets(tied):
  """(settings, classifier, params) of three offsets, none of them alike."""
  settings = make_settings(f'next_token(offsets=3, tied={tied})')
  classifier, params = model_of(settings)
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(0)
  drawn = [x + 0.1 * rng.normal(size=x.shape).astype('f4') for x in leaves]
  return settings, classifier, jax.tree.unflatten(tree, drawn)


@pytest.mark.slow
@pytest.mark.parametrize('tied', [True, False])
def test_of_several_offsets_the_loss_is_that_of_shifted_tokens(tied):
  settings, classifier, params = several_offsets(tied)
  batch, task = make_batch(), settings.task.make()
  targets = steps.eval_targets(task, classifier, batch)
  logits, _ = steps.eval_logits(task, classifier, params, batch)
  log_probs = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)
  sums = np.zeros((2, 3))
  for row, (length, weight) in enumerate(
    zip(batch.lengths, batch.weights, strict=True)
  ):
    for offset in (1, 2, 3):
      for place in range(length - offset):
        token = batch.tokens[row, place + offset]
        loss = -log_probs[row, place, offset - 1, token]
        sums[:, offset - 1] += weight * np.array([loss, 1])
  assert sums[1, 2] > 2
  for parts in (1, 2):
    (loss, _, count), _ = gradients_of(
      params, classifier, batch, HParams.of(settings), parts, task
    )
    np.testing.assert_allclose([loss, count], sums.sum(axis=1), rtol=1e-5)
  scores = task.scores([*map(np.asarray, task.outputs(logits, targets))], None)
  losses = [scores[name] for name in ('loss', 'loss_2', 'loss_3')]
  np.testing.assert_allclose(losses, sums[0] / sums[1], rtol=1e-5)
  assert scores.keys() == task.all_metrics().keys()


def test_the_gradient_of_several_offsets_is_that_of_its_microbatches():
  settings, classifier, params = several_offsets(True)
  one, two = (
    gradients_of(
      params, classifier, make_batch(), HParams.of(settings), parts,
      settings.task.make(),
    )[1]
    for parts in (1, 2)
  )  # fmt: skip
  assert abs(one['further']['offset_3']['kernel']).max() > 0
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
    one,
    two,
  )


def test_the_first_offset_is_the_language_model_and_the_others_begin_as_it():
  _, classifier, params = several_offsets(True)
  plain, drawn = model_of(make_settings('next_token'))
  rest = {name: tree for name, tree in params.items() if name != 'further'}
  assert jax.tree.structure(rest) == jax.tree.structure(drawn)
  batch = make_batch()
  given = batch.tokens, tasks.padding_mask(batch)
  several = jax.jit(classifier.apply)({'params': params}, *given)
  one = jax.jit(plain.apply)({'params': rest}, *given)
  np.testing.assert_allclose(several[..., 0, :], one, rtol=1e-4, atol=1e-5)
  none = {'further': jax.tree.map(jnp.zeros_like, params['further'])}
  begun = jax.jit(classifier.apply)({'params': params | none}, *given)
  np.testing.assert_allclose(begun[..., 2, :], one, rtol=1e-4, atol=1e-5)


def test_an_offset_that_no_text_reaches_has_no_loss():
  outputs = [np.array([[3.0, 0.0]])] * 3
  scores = TASKS['next_token'](offsets=2).scores(outputs, None)
  assert (scores['loss'], scores['loss_2']) == (1.0, None)


class PerToken(nn.Module):
  """A linear layer, which the toy below needs."""

  count: int

  @nn.compact
  def __call__(self, x_BLD, embed):
    del embed
    return nn.Dense(self.count)(x_BLD)


@dataclasses.dataclass(frozen=True)
class IsRepeated(Task):
  """Whether each token is the same as the one `distance` before it."""

  metrics: ClassVar = {'accuracy': max, 'loss': min}
  distance: int = 1

  def targets(self, batch, vocab_size, bits):
    """Labels that come from the batch."""
    before = jnp.roll(batch.tokens, self.distance, axis=1)
    labels = (batch.tokens == before).astype(jnp.int32)
    weights = tasks.padding_mask(batch) * batch.weights[:, None]
    return Targets(batch.tokens, batch.lengths, labels, weights)

  def head(self, vocab_size, num_labels):
    """Two logits of each token."""
    return PerToken(2, parent=None)


def test_a_task_trains_is_evaluated_and_not_asked_for_labels(
  tmp_path, monkeypatch, call_command
):
  """One of a stranger, in one class and one line."""
  name = 'is_repeated'
  monkeypatch.setitem(TASKS, name, IsRepeated)
  config = make_small_config()
  config.task = name
  config.train.steps = config.train.eval_every = 6
  path = str(tmp_path / 'run')
  result = run_lib.run(config, path, Signals())
  where = f'--workdir={path}'
  code, stdout, stderr = call_command('evaluate', where, cwd=ROOT)
  assert code == 0, stderr
  found = last_json(stdout)
  for metric in TASKS[name].metrics:
    assert found[metric] == pytest.approx(result[metric], rel=1e-5)
  code, _, stderr = call_command('predict', where, '--text=a', cwd=ROOT)
  assert code == 2
  assert f'config.task = {name}, which predicts tokens' in stderr
  monkeypatch.setattr(IsRepeated, 'metrics', {'accuracy': max, 'f1': max})
  code, _, stderr = call_command('evaluate', where, cwd=ROOT)
  assert code == 2
  said = "IsRepeated.scores returns ['accuracy', 'loss'], without ['f1']"
  assert said in stderr


def test_labels_of_tokens_are_read_where_they_are_and_none_is_padding():
  """Also of a text that is truncated, and of a row that fills the batch."""
  none = [-1, -1]
  labels = np.array([[[0, 2], [2, 1], [6, 0]], [[1, 0], none, none]] * 2)
  lengths = np.array([4, 2, 4, 2], np.int32)
  weights = np.array([1, 1, 1, 0], np.float32)
  for length, most in ((4, 3), (2, 2)):
    batch = Batch(
      np.ones((4, length), np.int32), np.minimum(lengths, length), labels,
      weights,
    )  # fmt: skip
    targets = ClassifyTokens().targets(batch, V, None)
    read = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]])[:, :most]
    read = read * (labels[:, :most, 0] < length)
    np.testing.assert_array_equal(targets.weights, read)
    is_read = read > 0
    for found, column in ((targets.label_index, 0), (targets.labels, 1)):
      expected = np.where(is_read, labels[:, :most, column], 0)
      np.testing.assert_array_equal(
        np.asarray(found)[is_read], expected[is_read]
      )
      assert np.asarray(found).min() >= 0
    assert np.asarray(targets.label_index).max() < length


def test_loss_and_accuracy_are_those_of_the_labelled_tokens():
  rng = np.random.default_rng(0)
  labels = np.full((5, 3, 2), -1)
  labels[0, :2], labels[1, :1], labels[3] = [[1, 0], [3, 2]], [[0, 1]], 1
  batch = Batch(
    np.ones((5, 4), np.int32), np.full(5, 4, np.int32), labels,
    np.ones(5, np.float32),
  )  # fmt: skip
  task = ClassifyTokens()
  targets = task.targets(batch, V, None)
  logits = rng.normal(size=(5, 3, 3))
  outputs = [np.asarray(o) for o in task.outputs(logits, targets)]
  log_probs = scipy.special.log_softmax(logits, axis=-1)
  rows, columns = np.nonzero(labels[..., 1] >= 0)
  classes = labels[rows, columns, 1]
  hits = logits[rows, columns].argmax(axis=-1) == classes
  scores = task.scores(outputs, labels)
  assert scores['accuracy'] == pytest.approx(hits.mean())
  expected = -log_probs[rows, columns, classes].mean()
  assert scores['loss'] == pytest.approx(expected, rel=1e-6)


def test_tied_classes_are_tokens_of_the_vocabulary():
  facts = LabelFacts(('5', 'B', '2'))
  with pytest.raises(UserError, match="and 'B' is none"):
    ClassifyTokens(tied=True, facts=facts, label_ids=(5, None, 2))
  head = ClassifyTokens(tied=True, label_ids=(5, 2)).head(V, 2)

  class Model(nn.Module):
    head: nn.Module

    @nn.compact
    def __call__(self, x):
      embed = nn.Embed(V, 3)
      return self.head(x, embed), embed.attend(x)

  x = jax.random.normal(jax.random.key(0), (2, L, 3))
  (logits, every), _ = Model(head).init_with_output(jax.random.key(1), x)
  np.testing.assert_allclose(logits, every[..., [5, 2]], rtol=1e-5)


@pytest.mark.slow
def test_outputs_of_a_string_are_learned_and_evaluated_by_length(
  tmp_path, call_command
):
  config = make_small_config()
  config.task = 'classify_tokens'
  config.data.source = (
    'algorithmic(task=duplicate_string, train=60, validation=20, test=20, '
    'longest_train=12, longest_test=18)'
  )
  path = str(tmp_path / 'run')
  result = run_lib.run(config, path, Signals())
  code, stdout, stderr = call_command('evaluate', f'--workdir={path}', cwd=ROOT)
  assert code == 0, stderr
  found = last_json(stdout)
  assert found['accuracy'] == pytest.approx(result['accuracy'], rel=1e-5)
  parts = found['by_length']
  assert {part['longest'] for part in parts} == {15, 18}
  counts = np.array([part['count'] for part in parts])
  accuracies = [part['accuracy'] for part in parts]
  # A string of 3 n tokens has 2 n labels.
  weights = counts * [10, 12]
  assert found['accuracy'] == pytest.approx(
    np.average(accuracies, weights=weights), rel=1e-5
  )


def test_a_large_loss_has_a_finite_perplexity():
  """Else a run would be taken for diverged whose loss is finite."""
  task = TASKS['next_token']()
  for loss in (np.float32(105.0), jnp.float32(105.0)):
    assert np.isfinite(task.mean_metrics(loss, 0.0)['perplexity'])
  assert np.isnan(task.mean_metrics(np.float32(np.nan), 0.0)['perplexity'])
  np.testing.assert_allclose(
    task.mean_metrics(np.float32(3.0), 0.0)['perplexity'],
    np.exp(3.0),
    rtol=1e-6,
  )


@pytest.mark.parametrize('labels', [Classes(), None])
def test_a_task_reads_no_labels_that_it_does_not_declare(labels):
  class Probe(Task):
    def targets(self, batch, vocab_size, bits):
      return batch.labels

  Probe.labels = labels
  batch = make_batch()
  found = tasks.targets_of(Probe(), batch, V, None)
  assert (found is batch.labels) if labels else (found is None)
  classifier, _ = model_of(make_settings('classify'))
  found = steps.eval_targets(Probe(), classifier, batch)
  assert (found is not None) == (labels is not None)


def test_a_prediction_is_correct_where_all_other_logits_are_smaller():
  logits = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
  labels = np.arange(50) % 7
  logits[0], logits[1, 3] = 0.0, np.nan
  targets = Targets(None, None, labels, None)
  _, correct = Task.losses(None, jnp.asarray(logits), targets)
  expected = logits.argmax(axis=1) == labels
  expected[0] = expected[1] = False
  np.testing.assert_array_equal(correct, expected)
