"""Methods that read the text against other libraries.

The arrays are made by scripts/make_text_goldens.py, which names the libraries.
"""

import functools

import golden_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.backends import attend
from selfattn.masks import visible
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import at

case = functools.partial(golden_arrays.case, 'text')
close = {'rtol': 1e-5, 'atol': 1e-5}
B, L, H, K = 2, 7, 4, 6
D = H * K
ROW = Tokens().with_defaults(L)


def both_ways(function):
  """What it gives for known positions, and for traced ones."""
  return function(ROW), jax.jit(lambda p: function(at(p)))(ROW.positions)


def test_transformer_xl_as_in_xlnet():
  c = case('transformer_xl')
  method = POSITIONS['transformer_xl'](D, H, False)
  params = {n: c[n] for n in ('content_bias', 'position_bias')}
  params['kernel'] = c['kernel'].reshape(D, D)
  q, k = (jnp.asarray(c[n]).swapaxes(0, 1) for n in 'qk')
  products = jnp.einsum('blhk,bmhk->bhlm', q, k)
  for term in both_ways(lambda row: method.content(params, q, k, row, row)):
    weights = jax.nn.softmax((products + term) * K**-0.5)
    want = np.moveaxis(c['weights'], (0, 1), (2, 3))
    want = want if want.shape[:2] == (B, H) else c['weights']
    np.testing.assert_allclose(weights, want, **close)


@pytest.mark.parametrize('name', ['clipped', 'buckets'])
def test_the_terms_of_deberta(name):
  c = case(f'deberta/{name}')
  options = {'max_distance': 3}
  if name == 'buckets':
    options = {'max_distance': 6, 'num_buckets': 4}
  method = POSITIONS['deberta'](D, H, False, **options)
  q, k = (
    (c['x'] @ c[f'{n}_proj.weight'].T + c[f'{n}_proj.bias'])
    .reshape(B, L, H, K)
    for n in ('query', 'key')
  )  # fmt: skip
  params = {
    'table': c['table'],
    'query': {'kernel': c['pos_query_proj.weight'].T},
    'key': {'kernel': c['pos_key_proj.weight'].T},
  }
  params = jax.tree.map(jnp.asarray, params)
  for term in both_ways(lambda row: method.content(params, q, k, row, row)):
    found = term * method.scale * K**-0.5
    np.testing.assert_allclose(found.reshape(B * H, L, L), c['scores'], **close)


def test_the_log_buckets_of_deberta():
  method = POSITIONS['deberta'](D, H, False, max_distance=20, num_buckets=8)
  distance = np.arange(-30, 31)
  want = (case('deberta')['log_buckets'].astype(int) + 8).clip(0, 15)
  np.testing.assert_array_equal(method.index(distance), want)
  np.testing.assert_array_equal(method.index(jnp.asarray(distance)), want)


def test_the_scores_of_xpos():
  c = case('xpos')
  method = POSITIONS['xpos'](D, H, True, layout='interleaved')
  q, k = (jnp.asarray(c[n]).swapaxes(1, 2) for n in 'qk')
  for turned in both_ways(lambda row: method.rotate({}, q, k, row, row)):
    found = jnp.einsum('blhk,bmhk->bhlm', *turned)
    np.testing.assert_allclose(found, c['scores'], rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('proportional', {'fraction': 0.3, 'factor': 1.5}),
    ('llama3', {'factor': 4.0}),
    (
      'longrope',
      {'factor': 4.0, 'pair_factors': tuple(1 + np.arange(32) / 5)},
    ),
  ],
)
def test_the_frequencies_of_transformers(name, options):
  method = POSITIONS['rotary'](128, 2, False, scaling=name, **options)
  c = case('frequencies')
  want = c[f'{name}_rates']
  np.testing.assert_allclose(method.rates(), want, rtol=2e-6)
  assert abs(method.rates() - POSITIONS['rotary'](128, 2, False).rates()).max()
  cos, sin = jnp.split(method.encoding({}, at(np.array([[3]]))), 2, axis=-1)
  factor = c[f'{name}_factor']
  np.testing.assert_allclose(
    cos**2 + sin**2, np.full(cos.shape, factor**2), rtol=1e-5
  )


def test_the_scores_of_pope():
  c = case('pope')
  method = POSITIONS['pope'](D, H, False)
  # Its angle is added to that of the keys: the sign of the distance is ours.
  params = {'delta': jnp.asarray(c['delta'])}
  q, k = (jnp.asarray(c[n]).swapaxes(1, 2) for n in 'qk')
  for turned in both_ways(lambda row: method.rotate(params, q, k, row, row)):
    found = jnp.einsum('blhk,bmhk->bhlm', *turned)
    np.testing.assert_allclose(found, c['scores'], **close)


def test_the_term_of_cope():
  c = case('cope')
  method = POSITIONS['cope'](D, H, True, max_position=3)
  params = {'table': jnp.asarray(c['table'])[None]}
  q = jnp.asarray(c['q']).swapaxes(1, 2)
  seen = visible(ROW, ROW, causal=True)
  term = method.scores(params, q, c['logits'], None, seen, ROW, ROW)
  want = np.where(seen, c['term'], 0) * K**-0.5
  np.testing.assert_allclose(np.where(seen, term, 0), want, **close)


def test_forgetting_attention():
  c = case('forgetting')
  method = POSITIONS['forgetting'](D, H, True)
  row = ROW.replace(state={'': jnp.asarray(c['gates'])})
  found, _ = attend(
    *(jnp.asarray(c[n]) for n in 'qkv'),
    query_tokens=row, causal=True, position=method,
  )  # fmt: skip
  np.testing.assert_allclose(found, c['output'], **close)


def test_forgetting_on_both_sides():
  c = case('forgetting')
  method = POSITIONS['forgetting'](D, H, False)
  params = {n: jnp.asarray(c[n]) for n in ('kernel', 'bias')}
  row = ROW.replace(state=method.state(params, jnp.asarray(c['x']), ROW))
  np.testing.assert_allclose(
    method.bias(params, row, row), c['both_sides'], **close
  )


def test_path_attention():
  c = case('path')
  method = POSITIONS['path'](D, H, True)
  state = {'direction': jnp.asarray(c['w']), 'strength': jnp.asarray(c['beta'])}
  found, _ = attend(
    *(jnp.asarray(c[n]) for n in 'qkv'),
    query_tokens=ROW.replace(state={'': state}), causal=True, position=method,
  )  # fmt: skip
  np.testing.assert_allclose(found, c['output'], **close)


@pytest.mark.parametrize('size', [3, 4])
def test_the_convolution_of_wav2vec_2(size):
  c = case(f'convolutional/{size}')
  method = POSITIONS['convolutional'](
    D, 1, False, kernel_size=size, num_groups=3
  )
  # (out, in of a group, taps) to taps, groups, in, out.
  kernel = c['weight'].reshape(3, D // 3, D // 3, size).transpose(3, 0, 2, 1)
  params = {'kernel': jnp.asarray(kernel), 'bias': jnp.asarray(c['bias'])}
  x = jnp.asarray(c['x'])
  found = method.embed(params, x, ROW) - x
  np.testing.assert_allclose(found, c['output'], **close)


def of_library(name, normaliser, params=None):
  """Its weights, gradients along an array, and those by alpha."""
  c = case('normalisers')
  sides = Tokens().with_defaults(L), Tokens().with_defaults(9)

  def total(scores, params):
    weights = normaliser(params, scores, None, *sides)
    return (weights * c['cotangent']).sum(), weights

  differentiate = jax.jit(jax.grad(total, (0, 1), has_aux=True))
  (of_scores, of_params), weights = differentiate(c['scores'], params or {})
  np.testing.assert_allclose(weights, c[name], atol=1e-6)
  np.testing.assert_allclose(of_scores, c[f'{name}_grad'], atol=1e-5)
  return of_params


@pytest.mark.parametrize(
  ('name', 'theirs', 'options'),
  [('sparsemax', 'sparsemax', {}), ('entmax', 'entmax15', {})],
)
def test_weights_that_are_zero(name, theirs, options):
  assert (case('normalisers')[theirs] == 0).mean() > 0.1
  of_library(theirs, NORMALISERS[name](H, **options))


def test_entmax_by_its_exponent():
  normaliser = NORMALISERS['entmax'](H, alpha=1.2, learned=True)
  params = normaliser.init(jax.random.key(0))
  grads = of_library('entmax', normaliser, params)
  # From a to alpha = 1 + sigmoid(a).
  found = grads['alpha_logit'].sum() / (0.2 * 0.8)
  want = case('normalisers')['entmax_grad_alpha']
  np.testing.assert_allclose(found, want, rtol=1e-4)


@pytest.mark.parametrize('name', ['before', 'current'])
def test_stick_breaking_attention(name):
  c = case('stick_breaking')
  normaliser = NORMALISERS['stick_breaking'](H, name == 'current')
  found, _ = attend(
    *(jnp.asarray(c[n]) for n in 'qkv'), causal=True, normaliser=normaliser
  )
  np.testing.assert_allclose(found, c[name], **close)


@pytest.mark.parametrize('name', ['off_by_one', 'sinks', 'sigmoid', 'talking'])
def test_normalisers_of_x_transformers(name):
  c = case('normalisers')
  if name == 'off_by_one':
    normaliser, params = NORMALISERS['sinks'](H, learned=False), {}
  elif name == 'sinks':
    normaliser = NORMALISERS['sinks'](H)
    params = {'sink': jnp.asarray(c['sinks/head_attn_sink'])}
  elif name == 'sigmoid':
    normaliser, params = NORMALISERS['sigmoid'](H, by_length=False), {}
  else:
    normaliser = NORMALISERS['talking_heads'](H)
    before, after = (
      c[f'talking/{side}_softmax_talking_heads.weight'][..., 0, 0].T
      for side in ('pre', 'post')
    )
    # The first is added to the scores.
    params = {'before': jnp.eye(H) + before, 'after': jnp.asarray(after)}
  found, _ = attend(
    *(jnp.asarray(c[n]).swapaxes(1, 2) for n in 'qkv'),
    normaliser=normaliser, normaliser_params=params,
  )  # fmt: skip
  want = c[f'{name}/output'].swapaxes(1, 2)
  np.testing.assert_allclose(found, want, **close)


def test_learned_rotations_are_matrix_exponentials():
  c = case('matrix_exponentials')
  method = POSITIONS['lie_re'](D, H, False)
  row, column = np.triu_indices(K, 1)
  params = {'generator': jnp.asarray(c['generator'])[:, None, row, column]}
  where = at(c['positions'].astype(int)[None])
  unit = jnp.eye(K)[:, None, None]  # one unit vector a text
  x = jnp.broadcast_to(unit, (K, len(c['positions']), H, K))
  turned, _ = method.rotate(params, x, x, where, where)
  want = np.moveaxis(c['rotations'], -1, 0)
  np.testing.assert_allclose(turned, want, atol=5e-5)
