"""What is given to attention by hand is taken as it is meant, or refused."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.encoders import AttentionEncoder
from selfattn.masks import Tokens
from selfattn.positions.angles import angles

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


@pytest.mark.parametrize('kind', ['uint8', 'uint16', 'uint32', 'int8', 'int64'])
@pytest.mark.parametrize('library', [np, jnp])
def test_positions_of_any_integer_type_are_the_same(kind, library):
  given = [[0, 2, 4, 9], [9, 100, 7, 3]]
  if library is jnp and kind == 'int64':
    kind = 'int32'
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
@pytest.mark.parametrize('lowest', ['-inf', 'the lowest number'])
@pytest.mark.parametrize('kind', ['float32', 'bfloat16', 'float16'])
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
  for gradient in jax.grad(loss, (0, 1))(Q, VALUES, bias=bias):
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


@pytest.mark.parametrize('backend', BACKENDS)
def test_an_attention_mask_of_integers_is_one(backend):
  mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
  found, _ = attend(
    Q, KEYS, VALUES, key_tokens=jnp.asarray(mask), backend=backend
  )
  wanted, _ = attend(Q, KEYS, VALUES, key_tokens=mask == 1)
  np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_bias_is_of_numbers_and_a_mask_is_not():
  with pytest.raises(ValueError, match='bias of bool must be floats'):
    attend(Q, KEYS, VALUES, bias=np.ones((L, M), bool))
  with pytest.raises(ValueError, match='mask of int32 must be boolean'):
    attend(Q, KEYS, VALUES, mask=np.ones((L, M), np.int32))


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


def test_a_step_with_an_index_stands_at_it():
  method = positions.make({'rotary': {}, 'shaw': {}}, H * K, H, True)
  module = Attention(H * K, H, position=method, causal=True)
  x = draw(B, 8, H * K)
  variables = module.init(jax.random.key(0), x)
  whole, _ = module.apply(variables, x)
  cache, parts = {}, []
  for start, end in ((0, 5), (5, 8)):
    query = Tokens(index=np.arange(start, end)[None])
    (part, _), cache = module.apply(
      variables | cache,
      x[:, start:end],
      query_tokens=query,
      cache_len=8,
      mutable='cache',
    )
    parts.append(part)
  np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)
  for index in ([[8]], [[3], [5]]):
    with pytest.raises(ValueError, match='consecutive, the same for all rows'):
      module.apply(
        variables | cache,
        x[:, :1],
        query_tokens=Tokens(index=np.array(index)),
        cache_len=8,
        mutable='cache',
      )


def test_angles_of_distances_have_their_shape():
  rates = np.array([1.0, 0.1, 0.01])
  distances = jnp.arange(-6, 6).reshape(1, 3, 4)
  found = angles(distances, rates)
  assert found.shape == (1, 3, 4, 3)
  wanted = angles(np.asarray(distances), rates)
  np.testing.assert_allclose(np.sin(found), np.sin(wanted), atol=1e-6)


def test_a_cache_is_for_self_attention_in_order():
  layer = Attention(H * K, H, causal=True)
  x_BLD = draw(B, L, H * K)
  params = layer.init(jax.random.key(0), x_BLD)

  def step(key_BMD=None, cache_len=9, **tokens):
    layer.apply(
      params,
      x_BLD,
      key_BMD,
      query_tokens=Tokens(**tokens),
      key_tokens=None if key_BMD is None else Tokens(),
      cache_len=cache_len,
      mutable='cache',
    )

  with pytest.raises(ValueError, match='self-attention'):
    step(draw(B, M, H * K))
  with pytest.raises(ValueError, match=r'index 0\.\.6 must be consecutive'):
    step(index=np.array([[0, 2, 4, 6]]))
  encoder = AttentionEncoder(
    1, H, 8, positions.NoPosition(H * K, H, True), jnp.float32, causal=True
  )
  variables = encoder.init(jax.random.key(0), x_BLD, Tokens())
  with pytest.raises(ValueError, match='index must be None'):
    encoder.apply(
      variables, x_BLD, Tokens(index=np.arange(L)[None]), cache_len=9,
      mutable='cache',
    )  # fmt: skip
  with pytest.raises(ValueError, match='needs cache_len'):
    encoder.apply(variables, x_BLD, Tokens(), mutable='cache')


def test_keys_of_another_length_are_not_the_queries():
  """Without tokens they stand at 0, 1, ...; those of queries are not theirs."""
  found, _ = attend(Q, KEYS, VALUES, causal=True)
  wanted, _ = attend(Q, KEYS, VALUES, key_tokens=Tokens(), causal=True)
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  with pytest.raises(ValueError, match='query_tokens without key_tokens'):
    attend(Q, KEYS, VALUES, query_tokens=jnp.ones((B, L), bool))


@pytest.mark.parametrize(
  ('heads', 'kv_heads', 'said'),
  [(5, 0, 'num_heads = 5'), (12, 5, 'num_kv_heads = 5')],
)
def test_heads_that_do_not_divide_are_named(heads, kv_heads, said):
  layer = Attention(12, heads, num_kv_heads=kv_heads)
  with pytest.raises(ValueError, match=f'^{said} does not divide 12'):
    layer.init(jax.random.key(0), draw(B, L, 12))


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
