"""Caches, packed sequences, sampled positions: explicit positions at work."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.encoders import AttentionEncoder
from selfattn.masks import Tokens
from selfattn.pools import Cls
from selfattn.positions import POSITIONS, Position
from selfattn.positions.sampling import (
  SAMPLINGS,
  Augmented,
  Consecutive,
  Randomised,
  RandomOffset,
)
from tests.conftest import acts_in_attention, draw, is_causal_only

pytestmark = pytest.mark.matrix

B, L, H, D, F, LAYERS, V = 3, 9, 4, 24, 17, 2, 7
METHODS = [*POSITIONS, 'sinusoidal+t5', 'shaw with values']
X = jax.random.normal(jax.random.key(1), (B, L, D))
IDS = jax.random.randint(jax.random.key(2), (B, L), 0, V)
close = {'rtol': 1e-4, 'atol': 2e-5}


def make_encoder(name, num_layers=LAYERS, **fields):
  blocks = {part: {} for part in name.split(' ')[0].split('+')}
  if name.endswith('values'):
    blocks = {'shaw': {'max_distance': 3, 'with_values': True}}
  if name == 'complex_order':
    blocks = {name: {'shared': 'words'}}
  if name == 'path':
    blocks = {name: {'kernel_size': 1}}
  causal = fields.setdefault('causal', is_causal_only(name))
  method = positions.make(blocks, D, H, causal, V)
  return AttentionEncoder(num_layers, H, F, method, jnp.float32, **fields)


CACHED = [n for n in METHODS if make_encoder(n).position.supports_cache]


def init(encoder):
  return draw(encoder.init, jax.random.key(0), X, Tokens(ids=IDS))['params']


# --- a cache of keys and values ----------------------------------------------


@pytest.mark.parametrize(
  ('name', 'num_layers', 'steps'),
  [
    *((name, 1, (4, 1, 3, 1)) for name in CACHED),
    ('rotary', LAYERS, (1,) * L),
  ],
)
def test_step_by_step_equals_the_full_causal_pass(name, num_layers, steps):
  encoder = make_encoder(
    name, num_layers, causal=True, num_kv_heads=2, window=(5, 0)
  )
  params = init(encoder)
  # Padding in the middle of one row: it is never seen later either.
  padding_mask = jnp.ones((B, L), bool).at[1, 3].set(False)
  full = jax.jit(encoder.apply)({'params': params}, X, Tokens(padding_mask))
  step = jax.jit(
    lambda cache, x, padding_mask: encoder.apply(
      {'params': params, **cache},
      x,
      Tokens(padding_mask),
      cache_len=L + 2,
      mutable='cache',
    )
  )
  cache, outputs, begin = {}, [], 0
  for length in steps:
    now = slice(begin, begin + length)
    output, cache = step(cache, X[:, now], padding_mask[:, now])
    outputs.append(output)
    begin += length
  np.testing.assert_allclose(np.concatenate(outputs, axis=1), full, **close)
  assert cache['cache']['end'] == L
  assert cache['cache']['block_0']['attention']['keys'].shape[2] == 2


def test_a_cache_takes_the_positions_it_is_given():
  encoder = make_encoder('alibi', causal=True)
  params = init(encoder)
  places = jnp.sort(jax.random.choice(jax.random.key(2), 50, (L,), False))[None]
  tokens = Tokens(positions=places, is_consecutive=False)
  apply = jax.jit(encoder.apply)
  full = apply({'params': params}, X, tokens)
  step = jax.jit(
    lambda cache, x, places: encoder.apply(
      {'params': params, **cache},
      x,
      Tokens(positions=places, is_consecutive=False),
      cache_len=L,
      mutable='cache',
    )
  )
  cache, outputs = {}, []
  for place in range(L):
    now = slice(place, place + 1)
    output, cache = step(cache, X[:, now], places[:, now])
    outputs.append(output)
  np.testing.assert_allclose(jnp.concatenate(outputs, axis=1), full, **close)
  plain = apply({'params': params}, X, Tokens())
  assert abs(full - plain).max() > 1e-3


def test_words_are_kept_in_a_cache_for_methods_that_read_them():
  method = POSITIONS['complex_order'](D, H, True, vocab_size=V)
  encoder = AttentionEncoder(LAYERS, H, F, method, jnp.float32, causal=True)
  params = draw(encoder.init, jax.random.key(0), X, Tokens(ids=IDS))['params']
  # Rates of every word begin alike.
  params['position']['rates'] *= 1 + jnp.arange(V + 2)[:, None] / V
  full = encoder.apply({'params': params}, X, Tokens(ids=IDS))
  cache, outputs = {}, []
  for now in (slice(0, 4), slice(4, 5), slice(5, L)):
    output, cache = encoder.apply(
      {'params': params, **cache},
      X[:, now],
      Tokens(ids=IDS[:, now]),
      cache_len=L,
      mutable='cache',
    )
    outputs.append(output)
  np.testing.assert_allclose(jnp.concatenate(outputs, axis=1), full, **close)
  other = encoder.apply({'params': params}, X, Tokens(ids=V - 1 - IDS))
  assert abs(other - full).max() > 1e-3
  np.testing.assert_array_equal(
    cache['cache']['block_0']['attention']['ids'], IDS
  )


@dataclasses.dataclass(frozen=True)
class Neighbours(Position):
  supports_cache = False

  def embed(self, params, x_BLD, tokens):
    return x_BLD + jnp.pad(x_BLD[:, :-1], ((0, 0), (1, 0), (0, 0)))


def test_a_method_that_reads_other_tokens_has_no_cache():
  method = Neighbours(D, H, True)
  encoder = AttentionEncoder(LAYERS, H, F, method, jnp.float32, causal=True)
  variables = {'params': init(encoder)}
  with pytest.raises(ValueError, match=r'earlier tokens.*Neighbours'):
    encoder.apply(variables, X, Tokens(), cache_len=L, mutable='cache')


def test_a_full_cache_is_an_error_and_never_a_clamp():
  encoder = make_encoder('none', causal=True)
  params = init(encoder)

  def step(cache, x):
    return encoder.apply(
      {'params': params, **cache}, x, Tokens(), cache_len=5, mutable='cache'
    )

  with pytest.raises(
    ValueError, match='9 tokens do not fit into cache_len = 5'
  ):
    step({}, X)
  output, cache = jax.jit(step)({}, X[:, :4])
  assert np.isfinite(output).all()
  output, _ = jax.jit(step)(cache, X[:, 4:5])
  assert np.isfinite(output).all()
  output, _ = jax.jit(step)(cache, X[:, 4:6])
  assert np.isnan(output).all()


def test_what_a_cache_cannot_do_is_refused():
  def step(encoder, tokens, **more):
    variables = {'params': init(encoder)}
    encoder.apply(variables, X, tokens, mutable='cache', **more)

  with pytest.raises(ValueError, match='causal=True and scan=False'):
    step(make_encoder('none'), Tokens(), cache_len=L)
  with pytest.raises(ValueError, match='causal=True and scan=False'):
    step(make_encoder('none', causal=True, scan=True), Tokens(), cache_len=L)
  causal = make_encoder('none', causal=True)
  with pytest.raises(ValueError, match='one segment'):
    step(causal, Tokens(segments=jnp.zeros((1, L), int)), cache_len=L)
  layer = Attention(D, H, causal=True)
  params = layer.init(jax.random.key(0), X)
  with pytest.raises(ValueError, match='cache_len'):
    layer.apply(params, X, mutable='cache')


# --- positions given by hand -------------------------------------------------

FAR = np.array([[0, 50, 100, 150, 151, 152, 160, 170, 400]])


@pytest.mark.parametrize('known', [True, False], ids=['known', 'traced'])
@pytest.mark.parametrize('name', METHODS)
def test_positions_given_by_hand_are_used(name, known):
  """As where the same keys are given apart, when no distance is counted."""
  blocks = {part: {} for part in name.split(' ')[0].split('+')}
  if name.endswith('values'):
    blocks['shaw'] = {'max_distance': 3, 'with_values': True}
  causal = is_causal_only(name)
  method = positions.make(blocks, D, H, causal, V)
  layer = Attention(D, H, position=method, causal=causal, in_encoder=True)
  shared = {'position_params': draw(method.init_model, jax.random.key(0))}
  variables = draw(lambda key: layer.init(key, X, **shared), jax.random.key(1))
  apply = functools.partial(layer.apply, variables, **shared)

  @jax.jit
  def outputs(x, places):
    given = Tokens(positions=FAR if known else places)
    calls = apply(x), apply(x, query=given), apply(x, x, query=given, key=given)
    return [output for output, _ in calls]

  counted, alone, apart = outputs(X, FAR)
  np.testing.assert_allclose(alone, apart, **close)
  if acts_in_attention(method) and not method.hooks & {'state', 'scores'}:
    assert abs(alone - counted).max() > 1e-3


ROW = np.arange(L)[None]


@pytest.mark.parametrize(
  ('tokens', 'counts'),
  [
    (Tokens(), True),
    (Tokens(positions=ROW + 7), True),
    (Tokens(positions=np.concatenate([ROW, ROW + 7])), True),
    (Tokens(positions=FAR), False),
    (Tokens(positions=ROW[:, ::-1]), False),
    (Tokens(positions=np.concatenate([ROW, FAR])), False),
    # What is traced cannot be looked at, so its maker has to say so.
    (Tokens(positions=jnp.asarray(ROW)), False),
    (Tokens(positions=jnp.asarray(ROW), is_consecutive=True), True),
  ],
)
def test_distances_are_counted_only_where_positions_are_consecutive(
  tokens, counts
):
  assert tokens.with_defaults(L).has_consecutive_positions() is counts


def test_a_random_offset_leaves_distances_to_be_counted():
  tokens = RandomOffset().tokens(IS_TOKEN, stream(0)).with_defaults(L)
  assert tokens.is_consecutive


# --- several sequences in a row ----------------------------------------------


@pytest.mark.parametrize(
  ('name', 'causal'),
  [
    *((name, is_causal_only(name)) for name in METHODS),
    ('t5', True),
    ('shaw', True),
  ],
)
def test_packed_sequences_equal_each_on_its_own(name, causal):
  encoder = make_encoder(name, 1, causal=causal)
  params = init(encoder)
  apply = jax.jit(encoder.apply)
  lengths = (3, 1, 3)
  segments = jnp.array([[0] * 3 + [1] + [2] * 3 + [3] * 2])
  places = jnp.array([[*range(3), 0, *range(3), 0, 1]])
  padding_mask = jnp.arange(L)[None] < sum(lengths)
  begins = np.cumsum([0, *lengths[:-1]])
  parts = [
    slice(begin, begin + length)
    for begin, length in zip(begins, lengths, strict=True)
  ]
  alone = [
    apply({'params': params}, X[:, now], Tokens(ids=IDS[:, now]))
    for now in parts
  ]
  for is_consecutive in (True, False):
    # Within a segment positions do differ as places in the row do, so a
    # relative method may count distances; FIRE reads the positions anyway.
    # None is False for positions that are traced.
    tokens = Tokens(
      padding_mask, places, segments, ids=IDS, is_consecutive=is_consecutive
    )
    packed = np.asarray(apply({'params': params}, X, tokens))
    for now, want in zip(parts, alone, strict=True):
      np.testing.assert_allclose(packed[:, now], want, **close)


# --- where the tokens stand --------------------------------------------------

LENGTHS = jnp.array([9, 4, 1])
IS_TOKEN = jnp.arange(L)[None] < LENGTHS[:, None]


def stream(seed):
  return Dropout.create(jax.random.key(seed), 0.0)


def test_every_sampling_has_a_test_here():
  assert set(SAMPLINGS.values()) == {
    Augmented,
    Consecutive,
    RandomOffset,
    Randomised,
  }


def test_augmented_positions_are_moved_stretched_and_jittered():
  is_token = jnp.ones((400, L), bool)
  method = Augmented(max_shift=3.0, max_jitter=0.25, max_scale=1.5)
  tokens = method.tokens(is_token, stream(0))
  positions = np.asarray(tokens.positions)
  assert (np.diff(positions) > 0).all()
  steps = np.diff(positions).mean(axis=1)
  # One scale a text, and one shift; jitter moves the ends of a text at most.
  wobble = 2 * 0.25 / (L - 1) * 1.5
  assert 1.3 < steps.max() <= 1.5 + wobble
  assert 1 / 1.5 - wobble <= steps.min() < 0.75
  first = positions[:, 0] / steps
  assert -3.6 < first.min() < -2.5
  assert 2.5 < first.max() < 3.6
  plain = Augmented(0.0, 0.0, 1.0).tokens(is_token, stream(0)).positions
  np.testing.assert_allclose(plain, np.broadcast_to(np.arange(L), (400, L)))
  assert method.tokens(is_token, None).positions is None
  other = method.tokens(is_token, stream(1)).positions
  assert abs(other - positions).min(axis=1).max() > 0


REAL = [n for n in METHODS if make_encoder(n).position.supports_real_positions]


@pytest.mark.parametrize('name', REAL)
def test_real_positions_that_are_whole_are_those_of_integers(name):
  encoder = make_encoder(name, 1)
  params = init(encoder)
  apply = jax.jit(encoder.apply)

  def output(positions):
    tokens = Tokens(
      positions=jnp.asarray(positions), ids=IDS, is_consecutive=False
    )
    return apply({'params': params}, X, tokens)

  whole = output(FAR)
  np.testing.assert_allclose(whole, output(FAR.astype(np.float32)), **close)
  position = encoder.position
  reads = name == 'complex_order' or any(
    part.hooks and part.has_encoding for _, part in position.parts
  )
  moved = output(FAR + np.linspace(0, 0.4, L, dtype=np.float32)[None])
  assert (abs(moved - whole).max() > 1e-3) == bool(reads)


def test_consecutive_positions_begin_at_zero():
  tokens = Consecutive().tokens(IS_TOKEN, stream(0)).with_defaults(L)
  np.testing.assert_array_equal(tokens.positions, np.arange(L)[None])
  assert Consecutive().max_length(7) == 7


def test_random_offsets_differ_by_row_and_end_with_training():
  sampling = RandomOffset(max_offset=5)
  drawn = [sampling.tokens(IS_TOKEN, stream(n)).positions for n in range(40)]
  firsts = np.stack(drawn)[:, :, 0]
  assert set(firsts.ravel()) == set(range(6))
  assert (firsts[:, 0] != firsts[:, 1]).any()
  assert all((np.diff(row) == 1).all() for batch in drawn for row in batch)
  assert sampling.tokens(IS_TOKEN, None).positions is None
  assert sampling.max_length(L) == L + 5


def test_random_offsets_do_not_depend_on_how_a_batch_is_cut():
  sampling = RandomOffset(max_offset=50)
  whole = sampling.tokens(IS_TOKEN, stream(0)).positions
  part = stream(0).replace(first_row=1)
  np.testing.assert_array_equal(
    sampling.tokens(IS_TOKEN[1:], part).positions, whole[1:]
  )


def test_randomised_positions_are_an_ordered_subset_without_replacement():
  sampling = Randomised(max_position=12)
  seen = set()
  for seed in range(60):
    drawn = np.asarray(sampling.tokens(IS_TOKEN, stream(seed)).positions)
    for row, length in zip(drawn, LENGTHS, strict=True):
      assert (np.diff(row[:length]) > 0).all()
      assert row.min() >= 0
      assert row.max() < 12
    seen.add(int(drawn[2, 0]))
  assert seen == set(range(12))
  first, again = (sampling.tokens(IS_TOKEN, None).positions for _ in range(2))
  np.testing.assert_array_equal(first, again)
  assert sampling.max_length(L) == 12
  with pytest.raises(ValueError, match='max_position = 12 must be at least'):
    sampling.tokens(jnp.ones((1, 13), bool), None)


def test_randomised_positions_do_not_depend_on_padding_or_on_the_part():
  sampling = Randomised(max_position=30)
  drawn = sampling.tokens(IS_TOKEN, stream(3)).positions
  wider = sampling.tokens(jnp.pad(IS_TOKEN, ((0, 0), (0, 5))), stream(3))
  np.testing.assert_array_equal(
    np.where(IS_TOKEN, drawn, 0), np.where(IS_TOKEN, wider.positions[:, :L], 0)
  )
  part = sampling.tokens(IS_TOKEN[1:], stream(3).replace(first_row=1))
  np.testing.assert_array_equal(part.positions, drawn[1:])


def test_randomised_over_as_many_positions_as_tokens_is_plain():
  everything = jnp.ones((B, L), bool)
  drawn = Randomised(max_position=L).tokens(everything, stream(1)).positions
  np.testing.assert_array_equal(drawn, np.broadcast_to(np.arange(L), (B, L)))


@pytest.mark.parametrize('sampling', [RandomOffset(), Randomised(99)], ids=str)
@pytest.mark.parametrize('name', ['sinusoidal', 'alibi'])
def test_a_classifier_reads_sampled_positions(name, sampling):
  encoder = make_encoder(name)
  model = TextClassifier(19, 3, D, encoder, pool=Cls(), sampling=sampling)
  ids = jax.random.randint(jax.random.key(2), (B, L), 0, 19)
  variables = draw(model.init, jax.random.key(0), ids, IS_TOKEN)
  apply = jax.jit(
    lambda seed: model.apply(
      variables, ids, IS_TOKEN, position_stream=stream(seed)
    )
  )
  one, other = apply(0), apply(1)
  is_blind = isinstance(sampling, RandomOffset) and name == 'alibi'
  if is_blind:
    # An offset is nothing to a relative method.
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
  else:
    assert abs(one - other)[:2].max() > 1e-4
  # Padding changes nothing here either.
  longer = jnp.pad(ids, ((0, 0), (0, 4)))
  more = jnp.pad(IS_TOKEN, ((0, 0), (0, 4)))
  evaluate = jax.jit(model.apply)
  evaluated = evaluate(variables, ids, IS_TOKEN)
  np.testing.assert_allclose(
    evaluate(variables, longer, more), evaluated, rtol=1e-5, atol=1e-5
  )
