"""GRAPE-A, GRAPE-AP, Inkling, Wall and RePo: other code and limits.

The arrays are made by scripts/make_gated_goldens.py, which names the code.
"""

import functools

import golden_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.layers import Layer
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import at, normal

case = functools.partial(golden_arrays.case, 'gated')
close = {'rtol': 1e-5, 'atol': 1e-5}
B, L, H, K = 2, 9, 4, 6
D = H * K
ROW = Tokens().with_defaults(L)
CAUSAL = np.tri(L, dtype=bool)
X = normal(0, (B, L, D))
IS_TOKEN = np.arange(L)[None] < np.array([[9], [6]])


def seen(method, params, x, tokens=ROW):
  """Tokens with the state of a method."""
  return tokens.replace(state=method.state(params, jnp.asarray(x), tokens))


@pytest.mark.parametrize('gate', ['key', 'query', 'both'])
def test_the_slopes_of_grape_a(gate):
  c = case('grape_a')
  theirs = case(f'grape_a/{gate}')
  method = POSITIONS['grape_a'](D, H, True, gate=gate)
  names = {'omega': 'scale', 'u': 'key', 'v': 'query'}
  params = {names[n]: theirs[n] for n in names if n in theirs}
  assert params.keys() == method.init(jax.random.key(0)).keys()
  term = method.content(params, c['q'], c['k'], ROW, ROW) * K**-0.5
  expected = np.where(CAUSAL, theirs['bias'], 0)
  np.testing.assert_allclose(np.where(CAUSAL, term, 0), expected, **close)


def test_grape_a_without_vectors_is_alibi():
  """w = 1 / ln 4 undoes softplus(0) of both gates; also of later keys."""
  q, k = normal(1, (2, B, L, H, K))
  zeros = jnp.zeros((H, K))
  params = {'query': zeros, 'key': zeros}
  params['scale'] = jnp.full(H, np.log(np.expm1(1 / np.log(4))))
  term = POSITIONS['grape_a'](D, H, False).content(params, q, k, ROW, ROW)
  alibi = POSITIONS['alibi'](D, H, False).bias({}, ROW, ROW)
  expected = np.broadcast_to(alibi, term.shape)
  np.testing.assert_allclose(term * K**-0.5, expected, **close)


def test_a_layer_of_grape_ap():
  c = case('grape_ap')
  method = POSITIONS['grape_ap'](D, H, True)
  names = {'query': 'c_q', 'key': 'c_k', 'value': 'c_v', 'out': 'c_proj'}
  params = {ours: {'kernel': c[f'{n}.weight'].T} for ours, n in names.items()}
  params['position'] = {'kernel': c['c_p.weight'].T}
  layer = Attention(D, H, use_bias=False, position=method, causal=True)
  found, _ = jax.jit(layer.apply)({'params': params}, jnp.asarray(c['x']))
  np.testing.assert_allclose(found, c['output'], rtol=1e-4, atol=1e-5)


def inkling_of(c, causal):
  method = POSITIONS['inkling'](D, H, causal, num_curves=3, max_distance=6)
  params = {
    'kernel': c['to_distance_weights.0.weight'].T,
    'bias': c['to_distance_weights.0.bias'],
    'table': c['distance_bank'].T,
  }
  return method, params


def test_the_curves_of_x_transformers():
  c = case('inkling')
  method, params = inkling_of(c, True)
  row = seen(method, params, c['x'])
  bias = method.bias(params, row, row)
  expected = np.where(CAUSAL, c['bias'], 0)
  np.testing.assert_allclose(np.where(CAUSAL, bias, 0), expected, **close)


def test_later_keys_have_curves_of_their_own():
  """With those of earlier keys, the bias of a query is symmetric."""
  c = case('inkling')
  method, params = inkling_of(c, False)
  later = params['table'][1:] * 2
  params['table'] = np.concatenate([params['table'], later])
  shapes = jax.tree.map(jnp.shape, method.init(jax.random.key(0)))
  assert shapes == jax.tree.map(jnp.shape, params)
  row = seen(method, params, c['x'])
  bias = np.asarray(method.bias(params, row, row))
  np.testing.assert_allclose(
    np.where(CAUSAL, bias, 0), np.where(CAUSAL, c['bias'], 0), **close
  )
  for i, far in ((4, 1), (4, 4), (2, 2)):
    np.testing.assert_allclose(
      bias[:, :, i, i + far], 2 * bias[:, :, i, i - far], **close
    )
  assert (bias[:, :, 0, 6:] == 0).all()


@pytest.mark.parametrize('name', ['little', 'much'])
def test_wall_attention_of_fla(name):
  c = case('wall')
  method = POSITIONS['wall'](D, H, True)
  row = ROW.replace(state={'': c[f'{name}/g'].reshape(B, L, D)})
  q, k, v = (jnp.asarray(c[n]) for n in 'qkv')
  found, _ = attend(
    q, k, v, causal=True, position=method,
    position_params={}, query_tokens=row, key_tokens=row,
  )  # fmt: skip
  np.testing.assert_allclose(found, c[f'{name}/output'], **close)


@pytest.mark.slow
@pytest.mark.parametrize('mean', [4.0, -30.0])
def test_wall_fades_as_a_loop_does_in_any_order(mean):
  """Over several blocks, keys in any order, and texts of several segments."""
  count = 45
  rng = np.random.default_rng(0)
  method = POSITIONS['wall'](D, H, True)
  q, k, g = rng.standard_normal((3, B, count, H, K))
  g = -np.logaddexp(0, -(mean + g))
  index = rng.permuted(np.tile(np.arange(count), (B, 1)), axis=1)
  segments = rng.integers(0, 2, (B, count))
  row = Tokens(index=jnp.asarray(index), segments=jnp.asarray(segments))
  row = row.with_defaults(count).replace(
    state=jnp.asarray(g.reshape(B, count, D), jnp.float32)
  )
  one, other = jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32)
  term = jax.jit(lambda q, k: method.content({}, q, k, row, row))(one, other)
  scores = term + np.einsum('BLHK,BMHK->BHLM', one, other)
  for b, i, j in np.ndindex(B, count, count):
    is_same = segments[b] == segments[b, i]
    if not (is_same[j] and index[b, j] <= index[b, i]):
      continue
    between = is_same & (index[b] > index[b, j]) & (index[b] <= index[b, i])
    fade = np.exp(g[b, between].sum(axis=0))
    expected = (q[b, i] * k[b, j] * fade).sum(axis=-1)
    np.testing.assert_allclose(
      scores[b, :, i, j], expected, rtol=1e-4, atol=1e-5
    )


def test_gates_that_keep_all_are_no_wall():
  method = POSITIONS['wall'](D, H, True)
  q, k = normal(1, (2, B, L, H, K))
  row = ROW.replace(state=jnp.zeros((B, L, D)))
  term = method.content({}, q, k, row, row)
  np.testing.assert_allclose(
    np.where(CAUSAL, term, 0), np.zeros((B, H, L, L)), atol=1e-5
  )


def test_the_first_layers_of_repo_are_rotary():
  method, rotary = (POSITIONS[n](D, H, False) for n in ('repo', 'rotary'))
  q, k = normal(1, (2, B, L, H, K))
  row = at(np.arange(3, 3 + L)[None])
  expected = rotary.rotate({}, q, k, row, row)
  params = method.init(jax.random.key(0))
  row = seen(method, params, X, row)
  # Without a layer of rotary, tokens of a bidirectional encoder have no order.
  layers = ((4, 16), True), ((5, 16), False), ((0, 2), True), ((1, 2), False)
  for (index, count), is_rotary in layers:
    turned = method.at(Layer(index, count)).rotate(params, q, k, row, row)
    for found, plain in zip(turned, expected, strict=True):
      assert np.allclose(found, plain, atol=1e-5) == is_rotary
