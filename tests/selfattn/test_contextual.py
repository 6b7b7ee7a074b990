"""Methods that read the text, against float64 loops over pairs of tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, H, K, V = 3, 7, 2, 4, 9
D = H * K
close = {'rtol': 1e-5, 'atol': 1e-5}
X = normal(0, (B, L, D))
IS_TOKEN = jnp.arange(L)[None] < jnp.array([[7], [5], [0]])
SEGMENTS = jnp.broadcast_to(jnp.array([0, 0, 0, 1, 1, 1, 1]), (B, L))
# test_matrix packs rows, with every method.
FORMS = [(False, True), (True, False)]


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def softmax(scores, seen):
  if not seen.any():
    return np.zeros(len(scores))
  scores = np.where(seen, scores, -np.inf)
  weights = np.exp(scores - scores.max())
  return weights / weights.sum()


def qkv(params, x):
  return (
    (x @ params[n]['kernel'] + params[n]['bias']).reshape(B, L, H, K)
    for n in ('query', 'key', 'value')
  )


def cope(method, params, x, q, scores, seen, b, h, i):
  """What is added to the scores of query i in head h of text b."""
  added = np.zeros(L)
  for j in range(L):
    between = range(min(i, j), max(i, j) + 1)
    place = sum(sigmoid(scores[t]) for t in between if seen[t])
    place = min(place, method.max_position)
    table = params['table'][0 if j <= i or method.causal else 1]
    low = int(np.floor(place))
    high = min(low + 1, method.max_position)
    row = table[low] + (place - low) * (table[high] - table[low])
    added[j] = q[b, i, h] @ row / np.sqrt(K)
  return added


def forgetting(method, params, x, q, scores, seen, b, h, i):
  gates = np.log(sigmoid(x[b] @ params['kernel'] + params['bias']))
  gates = np.where(np.asarray(IS_TOKEN)[b][:, None], gates, 0.0)
  added = np.zeros(L)
  for j in range(L):
    if j <= i:
      added[j] = sum(gates[t, h] for t in range(j + 1, i + 1))
    else:
      after = 0 if method.causal else H + h
      added[j] = sum(gates[t, after] for t in range(i + 1, j + 1))
  return added


@pytest.mark.parametrize(('causal', 'packed'), FORMS)
@pytest.mark.parametrize(
  ('name', 'options', 'term'),
  [('cope', {'max_position': 2}, cope), ('forgetting', {}, forgetting)],
)
def test_a_layer_equals_loops_over_pairs(name, options, term, causal, packed):
  method = POSITIONS[name](D, H, causal, **options)
  layer = Attention(D, H, position=method, causal=causal)
  tokens = Tokens(IS_TOKEN, segments=SEGMENTS if packed else None)
  variables = draw(
    lambda key: layer.init(key, X, query_tokens=tokens), jax.random.key(1)
  )
  (found, _), sown = jax.jit(
    lambda v: layer.apply(v, X, query_tokens=tokens, mutable='intermediates')
  )(variables)
  params = jax.tree.map(lambda x: np.asarray(x, float), variables['params'])
  x = np.asarray(X, float)
  q, k, v = qkv(params, x)
  (P,) = sown['intermediates']['P']
  (weights,) = sown['intermediates']['weights']
  want = np.zeros((B, L, H, K))
  for b, h, i in np.ndindex(B, H, L):
    if not IS_TOKEN[b, i]:
      continue
    seen = np.asarray(IS_TOKEN)[b].copy()
    if causal:
      seen &= np.arange(L) <= i
    if packed:
      seen &= np.asarray(SEGMENTS)[b] == np.asarray(SEGMENTS)[b, i]
    scores = k[b, :, h] @ q[b, i, h] / np.sqrt(K)
    added = term(method, params['position'], x, q, scores, seen, b, h, i)
    np.testing.assert_allclose(P[b, h, i][seen], added[seen], **close)
    row = softmax(scores + added, seen)
    np.testing.assert_allclose(weights[b, h, i], row, **close)
    want[b, i, h] = row @ v[b, :, h]
  want = want.reshape(B, L, D) @ params['out']['kernel'] + params['out']['bias']
  is_token = np.asarray(IS_TOKEN)
  np.testing.assert_allclose(found[is_token], want[is_token], **close)


@pytest.mark.parametrize('shared', ['none', 'words', 'channels'])
def test_words_turn_at_their_own_rates(shared):
  method = POSITIONS['complex_order'](D, H, False, vocab_size=V, shared=shared)
  params = method.init(jax.random.key(0))
  noise = jax.random.uniform(jax.random.key(1), params['rates'].shape)
  params = {'rates': params['rates'] + noise}
  where = np.array([[0, 3, 1, 9, 20, 2, 5]])
  # [MASK] and [CLS] come after the words.
  ids = jnp.array([[V, V + 1, 1, 2, 8, 1, 3]] * B)
  found = method.embed(params, X, Tokens(positions=where, ids=ids))
  rates = np.asarray(params['rates'], float)
  x = np.asarray(X, float)
  for b, i in np.ndindex(B, L):
    wave = x[b, i, : D // 2] + 1j * x[b, i, D // 2 :]
    rate = rates[0 if shared == 'words' else int(ids[b, i])]
    wave = wave * np.exp(1j * rate * where[0, i])
    want = np.concatenate([wave.real, wave.imag])
    np.testing.assert_allclose(found[b, i], want, rtol=1e-4, atol=1e-4)
  assert (len(rates) == 1) == (shared == 'words')
  assert (rates.shape[1] == 1) == (shared == 'channels')


@pytest.mark.parametrize('bias', [None, 'kerple'])
def test_dape_is_a_network_over_the_heads_of_scores_and_biases(bias):
  method = POSITIONS['dape'](D, H, False, hidden_dim=5)
  params = draw(method.init, jax.random.key(1))
  content = normal(2, (B, H, L, L))
  given = None
  if bias:
    given = 3 * normal(3, (1, H, L, L))
  found = method.scores(params, None, content, given, None, None, None)
  p = jax.tree.map(lambda x: np.asarray(x, float), params)
  for b, i, j in np.ndindex(B, L, L):
    of_bias = np.zeros(H) if given is None else given[0, :, i, j]
    read = np.concatenate([content[b, :, i, j], of_bias])
    hidden = read @ p['in_kernel'] + p['in_bias']
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    want = hidden @ p['out_kernel'] + p['out_bias']
    np.testing.assert_allclose(found[b, :, i, j], want, **close)


def test_dape_reads_the_biases_of_joined_methods():
  joined = positions.make({'alibi': {}, 'dape': {}}, D, H, False)
  layer = Attention(D, H, position=joined)
  variables = draw(layer.init, jax.random.key(1), X)
  apply = jax.jit(functools.partial(layer.apply, mutable='intermediates'))
  _, sown = apply(variables, X)
  (P,) = sown['intermediates']['P']
  alone, params = POSITIONS['dape'](D, H, False), variables['params']
  its = params['position']['dape']
  q, k, _ = qkv(jax.tree.map(np.asarray, params), np.asarray(X))
  content = np.einsum('blhk,bmhk->bhlm', q, k) * K**-0.5
  want = alone.scores(its, None, content, P['alibi'], None, None, None)
  np.testing.assert_allclose(P['dape'], want, **close)


@pytest.mark.parametrize('untie_cls', [True, False])
@pytest.mark.parametrize('known', [True, False], ids=['known', 'traced'])
def test_tupe_is_a_product_of_projected_positions(untie_cls, known):
  method = POSITIONS['tupe'](
    D, H, False, max_len=9, untie_cls=untie_cls, vocab_size=V
  )
  params = draw(method.init, jax.random.key(1))
  where = np.array([[0, 1, 2, 3, 4, 7, 8]])
  ids = jnp.broadcast_to(jnp.array([V + 1, 1, 2, 3, 4, 5, 6]), (B, L))
  row = Tokens(positions=where if known else jnp.asarray(where), ids=ids)
  row = row.with_defaults(L)
  bias = method.bias if known else jax.jit(method.bias)
  found = np.broadcast_to(bias(params, row, row), (B, H, L, L))
  p = jax.tree.map(lambda x: np.asarray(x, float), params)
  rows = p['table'] - p['table'].mean(-1, keepdims=True)
  rows /= np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5)
  rows = rows * p['norm_scale'] + p['norm_bias']
  q, k = ((rows @ p[n]['kernel']).reshape(-1, H, K) for n in ('query', 'key'))
  for h, i, j in np.ndindex(H, L, L):
    want = q[where[0, i], h] @ k[where[0, j], h]
    if untie_cls and 0 in (i, j):
      own = -2 if i == 0 else -1
      want = q[own, h] @ k[own, h]
    want = np.full(B, want / np.sqrt(2 * K))
    np.testing.assert_allclose(found[:, h, i, j], want, **close)


def test_tupe_scales_the_words_by_the_two_terms():
  method = POSITIONS['tupe'](D, H, False)
  params = draw(method.init, jax.random.key(1))
  q, k, v = normal(2, (3, B, L, H, K))
  row = Tokens().with_defaults(L)
  found, _ = attend(q, k, v, position=method, position_params=params)
  # With half the square, q k / sqrt(K) is q k / sqrt(2 K).
  want, _ = attend(q * 0.5**0.5, k, v, bias=method.bias(params, row, row))
  np.testing.assert_allclose(found, want, **close)


def test_path_of_several_blocks_inverts_the_whole_matrix():
  """Values and slopes."""
  count = 150
  method = POSITIONS['path'](D, H, True)
  q, k, w = normal(1, (3, 1, count, H, K))
  w /= jnp.linalg.norm(w, axis=-1, keepdims=True)
  b = 2 * jax.nn.sigmoid(normal(2, (1, count, H)))
  row = Tokens().with_defaults(count)
  weight = jnp.tril(normal(3, (1, H, count, count)))

  def ours(q, k, w, b):
    seen = row.replace(state={'direction': w, 'strength': b})
    return method.content({}, q, k, seen, seen)

  def inverted(q, k, w, b, numpy=jnp):
    def dots(x, y):
      return numpy.einsum('BLHK,BMHK->BHLM', x, y)

    b = b.swapaxes(1, 2)[..., None]
    inverse = numpy.linalg.inv(
      numpy.eye(count)[None, None] + numpy.tril(dots(w, w), -1) * b
    )
    right = numpy.tril(dots(w, k), -1) * b
    return -numpy.tril(dots(q, w)) @ inverse @ right

  def slopes(function):
    def total(*given):
      found = function(*given)
      return (weight * found).sum(), found

    return jax.jit(jax.grad(total, (0, 1, 2, 3), has_aux=True))(q, k, w, b)

  found, values = slopes(ours)
  want = inverted(*(np.asarray(x, np.float64) for x in (q, k, w, b)), np)
  np.testing.assert_allclose(values, want, atol=1e-5 * abs(want).max())
  for one, want in zip(found, slopes(inverted)[0], strict=True):
    np.testing.assert_allclose(one, want, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize(('position', 'error'), [(1000, 1e-4), (10**5, 1e-2)])
def test_the_phase_of_learned_rotations_is_near_that_of_float64(
  position, error
):
  """A power of exp(A), by its eigenvalues, of every unit vector."""
  method = POSITIONS['lie_re'](16, 1, False)
  params = method.init(jax.random.key(3))
  A = np.asarray(method._generator(params), float)[0, 0]
  rates, vectors = np.linalg.eig(A)
  want = (vectors * np.exp(position * rates)) @ np.linalg.inv(vectors)
  units = jnp.eye(16)[:, None, None]
  where = Tokens(positions=np.full((1, 1), position))
  turned, _ = method.rotate(params, units, units, where, where)
  np.testing.assert_allclose(turned[:, 0, 0].T, want.real, atol=error)


def test_the_gradient_of_polar_phases_is_whole_where_they_begin():
  """That of jnp.clip is halved at a bound; that of torch.clamp is not."""
  method = POSITIONS['pope'](D, H, False)
  q, k = normal(2, (2, B, L, H, K))
  row = Tokens().with_defaults(L)

  @jax.jit
  @jax.grad
  def slope(delta):
    q_BLHK, k_BMHK = method.rotate({'delta': delta}, q, k, row, row)
    return jnp.einsum('BLHK,BMHK->BHLM', q_BLHK, k_BMHK).sum()

  first = method.init(jax.random.key(0))['delta']
  found = slope(first)
  np.testing.assert_allclose(found, slope(first - 1e-4), rtol=1e-2, atol=1e-1)
  np.testing.assert_array_equal(slope(first + 1e-4), jnp.zeros_like(first))
  assert abs(found).max() > 1


def test_rotations_of_traced_positions_stay_finite():
  """Traced positions may need all bits: squares must not overflow."""
  method = POSITIONS['lie_re'](D, H, False, init_std=4.0)
  params = method.init(jax.random.key(1))
  q, k = normal(2, (2, B, L, H, K))

  @jax.jit
  def total(params, positions):
    row = Tokens(positions=positions).with_defaults(L)
    turned = method.rotate(params, q, k, row, row)
    return sum((x**3).sum() for x in turned), turned

  where = jnp.arange(L)[None] + 2**30
  grads, turned = jax.jit(jax.grad(total, has_aux=True))(params, where)
  assert np.isfinite(grads['generator']).all()
  for x, before in zip(turned, (q, k), strict=True):
    np.testing.assert_allclose(
      jnp.linalg.norm(x, axis=-1), jnp.linalg.norm(before, axis=-1), rtol=1e-4
    )
