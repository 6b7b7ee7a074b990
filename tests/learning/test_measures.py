"""Measures of what layers sow are metrics of a run."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, make_small_config

from experiments.command.errors import UserError
from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.inspection.head_analysis import sown, sown_weights
from experiments.learning import gradients, steps
from experiments.learning.measures import MEASURES, Measure, Sown
from experiments.settings.settings import from_config
from experiments.sweeps import comparison
from experiments.training import compiled
from experiments.training import run as run_lib
from experiments.workdir.checkpoints import leaves
from experiments.workdir.metrics import read_rows
from selfattn.blocks import PreNorm

pytestmark = pytest.mark.usefixtures('shared_programs')
NAMES = ('attention_entropy', 'attention_distance', 'attention_to_first')


def make_config(**changes):
  config = make_small_config()
  config.train.measures = '+'.join(NAMES)
  config.model.num_layers = 2
  config.model.position = 'alibi'
  config.update_from_flattened_dict(changes)
  return config


def expected(weights, count):
  """Measures of a text in float64, query by query.

  Args:
    weights: of all layers and heads, (N, H, L, L).
    count: its tokens.
  """
  entropies, distances, firsts = [], [], []
  for layer, head, query in np.ndindex(*weights.shape[:2], count):
    shares = [abs(w) for w in weights[layer, head, query].tolist()]
    total = math.fsum(shares) or 1.0
    shares = [share / total for share in shares]
    entropies.append(-math.fsum(p * math.log(p) for p in shares if p))
    distances.append(
      math.fsum(p * abs(key - query) for key, p in enumerate(shares))
    )
    firsts.append(shares[0])
  measures = (entropies, distances, firsts)
  return [math.fsum(x) / max(len(x), 1) for x in measures]


BATCH = Batch(
  np.arange(21, dtype=np.int32).reshape(3, 7) + 2,
  np.array([7, 4, 0], np.int32),
  np.zeros(3, np.int32),
  np.ones(3, np.float32),
)
VOCABULARY = Vocabulary(30)


@pytest.mark.parametrize(
  'changes',
  [
    pytest.param(
      {
        'model.pool': 'cls',
        'model.normaliser': 'differential',
        'model.encoder': 'attention(scan=True, remat=True)',
      },
      marks=pytest.mark.slow,
    ),
    {'model.encoder': 'attention(backend=xla)'},
    {'model.encoder': 'linear_attention', 'model.position': 'rotary'},
  ],
  ids=str,
)
def test_measures_are_those_of_the_weights_in_float64(changes):
  settings = from_config(make_config(**changes))
  program = compiled.make(settings, VOCABULARY, LabelFacts(('a', 'b')))
  hparams = program.hparams([settings])
  params = draw(lambda: program.init(hparams).params)
  measured = program.eval_step(params, BATCH)[-len(NAMES) :]
  weights = sown_weights(sown(program.classifier, params, BATCH))
  weights = np.asarray(weights, np.float64)
  extra = int(program.classifier.has_cls)
  want = [
    expected(weights[:, row], count + extra)
    for row, count in enumerate(BATCH.lengths.tolist())
  ]
  got = np.stack(measured, axis=-1)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_measures_are_metrics_of_each_evaluation_and_of_the_result(
  tmp_path, finished_run
):
  """And change no metric of the task."""
  config = make_small_config()
  config.train.measures = '+'.join(NAMES)
  config.checkpoint.best_metric = 'attention_entropy'
  result = run_lib.run(config, str(tmp_path))
  rows = read_rows(str(tmp_path / 'metrics.jsonl'))
  without = read_rows(str(finished_run / 'metrics.jsonl'))
  for row, other in zip(rows, without, strict=True):
    assert {name: row[name] for name in other} == pytest.approx(other, rel=1e-5)
  scores = {
    row['step']: row['validation/attention_entropy']
    for row in rows
    if 'validation/attention_entropy' in row
  }
  assert len(scores) > 1
  assert scores[result['step']] == min(scores.values())
  assert 0 < result['attention_entropy'] < math.log(20)
  assert result['attention_distance'] > 0


def test_a_sweep_ranks_by_a_measure_as_its_class_says():
  @dataclasses.dataclass(frozen=True)
  class Greatest(Measure):
    best = max

  settings = from_config(make_config())
  call = settings.train.measures[0]
  own = dataclasses.replace(call, name='ideas:Greatest', entry=Greatest)
  train = dataclasses.replace(settings.train, measures=(own,))
  changed = dataclasses.replace(settings, train=train)
  specs = [types.SimpleNamespace(settings=s) for s in (settings, changed)]
  metrics = comparison.metrics(specs)
  assert metrics['attention_distance'] is min
  assert metrics['Greatest'] is max
  assert metrics['accuracy'] is max


def test_a_measure_with_the_name_of_a_metric_is_refused(monkeypatch):
  monkeypatch.setitem(MEASURES, 'accuracy', MEASURES['attention_entropy'])
  with pytest.raises(UserError, match=r'train\.measures = accuracy'):
    from_config(make_config(**{'train.measures': 'accuracy'}))


class Quiet(PreNorm):
  """A block that measures how much its branches add to each token."""

  def added(self, x_BLD, h_BLD, dropout, site):
    self.sow('measured', 'added', (h_BLD**2).mean(axis=-1))
    self.sow('measured', 'largest', abs(h_BLD).max(axis=-1))
    return super().added(x_BLD, h_BLD, dropout, site)


@dataclasses.dataclass(frozen=True)
class OfShape(Measure):
  """Zeros of a shape that is not that of a batch."""

  shape: tuple = ()

  def __call__(self, sown, padding_mask_BL):
    return jnp.zeros(self.shape)


class Fails(Measure):
  """A mistake."""

  def __call__(self, sown, padding_mask_BL):
    return sown['absent']


class OnHost(Measure):
  """It computes with NumPy."""

  def __call__(self, sown, padding_mask_BL):
    return np.asarray(padding_mask_BL).sum(axis=1)


@pytest.mark.parametrize(
  ('measures', 'said'),
  [
    ('sown(name=nothing)', 'sows nothing.* layers sow added, largest'),
    ('sown(name=added)+sown(name=added,weight=1.0)', 'joins sown_added with'),
    ('load_balance', 'it reads routers, and config.model.experts gives no'),
    ('attention_entropy(weight=inf)', "weight = 'inf' must be a number"),
    (f'{__name__}:OfShape', r'OfShape returns shape \(\)'),
    (f'{__name__}:OfShape(shape=(1,))', r'OfShape returns shape \(1,\)'),
    (f'{__name__}:OfShape(shape=(2,))', r'OfShape returns shape \(2,\)'),
    (f'{__name__}:OnHost', r'OnHost: .* line \d+: TracerArrayConversion'),
    (f'{__name__}:Fails', rf"Fails: {__file__} line \d+: KeyError: 'absent'"),
  ],
)
@pytest.mark.parametrize('experts', ['', 'experts(dense_layers=(0, 1))'])
def test_a_measure_that_cannot_be_is_one_line(measures, experts, said):
  def make():
    changes = {'train.measures': measures, 'model.experts': experts}
    block = {'model.block': f'{__name__}:Quiet'}
    settings = from_config(make_config(**changes, **block))
    compiled.make(settings, VOCABULARY, LabelFacts(('a', 'b')))

  with pytest.raises(UserError, match=said):
    make()


def test_what_is_sown_is_added_in_float32_and_named_by_what_it_is():
  tree = {
    f'block_{n}': {'a': (jnp.full(1, 2.0**-n, jnp.bfloat16),)}
    for n in range(12)
  }
  (total,) = Sown(name='a')(tree, jnp.ones((1, 3), bool))
  assert total == 2 - 2.0**-11
  changes = {'train.measures': 'sown(name=a)+sown(name=b)+sown'}
  settings = from_config(make_config(**changes))
  assert list(settings.metrics)[-3:] == ['sown_a', 'sown_b', 'sown']


TRAINED = {
  'train.measures': '+'.join(
    ['attention_entropy(weight=-0.1)', 'load_balance(weight=0.5)',
     'router_z(weight=0.25)', 'sown(name=added,weight=0.125)',
     'sown(name=largest,weight=0.5)']
  ),
  'model.experts': 'experts(count=3,dim=8)',
  'model.block': f'{__name__}:Quiet',
  'optimizer.warmup_steps': 0,
  # Adam would make the noise of gradients of 0 as large as the others.
  'optimizer.method': 'sgd',
  'optimizer.learning_rate': 1.0,
}  # fmt: skip
FACTS = LabelFacts(('a', 'b'))
FOUR = Batch(
  np.arange(28, dtype=np.int32).reshape(4, 7) % 28 + 2,
  np.array([7, 4, 0, 5], np.int32),
  np.array([0, 1, 1, 0], np.int32),
  np.array([1, 1, 1, 0], np.float32),
)


def of_experts(router, length):
  """(balance, z) of the first tokens of a text, in float64 loops."""
  scores, chosen, z = [], [], []
  for token in range(length):
    exps = [math.exp(logit) for logit in router['logits'][token].tolist()]
    scores.append([x / math.fsum(exps) for x in exps])
    chosen.append(router['chosen'][token].tolist())
    z.append(math.log(math.fsum(exps)) ** 2)
  count, length = len(router['logits'][0]), max(length, 1)
  balance = count * math.fsum(
    math.fsum(row[e] for row in scores) / length
    * math.fsum(row[e] / 2 for row in chosen) / length
    for e in range(count)
  )  # fmt: skip
  return balance, math.fsum(z) / length


@pytest.mark.slow
def test_measures_with_weights_are_added_to_the_loss():
  """The gradient is that of the sum, written out here."""
  settings = from_config(make_config(**TRAINED))
  program = compiled.make(settings, VOCABULARY, FACTS)
  hparams = program.hparams([settings])
  hparams = hparams.replace(dropout_rate=None, attention_dropout_rate=None)
  params = draw(lambda: program.init(hparams).params)
  targets = steps.eval_targets(program.task, program.classifier, FOUR)
  mask = steps.padding_mask(targets)
  is_text = np.array([1.0, 1.0, 1.0, 0.0])
  measures = settings.train.trained_measures()

  def total(params):
    logits, sown = program.classifier.apply(
      {'params': params}, targets.tokens, mask, is_right_padded=True,
      mutable=['intermediates', 'measured'],
    )  # fmt: skip
    loss, _ = program.task.losses(logits, targets)
    values = {
      name: one(sown[one.collection]['encoder'], mask)
      for name, one in measures.items()
    }
    of_text = loss + sum(measures[n].weight * v for n, v in values.items())
    return (of_text * is_text).sum() / 3, (values, sown)

  want, (values, sown) = jax.grad(total, has_aux=True)(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(want))
  sums, got = gradients.gradients(
    params, FOUR, hparams, 0, classifier=program.classifier, task=program.task,
    measures=measures, num_microbatches=lambda shape: 2,
  )  # fmt: skip
  for name, leaf in leaves(want).items():
    np.testing.assert_allclose(
      leaves(got)[name] / 3, leaf, rtol=1e-4, atol=1e-7, err_msg=name
    )
  for (name, value), of_split in zip(values.items(), sums[3:], strict=True):
    np.testing.assert_allclose((value * is_text).sum(), of_split, err_msg=name)
  blocks = [sown['measured']['encoder'][f'block_{n}'] for n in range(2)]
  for row, length in enumerate(FOUR.lengths.tolist()):
    of_layers = [
      of_experts(
        {n: np.float64(v[0][row]) for n, v in block['experts'].items()}, length
      )
      for block in blocks
    ]
    balance, z = np.sum(of_layers, axis=0)
    np.testing.assert_allclose(values['load_balance'][row], balance, rtol=1e-5)
    np.testing.assert_allclose(values['router_z'][row], z, rtol=1e-5)
    for name in ('added', 'largest'):
      total = sum(leaf[row, :length].sum() for b in blocks for leaf in b[name])
      np.testing.assert_allclose(
        values[f'sown_{name}'][row], total / max(length, 1), rtol=1e-5
      )


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {'model.encoder': 'attention(scan=True, remat=True)'},
    {'train.grad_accum_steps': 4},
  ],
  ids=str,
)
def test_losses_of_layers_are_those_of_the_whole_batch(changes):
  def after(changes, **kwargs):
    settings = from_config(make_config(**TRAINED, **changes))
    program = compiled.make(settings, VOCABULARY, FACTS, **kwargs)
    hparams = program.hparams([settings])
    state, metrics = program.train_step(program.init(hparams), FOUR, hparams)
    return leaves(state.params), metrics

  want, of_step = after({}, devices=jax.devices()[:1])
  assert all(np.isfinite(leaf).all() for leaf in want.values())
  for kwargs in ({}, {'devices': jax.devices()[:4]}):
    got, metrics = after(changes, **kwargs)
    for name, value in of_step.items():
      np.testing.assert_allclose(metrics[name], value, rtol=1e-4)
    for name, leaf in want.items():
      np.testing.assert_allclose(got[name], leaf, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_trials_of_a_group_have_weights_of_their_own():
  def settings_of(weight):
    measures = f'attention_entropy(weight={weight})'
    changes = TRAINED | {'train.measures': measures}
    return from_config(make_config(**changes))

  both = [settings_of(weight) for weight in (0.5, 2.0)]
  program = compiled.make(both[0], VOCABULARY, FACTS, 2)
  hparams = program.hparams(both)
  state, _ = program.train_step(program.init(hparams), FOUR, hparams)
  for settings, got in zip(both, program.split(state, 2), strict=True):
    alone = compiled.make(settings, VOCABULARY, FACTS)
    hparams = alone.hparams([settings])
    want, _ = alone.train_step(alone.init(hparams), FOUR, hparams)
    for name, leaf in leaves(want.params).items():
      np.testing.assert_allclose(
        leaves(got.params)[name], leaf, rtol=1e-3, atol=1e-5, err_msg=name
      )


def test_weights_of_measures_are_swept_in_one_program():
  def key(measures):
    settings = from_config(make_config(**{'train.measures': measures}))
    return compiled.key(settings), settings.digest()

  one, other = (
    key(f'attention_entropy(weight={weight})') for weight in (0.1, 0.2)
  )
  assert one[0] == other[0]
  assert one[1] != other[1]
  assert key('attention_entropy')[0] != one[0]
