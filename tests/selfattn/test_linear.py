"""Linear attention against loops over pairs in float64, and its limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import linear, linear_sums, positions
from selfattn.dropout import Dropout
from selfattn.encoders import AttentionEncoder
from selfattn.linear import LinearAttention, LinearAttentionEncoder
from selfattn.normalisers import Sigmoid
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, H, K, V, F, LAYERS = 3, 11, 2, 6, 5, 17, 2
D = H * K
X = normal(1, (B, L, D))
PADDED = jnp.arange(L)[None] < jnp.array([11, 4, 7])[:, None]
# Of which the tokens are no neighbours in the second row.
SEGMENTS = jnp.array(
  [[0] * 5 + [1] * 6, [2, 0, 2, 0, 0, 1, 2, 1, 0, 1, 1], [4] * 11]
)
SHUFFLED = jnp.asarray(np.random.default_rng(4).permutation(L)[None])
TOKENS = {
  'padded': Tokens(PADDED),
  'packed': Tokens(PADDED, segments=SEGMENTS),
  'shuffled': Tokens(index=SHUFFLED),
}
close = {'rtol': 1e-5, 'atol': 1e-5}


@pytest.fixture(autouse=True)
def chunks_of_4(monkeypatch):
  """More than one chunk, and a last one that is not full."""
  monkeypatch.setattr(linear_sums, '_CHUNK', 4)


def sees(tokens, causal):
  """Whether query l may attend to key m, (B, L, L), as a loop."""
  tokens = tokens.with_defaults(L)
  found = np.zeros((B, L, L), bool)
  for b, q, k in np.ndindex(found.shape):
    found[b, q, k] = all(
      (
        tokens.padding_mask is None or tokens.padding_mask[b, k],
        tokens.segments is None
        or tokens.segments[b, q] == tokens.segments[b, k],
        not causal or tokens.index[0, k] <= tokens.index[0, q],
      )
    )
  return found


def by_pairs(params, tokens, causal, rotate):
  """Output (B, L, D) and weights, float64, a pair of tokens at a time."""
  x = np.asarray(X, np.float64)
  seen = sees(tokens, causal)

  def project(name):
    part = jax.tree.map(lambda p: np.asarray(p, np.float64), params[name])
    return (x @ part['kernel'] + part['bias']).reshape(B, L, H, K)

  def phi(x):
    return np.where(x > 0, x + 1, np.exp(x))

  def turn(x, position):
    """Pairs (j, j + K/2), by position / 10000^(2j/K) (Su et al. 2021, 34)."""
    if not rotate:
      return x
    angle = position * 10_000.0 ** (-2 * np.arange(K // 2) / K)
    a, b = np.split(x, 2)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])

  q, k, v = phi(project('query')), phi(project('key')), project('value')
  where = tokens.with_defaults(L).positions[0]
  output, weights = np.zeros((B, L, H, K)), np.zeros((B, H, L, L))
  for b, i, h in np.ndindex(B, L, H):
    keys = np.flatnonzero(seen[b, i])
    total = sum(q[b, i, h] @ k[b, j, h] for j in keys)
    for j in keys:
      one = turn(q[b, i, h], where[i]) @ turn(k[b, j, h], where[j])
      weights[b, h, i, j] = one / total
      output[b, i, h] += one / total * v[b, j, h]
  out = jax.tree.map(lambda p: np.asarray(p, np.float64), params['out'])
  return output.reshape(B, L, D) @ out['kernel'] + out['bias'], weights


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(
  ('position', 'tokens'),
  [
    ('none', 'padded'),
    ('rotary', 'packed'),
    pytest.param('rotary', 'shuffled', marks=pytest.mark.slow),
  ],
)
def test_it_is_a_loop_over_pairs(position, tokens, causal):
  tokens = TOKENS[tokens]
  method = POSITIONS[position](D, H, causal)
  layer = LinearAttention(D, H, position=method, causal=causal)
  variables = draw(layer.init, jax.random.key(0), X)
  apply = jax.jit(functools.partial(layer.apply, return_weights=True))
  output, weights = apply(variables, X, query_tokens=tokens)
  want, want_weights = by_pairs(
    variables['params'], tokens, causal, position == 'rotary'
  )
  is_token = np.ones((B, L), bool)
  if tokens.padding_mask is not None:
    is_token &= np.asarray(tokens.padding_mask)
  np.testing.assert_allclose(output[is_token], want[is_token], **close)
  weights, want_weights = (
    np.asarray(x).swapaxes(1, 2) for x in (weights, want_weights)
  )
  np.testing.assert_allclose(weights[is_token], want_weights[is_token], **close)


@pytest.mark.slow
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('tokens', ['packed', 'shuffled'])
def test_gradients_are_those_of_all_pairs(tokens, causal):
  tokens = TOKENS[tokens].with_defaults(L)
  q, k = abs(normal(5, (2, B, H, L, K)))
  v, bar = normal(6, (2, B, H, L, V))
  seen = jnp.asarray(
    sees(Tokens(segments=tokens.segments, index=tokens.index), causal)
  )[:, None]

  def found(q, k, v):
    return (linear_sums.linear_sums(q, k, v, tokens, causal)[0] * bar).sum()

  def want(q, k, v):
    scores = jnp.where(seen, jnp.einsum('BHLK,BHMK->BHLM', q, k), 0)
    return (jnp.einsum('BHLM,BHMV->BHLV', scores, v) * bar).sum()

  for ours, theirs in zip(
    jax.jit(jax.grad(found, (0, 1, 2)))(q, k, v),
    jax.jit(jax.grad(want, (0, 1, 2)))(q, k, v),
    strict=True,
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('size', [-200.0, 1e4])
def test_features_at_the_limits_of_float32_leave_outputs_finite(size):
  x = jnp.array([size, size / 2])

  def mean(x):
    return linear.feature_map(x).mean()

  assert linear.feature_map(x).dtype == jnp.float32
  assert np.isfinite(jax.jit(jax.grad(mean))(x)).all()
  np.testing.assert_allclose(
    linear.feature_map(jnp.array([-20.0])), [np.exp(-20.0)], rtol=1e-6
  )
  layer = LinearAttention(D, H, causal=True)
  variables = draw(layer.init, jax.random.key(0), X)
  output, _ = jax.jit(layer.apply)(variables, size * X)
  assert np.isfinite(output).all()


def encoder(position='sinusoidal', causal=False, **fields):
  method = positions.make(
    {name: {} for name in position.split('+')}, D, H, causal, vocab_size=7
  )
  return LinearAttentionEncoder(
    LAYERS, H, F, method, jnp.float32, causal=causal, **fields
  )


def test_parameters_are_those_of_the_attention_encoder():
  """So that one can be loaded into the other."""
  linear_one = encoder('learned')
  other = AttentionEncoder(LAYERS, H, F, linear_one.position, jnp.float32)
  key = jax.random.key(0)
  shapes = [
    jax.eval_shape(model.init, key, X, PADDED) for model in (linear_one, other)
  ]
  assert shapes[0] == shapes[1]


@pytest.mark.slow
def test_memory_of_the_gradient_is_linear_in_length():
  def temporary(length):
    model = encoder('rotary', True, remat=True)
    x = jax.ShapeDtypeStruct((1, length, D), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), X, None)

    def total(variables, x):
      return model.apply(variables, x, None).sum()

    program = jax.jit(jax.grad(total)).lower(variables, x).compile()
    return program.memory_analysis().temp_size_in_bytes

  small, large = temporary(1 << 12), temporary(1 << 14)
  assert large < 4.1 * small
  assert large < (1 << 28) / 4  # a byte for each fourth pair


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({'window': (2, 0)}, r'window = \(2, 0\) must be None'),
    ({'softcap': 3.0}, r'softcap = 3.0 must be 0.0'),
    ({'backend': 'xla'}, r"backend = 'xla' must be 'auto'"),
    ({'normaliser': Sigmoid(H)}, 'normaliser = Sigmoid.* must be None'),
    ({'position': POSITIONS['t5'](D, H, False)}, 'which its bias hook is for'),
    ({'position': POSITIONS['pope'](D, H, False)}, 'changes the width'),
    (
      {'position': POSITIONS['xpos'](D, H, True), 'causal': True},
      'depends on the other keys',
    ),
  ],
)
def test_what_acts_on_scores_is_refused(fields, said):
  layer = LinearAttention(D, H, **fields)
  with pytest.raises(ValueError, match=said):
    jax.eval_shape(layer.init, jax.random.key(0), X)


@pytest.mark.slow
def test_what_needs_weights_is_refused():
  layer = LinearAttention(D, H, causal=True)
  variables = draw(layer.init, jax.random.key(0), X)
  dropout = Dropout.create(jax.random.key(0), 0.1)
  for name, given in (
    ('key_BMD must be None', {'key_BMD': X + 1}),
    ('mask must be None', {'mask': jnp.ones((L, L), bool)}),
    ('dropout must be None', {'dropout': dropout}),
    (
      'no weights can be made',
      {'cache_len': L, 'return_weights': True, 'mutable': 'cache'},
    ),
  ):
    with pytest.raises(ValueError, match=name):
      layer.apply(variables, X, **given)
