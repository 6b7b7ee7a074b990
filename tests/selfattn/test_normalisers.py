"""Normalisers against loops in float64, and inside attention and encoders."""

import functools
import math

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.normalisers import NORMALISERS
from selfattn.simplex import masked_softmax
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

# All different, so that no axis can stand in for another.
B, H, L, M, K = 2, 4, 3, 5, 6
# Queries that stand after all keys.
SIDES = Tokens(index=np.full((1, L), M)), Tokens().with_defaults(M)
# Query 1 of text 0 sees nothing, query 2 one key.
MASK = np.array(
  [
    [[1, 1, 1, 0, 1], [0] * 5, [0, 0, 1, 0, 0]],
    [[1] * 5, [0] * 5, [0, 1, 1, 0, 1]],
  ],
  bool,
)[:, None]


# One row a normaliser: the weights of one query in head h, in float64, from the
# scores of that head; those of MIXING read those of all.


def softmax(scores, params, h, options):
  total = sum(math.exp(s) for s in scores)
  return [math.exp(s) / total for s in scores]


def sinks(scores, params, h, options):
  sink = params['sink'][h] if options.get('learned', True) else 0.0
  total = math.exp(sink) + sum(math.exp(s) for s in scores)
  return [math.exp(s) / total for s in scores]


def sigmoid(scores, params, h, options):
  n = len(scores) if options.get('by_length', True) else 1
  return [1 / (1 + math.exp(math.log(n) - s)) for s in scores]


def entmax(scores, params, h, options):
  """By the exact support of Newton's steps on a convex function of tau."""
  alpha = options.get('alpha', 1.5)
  if options.get('learned'):
    alpha = 1 + 1 / (1 + math.exp(-params['alpha_logit'][h]))
  scaled = [(alpha - 1) * s for s in scores]
  tau, power = max(scaled) - 1, 1 / (alpha - 1)
  for _ in range(200):
    above = [max(s - tau, 0.0) for s in scaled]
    excess = sum(a**power for a in above) - 1
    if excess < 1e-15:
      break
    tau += excess / sum(power * a ** (power - 1) for a in above if a > 0)
  return [max(s - tau, 0.0) ** power for s in scaled]


def ssmax(scores, params, h, options):
  factor = params['scale'][h] * math.log(len(scores))
  return softmax([factor * s for s in scores], params, h, options)


def scaled_entmax(scores, params, h, options):
  delta, beta, gamma = (params[n][h] for n in ('delta', 'beta', 'gamma'))
  growth = math.log(max(len(scores), 2)) ** math.tanh(gamma)
  factor = delta + math.log1p(math.exp(beta)) * growth
  return entmax([factor * s for s in scores], params, h, options)


def sparsemax(scores, params, h, options):
  """By sorting (Martins and Astudillo 2016, algorithm 1)."""
  order = sorted(scores, reverse=True)
  taus = [(sum(order[: k + 1]) - 1) / (k + 1) for k in range(len(order))]
  size = sum(s > tau for s, tau in zip(order, taus, strict=True))
  return [max(s - taus[size - 1], 0.0) for s in scores]


def talking_heads(scores, params, h, options):
  mixed = params['before'].T @ np.array(scores)
  weights = np.array([softmax(row, params, h, options) for row in mixed])
  return params['after'][:, h] @ weights


def stick_breaking(scores, params, h, options):
  """Of the last token: the others stand before it, in their order."""
  left, weights = 1.0, []
  for s in reversed(scores):
    share = 1 / (1 + math.exp(-s))
    weights.append(left * share)
    left *= 1 - share
  return weights[::-1]


def lambda_of(params, options):
  pairs = [params[f'lambda_q{n}'] @ params[f'lambda_k{n}'] for n in (1, 2)]
  initial = options.get('highest', 0.8) - options.get('drop', 0.6)
  return math.exp(pairs[0]) - math.exp(pairs[1]) + initial


def differential(scores, params, h, options):
  first, second = (
    np.array(softmax(scores[n], params, h, options))
    for n in (h % (H // 2), h % (H // 2) + H // 2)
  )
  return first - lambda_of(params, options) * second


MIXING = ('talking_heads', 'differential')
ROWS = {
  'softmax': softmax,
  'sinks': sinks,
  'sigmoid': sigmoid,
  'sparsemax': sparsemax,
  'entmax': entmax,
  'ssmax': ssmax,
  'scaled_entmax': scaled_entmax,
  'stick_breaking': stick_breaking,
  'talking_heads': talking_heads,
  'differential': differential,
}
# Options whose value changes what is computed.
VARIANTS = [
  *((name, {}) for name in ROWS),
  ('sinks', {'learned': False}),
  ('sigmoid', {'by_length': False}),
  ('entmax', {'alpha': 1.2}),
  ('entmax', {'learned': True}),
  ('differential', {'highest': 0.5, 'drop': 0.2}),
]
variants = pytest.mark.parametrize(
  ('name', 'options'), VARIANTS, ids=lambda x: x if isinstance(x, str) else None
)


def test_every_normaliser_has_a_row():
  assert list(ROWS) == list(NORMALISERS)


def make(name, options):
  normaliser = NORMALISERS[name](H, head_dim=K, **options)
  return normaliser, draw(normaliser.init, jax.random.key(0))


def loop(name, options, params, scores, mask):
  """Weights (B, H, L, M), a row at a time, from the keys that it sees."""
  weights = np.zeros((B, H, L, M))
  for b, h, i in np.ndindex(B, H, L):
    seen = np.flatnonzero(mask[b, 0, i])
    rows = [[float(s) for s in row[seen]] for row in scores[b, :, i]]
    if len(seen):
      rows = rows if name in MIXING else rows[h]
      weights[b, h, i, seen] = ROWS[name](rows, params, h, options)
  return weights


def slopes(value, x):
  """Central differences of a number by each entry of x."""
  found = np.zeros_like(x)
  for place in np.ndindex(x.shape):
    up, down = x.copy(), x.copy()
    up[place] += 1e-5
    down[place] -= 1e-5
    found[place] = (value(up) - value(down)) / 2e-5
  return found


@variants
def test_weights_and_gradients_equal_a_loop(name, options):
  normaliser, params = make(name, options)
  scores = 2 * normal(3, (B, H, L, M))
  along = normal(4, (B, H, L, M))

  @jax.jit
  def found(params, scores):
    def total(params, scores):
      weights = normaliser(params, scores, MASK, *SIDES)
      return (weights * along).sum(), weights

    return jax.grad(total, argnums=(0, 1), has_aux=True)(params, scores)

  (of_params, of_scores), weights = found(params, scores)
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, scores))
  assert weights.dtype == jnp.float32
  want = functools.partial(loop, name, options)
  np.testing.assert_allclose(weights, want(*exact, MASK), atol=1e-6)

  def total(params, scores):
    return (want(params, scores, MASK) * np.asarray(along)).sum()

  np.testing.assert_allclose(
    of_scores, slopes(lambda s: total(exact[0], s), exact[1]), atol=1e-5
  )
  for key, value in exact[0].items():
    other = slopes(
      lambda x, key=key: total(exact[0] | {key: x}, exact[1]), value
    )
    np.testing.assert_allclose(of_params[key], other, atol=1e-5)


@variants
def test_a_row_that_sees_nothing_is_zero_with_finite_gradients(name, options):
  normaliser, params = make(name, options)
  scores = 1e4 * normal(3, (B, H, L, M))

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def found(scores):
    weights = normaliser(params, scores, MASK, *SIDES)
    nothing = weights[0, :, 1]
    return (weights**2).sum() + nothing.sum(), nothing

  (value, nothing), grads = found(scores)
  assert np.isfinite(value)
  assert np.isfinite(grads).all()
  assert (grads[0, :, 1] == 0).all()
  assert (nothing == 0).all()


@variants
def test_fresh_weights_of_equal_scores_sum_to_about_one(name, options):
  normaliser = NORMALISERS[name](H, head_dim=K, **options)
  params = normaliser.init(jax.random.key(0))
  side = SIDES[0].replace(index=SIDES[0].index[:, :1])
  scores = jnp.zeros((1, H, 1, M))
  weights = jax.jit(lambda p: normaliser(p, scores, None, side, SIDES[1]))(
    params
  )
  want = {
    'sinks': M / (M + 1),
    'sigmoid': M / (M + 1),
    'stick_breaking': 1 - 0.5**M,
  }.get(name, 1)
  want = M / 2 if options.get('by_length') is False else want
  if name == 'differential':
    want = 1 - lambda_of(params, options)
  np.testing.assert_allclose(weights.sum(axis=-1), want, rtol=1e-6)


def test_ssmax_begins_as_softmax_at_its_length():
  normaliser = NORMALISERS['ssmax'](H, length=M)
  scores = normal(3, (B, H, L, M))
  found = normaliser(normaliser.init(None), scores, None, *SIDES)
  np.testing.assert_allclose(found, jax.nn.softmax(scores), rtol=1e-5)


@pytest.mark.parametrize('logit', [-40.0, 40.0])
def test_a_learned_exponent_stays_inside_its_range(logit):
  normaliser = NORMALISERS['entmax'](1, learned=True)
  params = {'alpha_logit': jnp.full(1, logit)}
  scores = jnp.linspace(-2.0, 2.0, M)[None, None, None]
  sides = SIDES[0], SIDES[1]
  weights, grads = jax.jit(
    jax.value_and_grad(
      lambda p: (normaliser(p, scores, None, *sides) ** 2).sum()
    )
  )(params)
  assert np.isfinite(weights)
  assert np.isfinite(grads['alpha_logit']).all()
  with pytest.raises(ValueError, match=r'alpha = 1\.000001 must be from 1\.01'):
    NORMALISERS['entmax'](1, alpha=1.000001)


@pytest.mark.parametrize('far', [0.0, 1e8])
def test_a_stick_is_broken_exactly_however_long_it_is(far):
  """The share of a near key depends on no score of a far one."""
  count = 4_096
  scores = jnp.zeros((1, 1, 1, count)).at[..., 5].set(far)
  normaliser = NORMALISERS['stick_breaking'](1)
  sides = Tokens(index=np.full((1, 1), count)), Tokens().with_defaults(count)
  weights = normaliser({}, scores, None, *sides)[0, 0, 0]
  want = 0.5 ** np.arange(1, 20)
  np.testing.assert_allclose(weights[:-20:-1], want, rtol=1e-5)
  assert weights.sum() <= 1 + 1e-6


def test_the_gradient_of_softmax_is_exported_for_any_number_of_keys():
  (length,) = jax.export.symbolic_shape('l')

  def total(scores):
    return (masked_softmax(scores, None) ** 2).sum()

  scores = jax.ShapeDtypeStruct((4, length), jnp.float32)
  exported = jax.export.export(jax.jit(jax.grad(total)))(scores)
  x = jax.random.normal(jax.random.key(0), (4, 7))
  np.testing.assert_allclose(exported.call(x), jax.grad(total)(x), atol=1e-6)


@pytest.mark.slow
def test_derivatives_of_softmax_of_a_long_row_are_those_of_jax():
  x = jax.random.normal(jax.random.key(0), (2, 600))
  mask = jnp.arange(600) < 590

  def ours(x):
    return (masked_softmax(x, mask) ** 2).sum()

  def theirs(x):
    return (jax.nn.softmax(jnp.where(mask, x, -jnp.inf)) ** 2).sum()

  tangent = jnp.sin(jnp.arange(1200.0)).reshape(2, 600)
  for of in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (tangent,))[1]):
    np.testing.assert_allclose(of(ours)(x), of(theirs)(x), atol=1e-6)
  products = [jax.jvp(jax.grad(f), (x,), (tangent,))[1] for f in (ours, theirs)]
  np.testing.assert_allclose(*products, atol=1e-6)
