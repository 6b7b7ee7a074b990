"""Rotations by what tokens add or read, against float64 loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.attention import Attention
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, H, K = 2, 7, 2, 5
D, R = H * K, K // 2
X = normal(0, (B, L, D))
IS_TOKEN = np.arange(L)[None] < np.array([[7], [5]])


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


# One row a method: what tokens add to the phases, (L, H, R), in radians, from
# the vectors of a text; and whether a token's own step is in its own phase.


def selective(params, x, options):
  parts = x.reshape(L, H, K)
  x = (parts / np.linalg.norm(parts, axis=-1, keepdims=True)).reshape(L, D)
  phi = x @ params['down']['kernel'] @ params['up']['kernel']
  taps = params.get('filter', np.ones((1, phi.shape[1])))
  read = np.zeros_like(phi)
  for token in range(L):
    for back in range(len(taps)):
      if token >= back:
        read[token] += taps[-1 - back] * phi[token - back]
  if options.get('gated'):
    gate = sigmoid(x @ params['gate']['kernel'] + params['gate']['bias'])
    read *= np.repeat(gate, R, axis=1)
  rates = options.get('base', 500_000.0) ** (-np.arange(R) / R)
  return read.reshape(L, H, R) * rates


def grape(params, x, options):
  step = -sigmoid((x @ params['kernel'] + params['bias']) / 16)
  step = np.broadcast_to(step, (L, H))
  return step[..., None] * np.exp(params['log_rates'])


def carope(params, x, options):
  rate = 1 / (1 + np.log1p(np.exp(x @ params['kernel'] + params['bias'])))
  return rate[..., None] ** np.arange(R)


def repo(params, x, options):
  """Differences of the positions that are read."""
  p = {name: leaf['kernel'] for name, leaf in params.items()}
  gate = x @ p['gate']
  z = (gate * sigmoid(gate) * (x @ p['content'])) @ p['out']
  return np.diff(z, axis=0, prepend=0)[..., None] * 1e4 ** (-np.arange(R) / R)


ROWS = {
  'selective': (selective, True),
  'grape': (grape, False),
  'carope': (carope, True),
  'repo': (repo, True),
}
VARIANTS = [
  ('selective', {}),
  ('selective', {'kernel_size': 1, 'gated': True, 'base': 100.0, 'rank': 3}),
  ('grape', {}),
  ('grape', {'by_head': True}),
  ('carope', {}),
  ('repo', {}),
]


def wave(x):
  """Pairs of channels as complex numbers."""
  return x[:R] + 1j * x[R : 2 * R]


@pytest.mark.parametrize(
  ('name', 'options', 'causal'),
  [(*row, n % 2 == 0) for n, row in enumerate(VARIANTS)],
)
def test_a_score_turns_by_the_steps_of_the_tokens_between(
  name, options, causal
):
  method = POSITIONS[name](D, H, causal, **options)
  layer = Attention(D, H, num_kv_heads=1, position=method, causal=causal)
  tokens = Tokens(jnp.asarray(IS_TOKEN))
  params = draw(layer.init, jax.random.key(0), X)['params']
  _, weights = jax.jit(
    lambda p: layer.apply(
      {'params': p}, X, query_tokens=tokens, return_weights=True
    )
  )(params)
  exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
  steps_of, has_own = ROWS[name]
  for b in range(B):
    n = int(IS_TOKEN[b].sum())
    x = np.asarray(X[b], float)
    q, k = (x @ exact[s]['kernel'] + exact[s]['bias'] for s in ('query', 'key'))
    steps = steps_of(exact['position'], x, options)
    for h, i in np.ndindex(H, n):
      scores = np.full(n, -np.inf)
      for j in range(i + 1 if causal else n):
        first, last = min(i, j) + has_own, max(i, j) + has_own
        angle = steps[first:last, h].sum(axis=0) * (1 if j > i else -1)
        one, other = q[i, h * K : h * K + K], k[j]
        turned = np.conj(wave(one)) * wave(other) * np.exp(1j * angle)
        scores[j] = turned.real.sum() + one[2 * R :] @ other[2 * R :]
      row = np.exp(scores / np.sqrt(K))
      np.testing.assert_allclose(
        weights[b, h, i, :n], row / row.sum(), rtol=1e-4, atol=1e-5
      )


@pytest.mark.parametrize('base', [10_000.0, 1e6])
def test_carope_begins_at_any_base_and_width(base):
  """softplus(bias) = base^(1/R) - 1, for one pair of channels."""
  bias = POSITIONS['carope'](2, 1, True, base=base).init(None)['bias']
  np.testing.assert_allclose(
    np.logaddexp(0, np.float64(bias)), base - 1, rtol=1e-6
  )


@pytest.mark.parametrize(('name', 'rate'), [('carope', 1.0), ('grape', None)])
def test_where_training_begins_it_is_rotary_of_the_order(name, rate):
  """Of CARoPE exactly; of GRAPE, slower and the other way."""
  method, rotary = (
    POSITIONS[name](D, H, False),
    POSITIONS['rotary'](D, H, False),
  )
  params = method.init(jax.random.key(0))
  rate = rate or -float(jax.nn.sigmoid(params['bias'][0] / 16))
  tokens = Tokens().with_defaults(L)
  q, k = normal(1, (2, B, L, H, K))
  moved = tokens.replace(positions=rate * np.arange(L)[None])
  tokens = tokens.replace(state=method.state(params, X, tokens))
  scores = [
    jnp.einsum('BLHK,BMHK->BHLM', *turned)
    for turned in (
      method.rotate(params, q, k, tokens, tokens),
      rotary.rotate({}, q, k, moved, moved),
    )
  ]
  np.testing.assert_allclose(*scores, rtol=1e-3, atol=1e-4)
