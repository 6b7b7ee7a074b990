"""What is given to attention by hand is taken as it is meant, or refused."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import chapters, positions
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.dropout import Dropout
from selfattn.encoders import ENCODERS, AttentionEncoder
from selfattn.positions import make
from selfattn.tokens import Tokens

B, L, M, H, K = 2, 4, 5, 2, 6
BACKENDS = ('reference', 'chunked', 'xla')


def draw(*shape):
  return np.random.default_rng(len(shape)).normal(size=shape).astype('float32')


Q, KEYS, VALUES = draw(B, L, H, K), draw(B, M, H, K), draw(B, M, H, K) + 1


def alibi(tokens):
  method = positions.make({'alibi': {}}, H * K, H, False)
  return attend(
    Q, KEYS[:, :L], VALUES[:, :L], query_tokens=tokens, position=method
  )[0]


@pytest.mark.parametrize('length', [L, M])
def test_one_object_for_both_sides_of_cross_attention_is_two(length):
  layer = Attention(12, 2)
  x, y, tokens = draw(B, L, 12), draw(B, length, 12) + 1, Tokens()
  params = layer.init(jax.random.key(0), x, y)
  one = layer.apply(params, x, y, query_tokens=tokens, key_tokens=tokens)[0]
  two = layer.apply(params, x, y)[0]
  np.testing.assert_array_equal(one, two)
  keys = draw(B, length, H, K)
  np.testing.assert_array_equal(
    attend(Q, keys, keys, query_tokens=tokens, key_tokens=tokens)[0],
    attend(Q, keys, keys)[0],
  )


def test_positions_at_padding_need_no_row_of_a_table():
  method = positions.make({'learned': {'max_len': 3}}, 12, H, False)
  params = method.init(jax.random.key(0))
  mask = np.array([[1, 1, 1, 0]])
  ids = np.array([[0, 1, 2, 9]])
  known, traced = (
    method.encoding(params, Tokens(mask, library.asarray(ids)).with_defaults(L))
    for library in (np, jnp)
  )
  np.testing.assert_array_equal(known, traced)


@pytest.mark.parametrize(
  ('kind', 'library'), [('uint8', jnp), ('uint32', np), ('int64', np)]
)
def test_positions_of_any_integer_type_are_the_same(kind, library):
  given = [[0, 2, 4, 9], [9, 100, 7, 3]]
  found = alibi(Tokens(positions=library.asarray(given, kind)))
  wanted = alibi(Tokens(positions=np.array(given)))
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  row = alibi(Tokens(positions=np.array([[254, 255, 0, 1]], 'uint8')))
  wanted = alibi(Tokens(positions=np.array([[254, 255, 0, 1]])))
  np.testing.assert_allclose(row, wanted, atol=1e-6)


def test_positions_that_are_replaced_are_looked_at_again():
  far = np.array([[0, 50, 100, 150]])
  found = alibi(Tokens().with_defaults(L).replace(positions=far))
  np.testing.assert_array_equal(found, alibi(Tokens(positions=far)))
  assert abs(found - alibi(None)).max() > 0.1
  halved = jax.tree.map(lambda x: x[:, ::2], Tokens().with_defaults(8))
  assert halved.has_consecutive_positions() is False


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(
  ('kind', 'lowest'),
  [('float32', '-inf'), ('float16', 'finite')],
)
def test_a_mask_that_is_added_hides(backend, lowest, kind):
  padding_mask = np.array([[True] * 3 + [False] * 2] * B)
  bias = np.zeros((B, 1, L, M), kind)
  value = -np.inf if lowest == '-inf' else jnp.finfo(kind).min
  bias[0, 0, 0] = value
  bias[1, 0, 2, 1] = value
  more = {'key_tokens': padding_mask, 'backend': backend}

  def loss(q, values, **given):
    return attend(q, KEYS, values, **given, **more)[0].sum()

  found, _ = attend(Q, KEYS, VALUES, bias=bias, **more)
  wanted, _ = attend(Q, KEYS, VALUES, mask=bias == 0, **more)
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  assert not found[0, 0].any()
  slopes = jax.jit(jax.grad(lambda *given: loss(*given, bias=bias), (0, 1)))
  for gradient in slopes(Q, VALUES):
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(('queries', 'keys'), [(0, M), (L, 0)])
def test_no_queries_or_no_keys_are_nothing(backend, queries, keys):
  mask = np.ones((queries, keys), bool)
  found, weights = attend(
    Q[:, :queries],
    KEYS[:, :keys],
    VALUES[:, :keys],
    mask=mask,
    backend=backend,
    return_weights=True,
  )
  assert found.shape == (B, queries, H, K)
  assert weights.shape == (B, H, queries, keys)
  assert not found.any()


def test_an_attention_mask_of_integers_is_one():
  mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
  found, _ = attend(Q, KEYS, VALUES, key_tokens=jnp.asarray(mask))
  wanted, _ = attend(Q, KEYS, VALUES, key_tokens=mask == 1)
  np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
  'name', ['padding_mask', 'positions', 'segments', 'index']
)
def test_rows_of_another_batch_are_refused_by_name(name):
  rows = Tokens(**{name: np.ones((B + 1, L), int)})
  reason = re.escape(f'{name} of shape (3, 4) must be (1 or B = 2, 4)')
  q, keys = Q, KEYS[:, :L]
  alone = jnp.zeros((B, L, H * K))
  method = positions.make({'none': {}}, H * K, H, False)
  encoder = AttentionEncoder(1, H, 8, method, jnp.float32)
  for call in (
    lambda: attend(q, keys, keys, query_tokens=rows),
    lambda: attend(q, keys, keys, query_tokens=Tokens(), key_tokens=rows),
    lambda: Attention(H * K, H).init(
      jax.random.key(0), alone, query_tokens=rows
    ),
    lambda: Attention(H * K, H).init(
      jax.random.key(0), alone, alone, key_tokens=rows
    ),
    lambda: encoder.init(jax.random.key(0), alone, rows),
  ):
    with pytest.raises(ValueError, match=reason):
      call()


def test_keys_of_another_length_are_not_the_queries():
  """Without tokens they stand at 0, 1, ...; those of queries are not theirs."""
  found, _ = attend(Q, KEYS, VALUES, causal=True)
  wanted, _ = attend(Q, KEYS, VALUES, key_tokens=Tokens(), causal=True)
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  with pytest.raises(ValueError, match='query_tokens without key_tokens'):
    attend(Q, KEYS, VALUES, query_tokens=jnp.ones((B, L), bool))


def test_names_of_parameters_of_the_model_and_of_a_layer_differ():
  @dataclasses.dataclass(frozen=True)
  class Twice(positions.Position):
    def init_model(self, key):
      return {'table': jnp.zeros(2)}

    def init_layer(self, key):
      return {'table': jnp.ones(2)}

  method = Twice(12, 2, False)
  layer = Attention(12, 2, position=method)
  with pytest.raises(ValueError, match="'table' is a parameter of both"):
    layer.init(
      jax.random.key(0), draw(B, L, 12), position_params=method.init_model(None)
    )


def test_a_content_term_may_be_none():
  @dataclasses.dataclass(frozen=True)
  class Nothing(positions.Position):
    def content(self, params, q_BLHK, k_BMHK, query, key):
      return None

  found = attend(
    Q, KEYS, VALUES, position=Nothing(H * K, H, False), return_weights=True
  )
  wanted = attend(Q, KEYS, VALUES, return_weights=True)
  for one, other in zip(found, wanted, strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('kind', ['float16', 'bfloat16', 'float32'])
@pytest.mark.parametrize('share', [0.6, 0.99])
def test_a_bias_above_the_lowest_number_does_not_hide(kind, share):
  """Adding the same to all scores changes no weight."""
  lowest = float(jnp.finfo(kind).min)
  for value, total in ((share * lowest, 1.0), (lowest, 0.0)):
    bias = jnp.full((1, 1, L, M), value, kind)
    _, weights = attend(Q, KEYS, VALUES, bias=bias, return_weights=True)
    np.testing.assert_allclose(weights.sum(axis=-1), total, atol=1e-6)


@pytest.mark.parametrize('in_encoder', [False, True])
def test_nan_at_padding_reaches_no_token(in_encoder):
  x = jnp.ones((1, 4, 8)).at[:, 3].set(jnp.nan)
  layer = Attention(8, 2, in_encoder=in_encoder)
  (output, _), _ = layer.init_with_output(
    jax.random.key(0), x, query_tokens=np.array([[True, True, True, False]])
  )
  assert np.isfinite(output[:, :3]).all()


@pytest.mark.slow
@pytest.mark.parametrize('name', ENCODERS)
def test_integers_are_read_as_real_numbers(name):
  """And never cut off the results, dropped or not."""
  sizes = {} if name == 'bow' else {'num_layers': 1, 'dtype': jnp.float32}
  if name in ('attention', 'linear_attention'):
    position = make({'sinusoidal': {}}, 8, 2, False)
    sizes |= {'num_heads': 2, 'mlp_dim': 8, 'position': position}
  encoder = ENCODERS[name](**sizes)
  x = jnp.arange(24).reshape(1, 3, 8) % 5
  variables = encoder.init(jax.random.key(0), x)
  for dropout in (None, Dropout.create(jax.random.key(1), 0.3)):
    found = encoder.apply(variables, x, None, dropout)
    want = encoder.apply(variables, x.astype(jnp.float32), None, dropout)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('kind', ['int32', 'bool'])
def test_attention_over_integers_is_that_over_real_numbers(kind):
  q, k, v = (jnp.asarray(x).astype(kind) for x in (Q, KEYS, VALUES))
  found, _ = attend(q, k, v)
  assert found.dtype == jnp.float32
  want, _ = attend(*(x.astype(jnp.float32) for x in (q, k, v)))
  np.testing.assert_array_equal(found, want)
  encoding = chapters.PositionalEncoding(4, 0.0)
  x = jnp.ones((1, 3, 4), kind)
  want = encoding.apply({}, x.astype(jnp.float32))
  np.testing.assert_array_equal(encoding.apply({}, x), want)
