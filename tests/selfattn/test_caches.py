"""Caches of layers and stacks: what they keep, and what they refuse."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.classifier import TextClassifier
from selfattn.encoders import AttentionEncoder
from selfattn.heads import TokenHead, VocabularyHead
from selfattn.linear import LinearAttention
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS, Position
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, H, D, F, V = 2, 8, 2, 12, 9, 7
X = normal(1, (B, L, D))
IDS = np.random.default_rng(2).integers(0, V, (B, L))
close = {'rtol': 1e-4, 'atol': 2e-5}


def encoder(name, **fields):
  causal = fields.setdefault('causal', True)
  method = positions.make({name: {}}, D, H, causal, V)
  return AttentionEncoder(2, H, F, method, jnp.float32, **fields)


def init(module, *args):
  return draw(module.init, jax.random.key(0), X, *args)['params']


# --- a layer -----------------------------------------------------------------

LAYERS = {
  'causal': (Attention, True),
  'both sides': (Attention, False),
  'linear causal': (LinearAttention, True),
  'linear': (LinearAttention, False),
}


def layer_of(kind):
  cls, causal = LAYERS[kind]
  method = positions.make({'rotary': {}}, D, H, causal)
  layer = cls(D, H, position=method, causal=causal)
  return layer, init(layer)


@pytest.mark.parametrize(
  ('kind', 'says'),
  [
    *((kind, 'traced') for kind in LAYERS),
    ('linear causal', 'nothing'),
    ('causal', 'known'),
  ],
)
def test_calls_of_a_layer_continue_where_the_last_one_ended(kind, says):
  """Or where their index says; each attends to all keys so far."""
  layer, params = layer_of(kind)

  def step(cache, x, index):
    return layer.apply(
      {'params': params, **cache},
      x,
      query_tokens=Tokens(index=index),
      cache_len=L,
      mutable='cache',
    )

  cache = {}
  for begin, end in ((0, 4), (4, 5), (5, L)):
    index = None if says == 'nothing' else np.arange(begin, end)[None]
    if says == 'traced':
      (y, _), cache = jax.jit(step)(cache, X[:, begin:end], index)
    else:
      known = jax.jit(lambda cache, x, index=index: step(cache, x, index))
      (y, _), cache = known(cache, X[:, begin:end])
    so_far, _ = jax.jit(layer.apply)({'params': params}, X[:, :end])
    np.testing.assert_allclose(y, so_far[:, begin:end], **close)


@pytest.mark.parametrize('kind', LAYERS)
def test_a_full_cache_is_an_error_or_nan_and_never_a_clamp(kind):
  layer, params = layer_of(kind)

  def step(cache, x, index=None):
    return layer.apply(
      {'params': params, **cache},
      x,
      query_tokens=Tokens(index=index),
      cache_len=5,
      mutable='cache',
    )

  with pytest.raises(ValueError, match='8 tokens do not fit into cache_len'):
    step({}, X)
  (y, _), cache = jax.jit(step)({}, X[:, :4])
  assert np.isfinite(y).all()
  for index in (None, jnp.array([[4, 5]]), jnp.array([[-1, 0]])):
    (y, _), full = jax.jit(step)(cache, X[:, :2], index)
    assert np.isnan(y).all()
    # Nor does any later call read what did not fit.
    (y, _), _ = jax.jit(step)(full, X[:, :1], jnp.array([[4]]))
    assert np.isnan(y).all()


def test_a_mask_beside_a_cache_is_of_all_its_keys():
  layer, params = layer_of('causal')
  mask = np.random.default_rng(0).random((B, H, 1, L)) < 0.8

  @jax.jit
  def step(cache, x):
    return layer.apply(
      {'params': params, **cache}, x, mask=mask, cache_len=L, mutable='cache'
    )

  (first, _), cache = step({}, X[:, :5])
  (last, _), _ = step(cache, X[:, 5:])
  want, _ = jax.jit(layer.apply)({'params': params}, X, mask=mask)
  np.testing.assert_allclose(np.concatenate([first, last], 1), want, **close)


def test_what_tokens_have_is_given_in_all_calls_or_in_none():
  layer, params = layer_of('causal')

  @jax.jit
  def step(cache, **tokens):
    return layer.apply(
      {'params': params, **cache},
      X[:, :2],
      query_tokens=Tokens(**tokens),
      cache_len=L,
      mutable='cache',
    )

  _, without = step({})
  with pytest.raises(ValueError, match='ids of tokens were given in some'):
    step(without, ids=IDS[:, :2])
  _, having = step({}, ids=IDS[:, :2])
  with pytest.raises(ValueError, match='ids of tokens were given in some'):
    step(having)


def test_sums_are_never_written_over():
  """An index that was is NaN for a sum, and a place in a cache of keys."""
  for kind, is_finite in (('linear causal', False), ('causal', True)):
    layer, params = layer_of(kind)

    def step(cache, layer=layer, params=params):
      return layer.apply(
        {'params': params, **cache},
        X[:, :2],
        query_tokens=Tokens(index=np.array([[0, 1]])),
        cache_len=L,
        mutable='cache',
      )

    _, cache = jax.jit(step)({})
    (y, _), _ = jax.jit(step)(cache)
    assert np.isfinite(y).all() == is_finite


@pytest.mark.parametrize('library', [np.array, jnp.array, list])
def test_an_index_that_is_known_is_checked(library):
  layer, params = layer_of('causal')
  for index in ([[0, 2, 3, 5]], [[0, 1, 2, 3], [1, 2, 3, 4]]):
    with pytest.raises(ValueError, match='consecutive, the same for all rows'):
      layer.apply(
        {'params': params},
        X[:, :4],
        query_tokens=Tokens(index=library(index)),
        cache_len=L,
        mutable='cache',
      )


def test_a_call_without_tokens_changes_no_cache():
  layer, params = layer_of('causal')

  @functools.partial(jax.jit, static_argnums=2)
  def step(cache, x, cache_len=L):
    return layer.apply(
      {'params': params, **cache}, x, cache_len=cache_len, mutable='cache'
    )

  _, cache = step({}, X[:, :3])
  (y, _), after = step(cache, X[:, :0])
  assert y.shape == (B, 0, D)
  jax.tree.map(np.testing.assert_array_equal, cache, after)
  _, after = layer.apply(
    {'params': params, **cache}, X[:, :0], cache_len=L, mutable='cache',
    query_tokens=Tokens(index=np.zeros((1, 0), int)),
  )  # fmt: skip
  jax.tree.map(np.testing.assert_array_equal, cache, after)
  with pytest.raises(ValueError, match='cache_len = 9, and the cache holds 8'):
    step(cache, X[:, :1], 9)


# --- a stack -----------------------------------------------------------------


def run(module, params, parts, tokens, cache_len=L):
  """Outputs of calls of these parts of the rows, joined, and the cache."""

  @jax.jit
  def step(cache, x, tokens):
    return module.apply(
      {'params': params, **cache},
      x,
      tokens,
      cache_len=cache_len,
      mutable='cache',
    )

  cache, outputs = {}, []
  for begin, end in parts:
    now = slice(begin, end)
    rows = jax.tree.map(lambda x, now=now: x[:, now], tokens)
    y, cache = step(cache, X[:, now], rows)
    outputs.append(y)
  return np.concatenate(outputs, axis=1), cache


def test_a_cache_takes_the_positions_it_is_given():
  # With a cache, a scanned stack is unrolled.
  module = encoder('alibi', scan=True)
  params = init(module)
  places = jnp.sort(jax.random.choice(jax.random.key(2), 50, (L,), False))[None]
  tokens = Tokens(positions=places, is_consecutive=False)
  apply = jax.jit(module.apply)
  full = apply({'params': params}, X, tokens)
  y, _ = run(module, params, [(n, n + 1) for n in range(L)], tokens)
  np.testing.assert_allclose(y, full, **close)
  assert abs(full - apply({'params': params}, X)).max() > 1e-3


@dataclasses.dataclass(frozen=True)
class Shifted(Position):
  supports_cache = False

  def embed(self, params, x_BLD, tokens):
    return x_BLD + jnp.pad(x_BLD[:, :-1], ((0, 0), (1, 0), (0, 0)))


def test_what_a_cache_cannot_do_is_refused():
  def step(module, tokens=None, **more):
    variables = {'params': init(module)}
    module.apply(variables, X, tokens, mutable='cache', **more)

  with pytest.raises(ValueError, match='causal=True'):
    step(encoder('none', causal=False), cache_len=L)
  with pytest.raises(ValueError, match='one segment'):
    step(encoder('none'), Tokens(segments=jnp.zeros((1, L), int)), cache_len=L)
  shifted = AttentionEncoder(
    1, H, F, Shifted(D, H, True), jnp.float32, causal=True
  )
  with pytest.raises(ValueError, match=r'earlier tokens.*Shifted'):
    step(shifted, cache_len=L)
  with pytest.raises(ValueError, match='needs cache_len'):
    step(encoder('none'))
  with pytest.raises(ValueError, match='needs cache_len'):
    step(Attention(D, H, causal=True))
  with pytest.raises(ValueError, match='index must be None'):
    step(encoder('none'), Tokens(index=np.arange(L)[None]), cache_len=L)
  with pytest.raises(ValueError, match='self-attention'):
    step(Attention(D, H, causal=True), X + 1, key_tokens=Tokens(), cache_len=L)
  assert POSITIONS['none'](D, H, True).supports_cache


def test_a_cache_keeps_the_rows_of_its_first_call():
  x, layer = normal(0, (2, 3, 8)), Attention(8, 2, causal=True)
  variables = layer.init(jax.random.key(1), x)

  def call(state, x):
    more = {'cache_len': 6, 'mutable': ['cache']}
    return layer.apply(variables | state, x, **more)[1]

  with pytest.raises(ValueError, match='2 rows, and the cache holds 1'):
    call(call({}, x[:1]), x)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('learned', marks=pytest.mark.slow),
    pytest.param('sinusoidal', marks=pytest.mark.slow),
    'rotary',
    pytest.param('alibi', marks=pytest.mark.slow),
  ],
)
def test_positions_of_all_calls_begin_at_the_first_token_of_a_row(name):
  made = encoder(name).clone(parent=None)
  head = {'vocabulary': VocabularyHead(transform=False, parent=None)}
  model = TextClassifier(V, 2, D, made, token_head=head)
  before = np.array([[0], [3], [6]])
  mask = np.arange(L)[None] >= before
  ids = np.random.default_rng(4).integers(0, V, mask.shape)
  params = draw(model.init, jax.random.key(0), ids, mask)['params']
  want = np.asarray(jax.jit(model.apply)({'params': params}, ids, mask))

  @jax.jit
  def step(cache, ids, mask):
    return model.apply(
      {'params': params, **cache}, ids, mask, mutable=['cache'], cache_len=L
    )

  cache, found = {}, []
  for part in np.split(np.arange(L), [2, 5, 6, 7]):
    logits, cache = step(cache, ids[:, part], mask[:, part])
    found.append(logits)
  found = np.concatenate(found, axis=1)
  np.testing.assert_allclose(found[mask], want[mask], **close)


@pytest.mark.parametrize('kind', [Attention, LinearAttention])
@pytest.mark.parametrize(
  ('index', 'is_one'),
  [
    ([[0, 1, 2], [0, 1, 2]], True),
    ([[0, 1, 2], [1, 2, 3]], False),
    ([[0, 1, 3], [0, 1, 3]], False),
    ([[0, 2, 1], [0, 2, 1]], False),
  ],
)
def test_a_traced_index_that_no_cache_has_gives_nan(kind, index, is_one):
  x = normal(0, (2, 3, 8))
  layer = kind(8, 2, causal=True)
  variables = layer.init(jax.random.key(1), x)

  @jax.jit
  def outputs(index):
    tokens = Tokens(index=index)
    (y, _), _ = layer.apply(
      variables, x, query_tokens=tokens, cache_len=6, mutable=['cache']
    )
    return y

  is_number = np.isfinite(outputs(jnp.array(index)))
  assert is_number.all() if is_one else not is_number.any()


def token_classifier(pool, name):
  """A causal classifier of tokens, of one layer."""
  encoder = AttentionEncoder(
    num_layers=1,
    num_heads=2,
    mlp_dim=16,
    position=positions.make({name: {}}, 16, 2, True),
    dtype=jnp.float32,
    causal=True,
    parent=None,
  )
  return TextClassifier(
    10,
    3,
    16,
    encoder,
    pool=POOLS[pool](parent=None),
    token_head={'t': TokenHead(3, parent=None)},
    embed_init_std=1.0,
  )


def in_calls(classifier, variables, tokens, mask, ends, **first):
  """Logits of all tokens, in calls that end at these columns.

  Args:
    first: options of the first call.
  """
  state, found, begin = {}, [], 0
  for end in ends:
    logits, state = classifier.apply(
      variables | state,
      tokens[:, begin:end],
      mask[:, begin:end],
      cache_len=8,
      mutable=['cache'],
      **first,
    )
    found.append(logits)
    begin, first = end, {}
  return np.concatenate(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize('pool', ['mean', 'cls'])
@pytest.mark.parametrize('is_right_padded', [False, True])
def test_cls_stands_before_the_first_call_alone(pool, is_right_padded):
  """And positions go on, whatever is said of the first call."""
  classifier = token_classifier(pool, 'sinusoidal')
  tokens, mask = np.arange(6)[None], np.ones((1, 6), bool)
  variables = classifier.init(jax.random.key(0), tokens, mask)
  want = classifier.apply(variables, tokens, mask)
  found = in_calls(
    classifier,
    variables,
    tokens,
    mask,
    (3, 4, 6),
    is_right_padded=is_right_padded,
  )
  np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.slow
def test_later_calls_may_have_other_types():
  x = normal(0, (1, 2, 8))
  layer = Attention(
    8, 2, causal=True, position=positions.make({'rotary': {}}, 8, 2, True)
  )
  variables = layer.init(jax.random.key(1), x)

  def call(layer, state, x, positions):
    (y, _), state = layer.apply(
      variables | state,
      x,
      query_tokens=Tokens(positions=positions),
      cache_len=6,
      mutable=['cache'],
    )
    return y, state

  first, second = np.arange(2)[None], np.arange(2, 4)[None]
  _, state = call(layer, {}, x, first)
  want, _ = call(layer, state, x, second)
  found, _ = call(layer, state, x, second.astype(np.float32))
  np.testing.assert_allclose(found, want, atol=1e-6)
  half = layer.clone(dtype=jnp.bfloat16)
  found, _ = call(half, state, x.astype(jnp.bfloat16), second)
  np.testing.assert_allclose(found.astype(np.float32), want, atol=0.1)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('sinusoidal', marks=pytest.mark.slow),
    pytest.param('rotary', marks=pytest.mark.slow),
    'alibi',
  ],
)
@pytest.mark.parametrize(
  'pool', [pytest.param('mean', marks=pytest.mark.slow), 'cls']
)
def test_padding_before_the_first_token_moves_no_later_one(pool, name):
  classifier = token_classifier(pool, name)
  tokens = np.array([[0, 0, 3, 4, 5, 6]])
  mask = tokens > 0
  variables = classifier.init(jax.random.key(0), tokens, mask)
  want = classifier.apply(variables, tokens[:, 2:], mask[:, 2:])
  found = in_calls(classifier, variables, tokens, mask, (4, 5, 6))
  np.testing.assert_allclose(found[:, 2:], want, atol=1e-5)
