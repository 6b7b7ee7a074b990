"""Classification heads, from pooled vectors and tokens to logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from conftest import draw

from configs import default
from experiments.command.errors import UserError
from experiments.settings import settings as settings_lib
from experiments.training import build
from selfattn import heads, naive_bayes
from selfattn.baselines import BowEncoder
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.heads import HEADS, Head, Linear, Mlp, Nbsvm, WideAndDeep
from selfattn.pools import Cls

B, L, P, C, V, D = 3, 7, 5, 4, 11, 6
# One n-gram twice, one across the end of the text, a text without tokens.
TOKENS = jnp.array([[3, 4, 3, 4, 9, 9, 2], [8, 8, 8, 5, 1, 0, 0], [0] * 7])
LENGTHS = (7, 5, 0)
IS_TOKEN = jnp.arange(L)[None] < jnp.array(LENGTHS)[:, None]
POOLED = jax.random.normal(jax.random.key(0), (B, P))
BUCKETS = 97


OPTIONS = {
  'linear': {},
  'mlp': {'hidden_dim': 6},
  'wide_and_deep': {'max_n': 3, 'num_buckets': BUCKETS},
  'nbsvm': {'max_n': 3, 'max_features': 30},
}


def made(name):
  head = HEADS[name](**OPTIONS[name])

  def init(key):
    return head.init(key, POOLED, TOKENS, IS_TOKEN, C)

  params = draw(init, jax.random.key(1))['params']
  if name == 'nbsvm':
    # The n-grams of the first text, and some that are in no text.
    ngrams = np.sort([2, *hashes_of(TOKENS[0].tolist()), 2**31 - 2])
    more = 0, 30 - len(ngrams)
    assert min(more[1:]) > 0
    ngrams = np.pad(ngrams, more, constant_values=2**31 - 1)
    params['fitted_ngrams'] = jnp.array(ngrams, jnp.int32)
    is_row = params['fitted_ngrams'] < 2**31 - 1
    params['fitted_logits'] *= is_row[:, None]
  return head, {'params': params}


def rows_of(tokens):
  """The rows of the n-grams of a text."""
  return hashes_of(tokens, BUCKETS)


def hashes_of(tokens, count=2**31 - 1):
  """Those of the n-grams of a text, from the formula."""
  return {
    sum(
      (int(token) + 1) * pow(2_654_435_789, back, 2**32)
      for back, token in enumerate(reversed(tokens[end - n : end]))
    )
    % 2**32
    % count
    for n in (1, 2, 3)
    for end in range(n, len(tokens) + 1)
  }


def of_ngrams(tokens, params):
  """In float64: a sum over the set of rows, or of known n-grams."""
  if 'embedding' in params:
    table = dict(enumerate(params['embedding']))
    return sum((table[row] for row in rows_of(tokens)), np.zeros(C))
  known = dict(
    zip(params['fitted_ngrams'], params['fitted_logits'], strict=True)
  )
  zeros = np.zeros(C)
  return sum((known.get(each, zeros) for each in hashes_of(tokens)), zeros)


def affine(params, x):
  return x @ params['kernel'] + params['bias']


# In float64: of the parameters, the pooled vector and the tokens.
FORMULAS = {
  'linear': lambda params, pooled, tokens: affine(params, pooled),
  'mlp': lambda params, pooled, tokens: affine(
    params, np.tanh(affine(params['dense'], pooled))
  ),
  'wide_and_deep': lambda params, pooled, tokens: (
    affine(params, pooled) + of_ngrams(tokens, params)
  ),
  'nbsvm': lambda params, pooled, tokens: (
    params['fitted_bias'] + of_ngrams(tokens, params)
  ),
}


@pytest.mark.parametrize('name', HEADS)
def test_a_head_equals_its_formula_and_never_sees_padding(name):
  head, variables = made(name)
  params = jax.tree.map(np.float64, variables['params'])
  tokens = jnp.where(IS_TOKEN, TOKENS, 10)
  found = jax.jit(head.apply, static_argnums=4)(
    variables, POOLED, tokens, IS_TOKEN, C
  )
  assert (found.shape, found.dtype) == ((B, C), jnp.float32)
  for row, length in enumerate(LENGTHS):
    text = TOKENS[row, :length].tolist()
    wanted = FORMULAS[name](params, np.float64(POOLED[row]), text)
    np.testing.assert_allclose(found[row], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', ['linear', 'wide_and_deep'])
def test_parameters_and_logits_are_those_of_a_dense_layer(name):
  """The same names, and the same values from a seed."""

  class Both(nn.Module):
    is_dense: bool

    @nn.compact
    def __call__(self):
      if self.is_dense:
        return nn.Dense(C, name='head')(POOLED)
      return HEADS[name](name='head')(POOLED, TOKENS, IS_TOKEN, C)

  wanted, dense = Both(True).init_with_output(jax.random.key(3))
  found, variables = Both(False).init_with_output(jax.random.key(3))
  np.testing.assert_array_equal(found, wanted)
  for leaf in ('kernel', 'bias'):
    np.testing.assert_array_equal(
      variables['params']['head'][leaf], dense['params']['head'][leaf]
    )


def test_ngrams_change_nothing_at_initialisation_and_count_once():
  models = [
    TextClassifier(V, C, D, BowEncoder(), pool=Cls(), head=head)
    for head in (Linear(), WideAndDeep(3, BUCKETS))
  ]
  variables = [m.init(jax.random.key(0), TOKENS, IS_TOKEN) for m in models]
  plain, wide = (
    m.apply(v, TOKENS, IS_TOKEN) for m, v in zip(models, variables, strict=True)
  )
  # Also the parameters of the head are drawn alike.
  np.testing.assert_array_equal(plain, wide)

  def loss(params):
    return models[1].apply({'params': params}, TOKENS, IS_TOKEN).sum()

  grads = jax.grad(loss)(variables[1]['params'])['head']['embedding']
  # Each n-gram of a text once for each class; none share a row here.
  counts = [
    len({tuple(t[i : i + n]) for n in (1, 2, 3) for i in range(len(t) - n + 1)})
    for t in (TOKENS[r, :length].tolist() for r, length in enumerate(LENGTHS))
  ]
  assert grads.sum() == sum(counts) * C


def counted(features, labels, num_classes):
  """Wang and Manning (2012), section 2, in float64: r, by row of the table."""
  counts = np.zeros((features.shape[1], num_classes))
  for present, label in zip(features, labels, strict=True):
    counts[present, label] += 1
  is_there = counts.sum(axis=1) > 0
  ratio = np.zeros_like(counts)
  for label in range(num_classes):
    p = 1 + counts[is_there, label]
    q = 1 + np.delete(counts[is_there], label, axis=1).sum(axis=1)
    ratio[is_there, label] = np.log((p / p.sum()) / (q / q.sum()))
  return ratio


def features_of(texts, columns):
  """Boolean: which of the columns, of hashes, each text has."""
  return np.array(
    [
      [column in hashes_of(text, 2**31 - 1) for column in columns]
      for text in texts
    ]
  )


@pytest.mark.parametrize('num_classes', [2, C])
def test_ratios_of_naive_bayes_are_counted_over_batches(num_classes):
  head = WideAndDeep(3, BUCKETS, naive_bayes=True)
  rng = np.random.default_rng(0)
  lengths = rng.integers(0, L + 1, 12)
  tokens = rng.integers(0, V, (12, L))
  labels = rng.integers(0, num_classes, 12)
  padded = np.arange(L) < lengths[:, None]
  batches = [
    (tokens[i], padded[i], labels[i]) for i in np.split(np.arange(12), 3)
  ]
  found = head.statistics(batches, num_classes)
  texts = [t[:n].tolist() for t, n in zip(tokens, lengths, strict=True)]
  rows = [rows_of(text) for text in texts]
  features = np.array(
    [[row in each for row in range(BUCKETS)] for each in rows]
  )
  wanted = counted(features, labels, num_classes)
  assert (wanted == 0).all(axis=1).any()  # of n-grams that do not occur
  np.testing.assert_allclose(found['ratio'], wanted, atol=1e-6)
  if num_classes == 2:
    np.testing.assert_allclose(wanted[:, 0], -wanted[:, 1], atol=1e-12)


def test_a_class_without_texts_has_finite_ratios():
  head = WideAndDeep(1, BUCKETS, naive_bayes=True)
  batch = np.array([[3, 4]]), np.ones((1, 2), bool), np.array([0])
  for texts in ([batch], []):
    assert np.isfinite(head.statistics(texts, 3)['ratio']).all()


def test_ratios_multiply_logits_of_ngrams():
  head = WideAndDeep(3, BUCKETS, naive_bayes=True)
  plain = WideAndDeep(3, BUCKETS)
  params = draw(
    lambda key: head.init(key, POOLED, TOKENS, IS_TOKEN, C), jax.random.key(1)
  )['params']
  product = {k: v for k, v in params.items() if k != 'ratio'}
  product['embedding'] = params['embedding'] * params['ratio']
  np.testing.assert_array_equal(
    head.apply({'params': params}, POOLED, TOKENS, IS_TOKEN, C),
    plain.apply({'params': product}, POOLED, TOKENS, IS_TOKEN, C),
  )


def drawn_texts(num_classes, count=40):
  """(batches, texts, labels); one of the texts has no tokens."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, L + 1, count)
  lengths[5] = 0
  tokens = rng.integers(0, V, (count, L))
  labels = rng.integers(0, num_classes, count)
  padded = np.arange(L) < lengths[:, None]
  batches = [
    (tokens[i], padded[i], labels[i]) for i in np.split(np.arange(count), 4)
  ]
  texts = [t[:n].tolist() for t, n in zip(tokens, lengths, strict=True)]
  return batches, texts, labels


@pytest.mark.parametrize('num_classes', [2, C])
@pytest.mark.parametrize('c', [0.1, 3.0])
def test_nbsvm_is_the_minimum_of_its_convex_objective(num_classes, c):
  """The gradient is zero there; dense features, and jax in float64."""
  batches, texts, labels = drawn_texts(num_classes)
  found = Nbsvm(3, c).statistics(batches, num_classes)
  assert set(found) == {'fitted_ngrams', 'fitted_logits', 'fitted_bias'}
  known = found['fitted_ngrams'] < 2**31 - 1
  columns = found['fitted_ngrams'][known]
  assert sorted(set().union(*map(hashes_of, texts))) == columns.tolist()
  assert not found['fitted_logits'][~known].any()
  logits_of_all = found['fitted_logits'][known]
  features = features_of(texts, columns)
  ratio = counted(features, labels, num_classes)
  x = np.float64(features)

  def objective(w, bias):
    logits = x @ (w * ratio) + bias[None]
    logs = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(logs, labels[:, None], axis=1)
    return -c * own.sum() + (w**2).sum() / 2

  is_used = ratio != 0
  w = np.where(is_used, logits_of_all / np.where(is_used, ratio, 1), 0)
  assert np.abs(w).max() > 0.01
  with jax.enable_x64(True):
    point = np.float64(w), np.float64(found['fitted_bias'])
    of_w, of_bias = jax.grad(objective, (0, 1))(*point)
    origin = jax.grad(objective, (0, 1))(*map(np.zeros_like, point))
  assert min(np.abs(each).max() for each in origin) > 0.1
  for derivative in (of_w, of_bias):
    np.testing.assert_allclose(derivative, 0, atol=1.1e-4)


@pytest.mark.parametrize('beta', [0.0, 0.25])
@pytest.mark.parametrize('num_classes', [2, C])
def test_nbsvm_is_interpolated_with_naive_bayes(num_classes, beta):
  """Wang and Manning (2012), section 2.3: (1 - b) |w|_1 / V + b w."""
  batches, texts, labels = drawn_texts(num_classes)
  alone = Nbsvm(3, 1.0).statistics(batches, num_classes)
  found = Nbsvm(3, 1.0, beta).statistics(batches, num_classes)
  known = alone['fitted_ngrams'] < 2**31 - 1
  columns = alone['fitted_ngrams'][known]
  ratio = counted(features_of(texts, columns), labels, num_classes)
  w = np.zeros_like(ratio)
  np.divide(alone['fitted_logits'][known], ratio, out=w, where=ratio != 0)
  mean = np.abs(w).mean(axis=0)
  wanted = ((1 - beta) * mean + beta * w) * ratio
  np.testing.assert_allclose(
    found['fitted_logits'][known], wanted, rtol=1e-4, atol=1e-6
  )
  sizes = np.bincount(labels, minlength=num_classes)
  prior = np.log((1 + sizes) / (1 + sizes.sum() - sizes))
  np.testing.assert_allclose(
    found['fitted_bias'],
    (1 - beta) * mean * prior + beta * alone['fitted_bias'],
    rtol=1e-4,
    atol=1e-6,
  )


@pytest.mark.parametrize('beta', [0.0, 0.25, 1.0])
def test_nbsvm_predicts_no_class_without_texts(beta):
  batches, _, _ = drawn_texts(2)
  found = Nbsvm(3, 1.0, beta).statistics(batches, 3)['fitted_bias']
  assert found[2] < found[:2].min() - 1


@pytest.mark.parametrize('most', [1, 20, 60])
def test_nbsvm_reads_the_ngrams_that_are_in_most_texts(most):
  batches, texts, labels = drawn_texts(2)
  with pytest.warns(UserWarning, match=rf'nbsvm\.max_features = {most}: only'):
    found = Nbsvm(3, max_features=most).statistics(batches, 2)
  kept = found['fitted_ngrams']
  assert (np.diff(kept) > 0).all()
  columns = np.array(sorted(set().union(*map(hashes_of, texts))))
  counts = features_of(texts, columns).sum(axis=0)
  is_kept = np.isin(columns, kept)
  assert is_kept.sum() == len(kept) == most < len(columns)
  assert counts[is_kept].min() >= counts[~is_kept].max()
  # As if there were no others.
  features = features_of(texts, kept)
  logits, bias = naive_bayes.fit(
    np.nonzero(features)[1],
    features.sum(axis=1).cumsum(),
    labels,
    most,
    2,
    1.0,
  )
  np.testing.assert_allclose(found['fitted_logits'], logits, atol=1e-5)
  np.testing.assert_allclose(found['fitted_bias'], bias, atol=1e-5)


def test_nbsvm_tells_that_it_has_not_converged(monkeypatch):
  batches, _, _ = drawn_texts(2)
  minimize = scipy.optimize.minimize

  def stopped(*args, options, **kwargs):
    return minimize(*args, options=options | {'maxiter': 2}, **kwargs)

  monkeypatch.setattr(scipy.optimize, 'minimize', stopped)
  with pytest.warns(UserWarning, match='c = 3.0: .* not converged in 2 '):
    Nbsvm(3, 3.0).statistics(batches, 2)


def test_nbsvm_is_the_same_for_any_size_and_number_of_texts():
  """Copies of two texts with their own n-grams have the weights of one copy."""

  def logits(copies):
    rows = np.repeat(np.arange(2 * copies), 2)
    labels = np.tile([0, 0, 1, 1], copies)
    ends = np.arange(1, len(rows) + 1)
    return naive_bayes.fit(rows, ends, labels, 2 * copies, 2, 1.0)[0]

  few, many = logits(250), logits(150_000)
  assert few.min() < -0.1
  np.testing.assert_allclose(many[:2], few[:2], rtol=2e-3)


def test_nbsvm_of_batches_of_several_sizes_is_that_of_one():
  batches, _, _ = drawn_texts(2)
  whole = tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))
  parts = [tuple(a[s] for a in whole) for s in np.split(np.arange(40), (3, 30))]
  found, wanted = (Nbsvm(3).statistics(texts, 2) for texts in (parts, [whole]))
  for name in wanted:
    np.testing.assert_allclose(found[name], wanted[name], atol=1e-6)


def test_nbsvm_without_texts_or_tokens():
  empty = np.zeros((3, 2), int), np.zeros((3, 2), bool), np.array([0, 1, 0])
  for texts in ([], [empty]):
    found = Nbsvm(1, max_features=9).statistics(texts, 2)
    assert found['fitted_ngrams'].tolist() == [2**31 - 1] * 9
    assert not found['fitted_logits'].any()
    assert found['fitted_logits'].shape == (9, 2)
    # The classes of texts without tokens are those of two thirds and a third.
    bias = found['fitted_bias']
    wanted = np.log(2) if texts else 0
    np.testing.assert_allclose(bias[0] - bias[1], wanted, atol=1e-3)


def test_dropout_within_a_head_is_that_of_training_alone():
  head = heads.make({'mlp': {}, 'nbsvm': OPTIONS['nbsvm']})
  inputs = POOLED, TOKENS, IS_TOKEN, C
  variables = head.init(jax.random.key(1), *inputs)
  half = Dropout.create(jax.random.key(2), 0.5)
  plain, dropped = (head.apply(variables, *inputs, d) for d in (None, half))
  none = head.apply(variables, *inputs, Dropout.create(jax.random.key(2), 0.0))
  np.testing.assert_allclose(none, plain, atol=1e-6)
  assert np.abs(dropped[:, 1] - plain[:, 1]).min() > 1e-4
  np.testing.assert_array_equal(dropped[:, 2], plain[:, 2])
  # A hidden unit is kept, and doubled, or it is not.
  mlp = Mlp(hidden_dim=1)
  variables = mlp.init(jax.random.key(1), *inputs)
  plain = mlp.apply(variables, *inputs)
  found = [
    mlp.apply(variables, *inputs, half.at(site)) / plain for site in range(20)
  ]
  np.testing.assert_allclose(np.unique(np.round(found, 4)), [0, 2])


class Recorded(Head):
  def __call__(self, pooled, tokens, mask, num_classes, dropout=None):
    self.sow('intermediates', 'dropout', dropout)
    return pooled[:, :num_classes]


def test_dropout_of_a_classifier_reaches_each_head_with_bits_of_its_own():
  parts = tuple((name, Recorded(parent=None)) for name in ('one', 'two'))
  joined = heads.LateFusion(parts)
  model = TextClassifier(V, C, D, BowEncoder(), head=joined)
  variables = model.init(jax.random.key(0), TOKENS, IS_TOKEN)
  keys = [(0, 0)]
  for dropout in (None, Dropout.create(jax.random.key(0), 0.3)):
    _, sown = model.apply(
      variables, TOKENS, IS_TOKEN, dropout, mutable='intermediates'
    )
    for name in ('one', 'two'):
      (found,) = sown['intermediates']['head'][name]['dropout']
      assert getattr(found, 'rate', None) == getattr(dropout, 'rate', None)
      keys += [] if found is None else [tuple(found.key_data.tolist())]
  # Neither those of the encoder nor those of the pooled vector.
  others = [
    tuple(d.key_data.tolist()) for d in (dropout, *map(dropout.at, (0, 1)))
  ]
  assert len({*keys, *others}) == len(keys) + len(others) == 6


def test_classifiers_beside_one_another_have_their_own_heads():
  class Two(nn.Module):
    @nn.compact
    def __call__(self):
      return [
        TextClassifier(V, count, D, BowEncoder(), name=name)(TOKENS, IS_TOKEN)
        for name, count in (('x', 3), ('y', 4))
      ]

  params = jax.eval_shape(Two().init, jax.random.key(0))['params']
  found = [params[name]['head']['kernel'].shape for name in ('x', 'y')]
  assert found == [(D, 3), (D, 4)]


@pytest.mark.parametrize('given', [{'head': 'linear'}, {'pool': 'mean'}])
def test_names_are_no_heads_and_no_pools(given):
  model = TextClassifier(V, C, D, BowEncoder(), **given)
  with pytest.raises(TypeError, match=r"= '.*' must be a (Head|Pool)"):
    model.init(jax.random.key(0), TOKENS, IS_TOKEN)


def test_joined_heads_have_the_logits_of_each_head_and_its_parameters():
  options = {
    'wide_and_deep': OPTIONS['wide_and_deep'],
    'nbsvm': OPTIONS['nbsvm'] | {'fusion_weight': 3.0},
  }
  joined = heads.make(options)
  assert joined.token_params == (
    'wide_and_deep/embedding',
    'wide_and_deep/ratio',
  )
  assert joined.frozen_params == (
    'nbsvm/fitted_ngrams',
    'nbsvm/fitted_logits',
    'nbsvm/fitted_bias',
  )
  params = draw(
    lambda key: joined.init(key, POOLED, TOKENS, IS_TOKEN, C), jax.random.key(1)
  )['params']
  assert set(params) == {'wide_and_deep', 'nbsvm'}
  found = joined.apply({'params': params}, POOLED, TOKENS, IS_TOKEN, C)
  assert (found.shape, found.dtype) == ((B, 3, C), jnp.float32)
  mean = found[:, 1] / 4 + found[:, 2] * 3 / 4
  np.testing.assert_allclose(found[:, 0], mean, rtol=1e-5, atol=1e-6)
  for index, name in enumerate(('wide_and_deep', 'nbsvm'), 1):
    alone = HEADS[name](**options[name]).apply(
      {'params': params[name]}, POOLED, TOKENS, IS_TOKEN, C
    )
    np.testing.assert_array_equal(found[:, index], alone)


def test_joined_heads_count_what_each_head_counts():
  batches, _, _ = drawn_texts(C)
  options = OPTIONS['wide_and_deep'] | {'naive_bayes': True}
  joined = heads.make({'wide_and_deep': options, 'nbsvm': {'max_n': 2}})
  found = joined.statistics(batches, C)
  assert set(found) == {
    'wide_and_deep/ratio',
    'nbsvm/fitted_ngrams',
    'nbsvm/fitted_logits',
    'nbsvm/fitted_bias',
  }
  alone = Nbsvm(max_n=2).statistics(batches, C)
  np.testing.assert_array_equal(
    found['nbsvm/fitted_logits'], alone['fitted_logits']
  )


class Sharp(Head):
  """A stranger's."""

  temperature: float = 2.0

  def setup(self):
    self.scale = self.param('scale', jax.nn.initializers.ones, ())

  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    return self.temperature * self.scale * pooled_BP[:, :num_classes]


def test_a_head_of_ones_own_is_one_class_and_one_line(monkeypatch):
  monkeypatch.setitem(HEADS, 'sharp', Sharp)
  config = default.get_config()
  config.model.head.name = 'sharp'
  config.model.head.sharp.temperature = 3.0
  settings = settings_lib.from_config(config)
  assert settings.flat()['model.head.sharp.temperature'] == 3.0
  model = build.model(settings, V, C)
  params = jax.eval_shape(model.init, jax.random.key(0), TOKENS, IS_TOKEN)
  assert params['params']['head']['scale'].shape == ()


@pytest.mark.parametrize('value', [-1.0, float('nan'), 1e39, (1.0, 2.0), True])
def test_the_weight_of_a_joined_head_is_checked(value, monkeypatch):
  monkeypatch.setattr(Sharp, 'fusion_weight', value, raising=False)
  joined = heads.LateFusion((('linear', Linear()), ('sharp', Sharp())))
  with pytest.raises(ValueError, match=r'sharp\.fusion_weight = .* must be'):
    joined.check()


@pytest.mark.parametrize('joined', ['{}', 'linear+{}'])
@pytest.mark.parametrize(
  ('name', 'option', 'value'),
  [
    ('wide_and_deep', 'max_n', 0),
    ('wide_and_deep', 'num_buckets', 0),
    ('mlp', 'hidden_dim', 0),
    ('nbsvm', 'max_n', 0),
    ('nbsvm', 'max_n', 17),
    ('nbsvm', 'max_features', 2**31 - 1),
    ('nbsvm', 'c', 0.0),
    ('nbsvm', 'max_features', 0),
    ('nbsvm', 'fusion_weight', 0.0),
    ('nbsvm', 'interpolation', 1.5),
  ],
)
def test_options_of_a_head_are_checked_with_their_key(
  name, option, value, joined
):
  config = default.get_config()
  config.model.head.name = joined.format(name)
  config.model.head[name][option] = value
  with pytest.raises(
    UserError, match=rf'config\.model\.head\.{name}\.{option} = {value} must'
  ):
    settings_lib.from_config(config)
