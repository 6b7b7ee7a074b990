"""Pools against loops in float64, and one that a stranger adds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.baselines import BowEncoder
from selfattn.classifier import TextClassifier
from selfattn.pools import POOLS, Attentive
from tests.conftest import draw, normal

# All different, so that no axis can stand in for another.
B, L, D, S, N, V, C = 3, 5, 4, 7, 2, 19, 6
IS_TOKEN = jnp.arange(L)[None] < jnp.array([5, 3, 0])[:, None]
X = normal(1, (B, L, D))


# One row a pool: a text's vector, from its real tokens, in float64.


def mean(rows, params):
  return sum(rows) / len(rows)


def maximum(rows, params):
  return np.max(rows, axis=0)


def first(rows, params):
  return rows[0]


def attentive(rows, params):
  into, out = params['in']['kernel'], params['out']['kernel']
  hops = []
  for n in range(out.shape[1]):
    scores = [np.tanh(row @ into) @ out[:, n] for row in rows]
    total = sum(np.exp(scores))
    hops.append(
      sum(np.exp(s) / total * row for s, row in zip(scores, rows, strict=True))
    )
  return np.concatenate(hops)


ROWS = {
  'mean': mean,
  'max': maximum,
  'cls': first,
  'first': first,
  'last': lambda rows, params: rows[-1],
  'attentive': attentive,
}
OPTIONS = {'attentive': {'hidden_dim': S, 'num_hops': N}}


def make(name):
  pool = POOLS[name](**OPTIONS.get(name, {}))
  return pool, draw(pool.init, jax.random.key(0), X, IS_TOKEN)


def test_every_pool_has_a_row():
  assert list(ROWS) == list(POOLS)


@pytest.mark.parametrize('name', ROWS)
def test_a_pool_equals_its_formula_and_never_sees_padding(name):
  pool, variables = make(name)
  # NaN there would reach what only multiplies it by zero. The first vector of
  # a text is there whatever the mask says.
  x_BLD = X.at[0, 4].set(jnp.nan).at[1, 3:].set(jnp.nan)
  padding_mask = IS_TOKEN.at[0, 4].set(False)
  found = jax.jit(pool.apply)(variables, x_BLD, padding_mask)
  assert found.dtype == jnp.float32
  params = jax.tree.map(
    lambda x: np.asarray(x, np.float64), variables.get('params', {})
  )
  for row, length in enumerate((4, 3)):
    rows = list(np.asarray(X[row, :length], np.float64))
    np.testing.assert_allclose(found[row], ROWS[name](rows, params), rtol=1e-5)


@pytest.mark.parametrize('name', [n for n in POOLS if n != 'cls'])
def test_an_empty_text_is_zero_with_finite_gradients(name):
  pool, variables = make(name)

  @jax.jit
  @jax.grad
  def gradient(x_BLD):
    return pool.apply(variables, x_BLD, IS_TOKEN).sum()

  assert (jax.jit(pool.apply)(variables, X, IS_TOKEN)[2] == 0).all()
  grads = gradient(X)
  assert np.isfinite(grads).all()
  assert (grads[~IS_TOKEN] == 0).all()


def test_gradients_of_the_pool_max_are_those_of_the_largest_token():
  """After a norm, whose output XLA may round in two ways within a program."""
  norm, x_BLD = nn.LayerNorm(), normal(0, (3, 7, 12))
  variables = draw(norm.init, jax.random.key(1), x_BLD)
  is_largest_BLD = jax.nn.one_hot(
    norm.apply(variables, x_BLD).argmax(axis=1), 7, axis=1
  )

  def gradient(choose):
    def total(x_BLD):
      return (choose(norm.apply(variables, x_BLD)) ** 2).sum()

    return jax.jit(jax.grad(total))(x_BLD)

  found = gradient(
    lambda x: POOLS['max']().apply({}, x, jnp.ones((3, 7), bool))
  )
  want = gradient(lambda x: x * is_largest_BLD)
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_weights_of_an_attentive_pool_are_sown_and_of_tokens_alone():
  model = TextClassifier(V, C, D, BowEncoder(), pool=Attentive(S, N))
  tokens = np.random.default_rng(3).integers(0, V, (B, L))
  variables = draw(model.init, jax.random.key(0), tokens, IS_TOKEN)
  assert variables['params']['head']['kernel'].shape == (N * D, C)
  logits, sown = model.apply(
    variables, tokens, IS_TOKEN, mutable='intermediates'
  )
  (weights,) = sown['intermediates']['pool']['pool_weights']
  assert weights.shape == (B, N, L)
  np.testing.assert_allclose(weights.sum(-1)[:2], 1, rtol=1e-6)
  assert (weights.swapaxes(1, 2)[~IS_TOKEN] == 0).all()
  np.testing.assert_array_equal(
    model.apply(variables, tokens, IS_TOKEN), logits
  )


def test_a_mean_of_hidden_layers():
  pool = POOLS['mean'](hidden_dim=S)
  params = draw(pool.init, jax.random.key(0), X, IS_TOKEN)
  found = pool.apply(params, X, IS_TOKEN)
  dense = nn.Dense(S).bind({'params': params['params']['dense']})
  for n, length in enumerate((5, 3)):
    rows = nn.gelu(dense(X[n, :length]), approximate=False)
    np.testing.assert_allclose(found[n], rows.mean(axis=0), rtol=1e-5)
  np.testing.assert_array_equal(found[2], 0)


@pytest.mark.parametrize('name', POOLS)
def test_texts_of_length_0_are_zero(name):
  pool, x = POOLS[name](), jnp.ones((2, 0, 4))
  pooled, _ = pool.init_with_output(
    jax.random.key(0), x, jnp.ones((2, 0), bool)
  )
  assert len(pooled) == 2
  assert not pooled.any()
