"""What a user of the layers may get wrong is right, or refused in one line."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.backends import BACKENDS, attend
from selfattn.classifier import TextClassifier
from selfattn.encoders import AttentionEncoder
from selfattn.normalisers import NORMALISERS, Sinks, Softmax
from selfattn.pools import Cls
from selfattn.positions import POSITIONS, Position
from selfattn.positions.angles import angles
from selfattn.positions.contract import distances
from selfattn.positions.distances import distance_range
from selfattn.tokens import Tokens
from tests.conftest import at, draw, normal

B, L, H, K, V = 2, 4, 2, 6, 9
D = H * K
X = normal(0, (B, L, D))
Q, KEYS, VALUES = normal(1, (3, B, L, H, K))
PADDING = np.array([[True] * L, [True, True, False, False]])
close = {'rtol': 1e-5, 'atol': 1e-5}


def layer_of(name='none', causal=False, **fields):
  method = positions.make({name: {}}, D, H, causal)
  return Attention(D, H, position=method, causal=causal, **fields)


# --- hooks -------------------------------------------------------------------


SHAPES = {
  'bias': (1, L, L),
  'content': (B, 1, L, L),
  'scores': (B, H, L, 1),
  'value': (B, L, H, 1),
  'rotate': (B, L, H, 1),
  'embed': (B, 1, D),
  'state': (B, L + 1),
  'rows': (3, D + 1),
}


@pytest.mark.parametrize('hook', SHAPES)
def test_a_hook_that_returns_another_shape_is_named(hook):
  def wrong(self, params, *arrays):
    x = jnp.zeros(SHAPES[hook])
    return (x, x) if hook == 'rotate' else x

  cls = type('Mine', (Position,), {hook: wrong, 'per_layer': True})
  layer = Attention(D, H, position=cls(D, H, False))
  with pytest.raises(ValueError, match=rf'Mine\.{hook} returned an array of'):
    jax.eval_shape(layer.init, jax.random.key(0), X)


# --- one side of attention ---------------------------------------------------


def test_tokens_of_one_side_are_those_of_both_in_self_attention():
  layer = layer_of('alibi')
  variables = draw(layer.init, jax.random.key(0), X)
  far = np.array([[0, 3, 9, 12]])
  tokens = Tokens(jnp.asarray(PADDING), positions=far)
  apply = jax.jit(layer.apply)
  want, _ = apply(variables, X, query_tokens=tokens)
  bare, _ = apply(variables, X)
  assert abs(want - bare)[1, 0].max() > 1e-3
  for arrays, given in (
    ((X,), {'key_tokens': tokens}),
    ((X, X), {'query_tokens': tokens}),
    ((X, X, X), {'key_tokens': tokens}),
    ((X, X), {'query_tokens': tokens, 'key_tokens': tokens}),
  ):
    found, _ = layer.apply(variables, *arrays, **given)
    np.testing.assert_allclose(
      jnp.where(PADDING[..., None], found, 0),
      jnp.where(PADDING[..., None], want, 0),
      **close,
    )
  with pytest.raises(ValueError, match='query_tokens without key_tokens'):
    layer.apply(variables, X, X + 1, query_tokens=PADDING)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'place', 'library'),
  [
    ('learned', -1.0, np),
    ('lie_re', -1.0, jnp),
    ('alibi', np.nan, jnp),
  ],
)
def test_known_positions_at_padding_never_matter(name, place, library):
  """Left padding; the mask is known, an array of NumPy, or traced."""
  method = positions.make({name: {}}, D, H, False)
  mask = library.asarray([[False, True, True, True]] * B)
  encoder = AttentionEncoder(1, H, 7, method, jnp.float32)
  params = draw(encoder.init, jax.random.key(0), X)

  def slopes(first):
    kind = float if np.isnan(first) else int
    tokens = Tokens(mask, positions=np.array([[first, 0, 1, 2]]).astype(kind))

    def total(params, mask):
      known = library is np
      given = tokens if known else tokens.replace(padding_mask=mask)
      y = encoder.apply(params, X, given)
      return (y[:, 1:] ** 2).sum()

    return jax.tree.leaves(jax.jit(jax.grad(total))(params, mask))

  for found, wanted in zip(slopes(place), slopes(0), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_ids_at_padding_never_matter_to_an_encoder_of_ones_own():
  class Mixed(nn.Module):
    @nn.compact
    def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
      mean_B1D = x_BLD.sum(axis=1, keepdims=True)
      return x_BLD + nn.Dense(D)(mean_B1D)

  model = TextClassifier(9, 3, D, Mixed())
  ids = jnp.array([[1, 2, 3, 4], [5, 6, 0, 0]])
  params = draw(model.init, jax.random.key(0), ids, PADDING)

  def total(params, ids):
    return (model.apply(params, ids, PADDING) ** 2).sum()

  differentiate = jax.jit(jax.grad(total))
  want = differentiate(params, ids)
  found = differentiate(params, jnp.where(PADDING, ids, -100))
  jax.tree.map(np.testing.assert_array_equal, found, want)


def test_logits_are_float32_in_x64_mode():
  encoder = AttentionEncoder(
    1, H, 7, POSITIONS['none'](D, H, False), jnp.float32
  )
  model = TextClassifier(9, 3, D, encoder, pool=Cls(), has_mask_token=True)
  with jax.enable_x64(True):
    ids = jnp.ones((B, L), jnp.int32)
    logits, params = jax.eval_shape(
      model.init_with_output, jax.random.key(0), ids, jnp.ones((B, L), bool)
    )
  kinds = {x.dtype for x in (logits, *jax.tree.leaves(params))}
  assert kinds == {jnp.dtype('float32')}


def test_an_integer_bias_and_a_window_of_numpy_are_read():
  far = abs(np.arange(L)[:, None] - np.arange(L))
  found, _ = attend(Q, KEYS, VALUES, bias=-far, window=(np.int64(1), -1))
  want, _ = attend(Q, KEYS, VALUES, bias=-1.0 * far, window=(1, -1))
  np.testing.assert_array_equal(found, want)


def test_a_parameter_may_be_a_number():
  @dataclasses.dataclass(frozen=True)
  class Scaled(Position):
    per_layer = True

    def init(self, key):
      return {'slope': 1.0}

    def bias(self, params, query, key):
      far = jnp.asarray(abs(distances(query, key)), jnp.float32)
      return -params['slope'] * jnp.repeat(far[:, None], H, axis=1)

  layer = Attention(D, H, position=Scaled(D, H, False))
  params = layer.init(jax.random.key(0), X)['params']
  assert params['position']['slope'].dtype == jnp.float32


def test_float16_with_xpos_has_no_kernel_of_16_bits():
  method = POSITIONS['xpos'](D, H, True)
  encoder = AttentionEncoder(
    1, H, 7, method, jnp.float16, causal=True, backend='cudnn'
  )
  with pytest.raises(ValueError, match='float16 and bfloat16, not float32'):
    encoder.check(D, drops_weights=False, platform='gpu')


def test_weights_are_returned_where_they_are_asked_for_alone():
  layer = layer_of()
  variables = draw(layer.init, jax.random.key(0), X)
  (_, weights), sown = layer.apply(variables, X, mutable='intermediates')
  assert weights is None
  (_, weights), _ = layer.apply(
    variables, X, return_weights=True, mutable='intermediates'
  )
  np.testing.assert_array_equal(weights, sown['intermediates']['weights'][0])


# --- numbers that a type does not hold ---------------------------------------


def test_xpos_is_finite_and_right_in_float16():
  length, method = 375, POSITIONS['xpos'](D, H, True, scale_base=16.0)
  assert method.max_length() > length
  q, k, v = normal(2, (3, 1, length, H, K))
  found, want = (
    attend(*(x.astype(dtype) for x in (q, k, v)), position=method, causal=True)[
      0
    ]
    for dtype in ('float16', 'float32')
  )
  assert found.dtype == 'float16'
  np.testing.assert_allclose(found.astype(np.float32), want, atol=0.05)


@pytest.mark.parametrize('rate', [3.2, 6.2, 300.0])
def test_angles_of_fast_rates_are_those_of_float64(rate):
  """LongRoPE may divide a frequency by less than one."""
  where, rates = np.arange(5000)[None], np.array([rate, -rate])
  found = angles(jnp.asarray(where), rates)
  np.testing.assert_allclose(
    np.exp(1j * np.asarray(found, float)),
    np.exp(1j * where[..., None] * rates),
    atol=2e-6,
  )


@pytest.mark.parametrize(
  ('name', 'kind'), [('tupe', 'uint8'), ('complex_order', 'uint32')]
)
def test_ids_of_any_integer_type_are_the_same(name, kind):
  """[MASK] and [CLS] come after the words, which may fill the type."""
  V = 256
  method = positions.make({name: {}}, D, H, False, vocab_size=V)
  encoder = AttentionEncoder(1, H, 7, method, jnp.float32)
  model = TextClassifier(V, 3, D, encoder, pool=Cls())
  ids = np.array([[0, 255, 1, 7], [2, 255, 0, 0]])
  variables = draw(model.init, jax.random.key(0), ids, PADDING)
  apply = jax.jit(model.apply)
  want = apply(variables, ids, PADDING)
  found = apply(variables, ids.astype(kind), PADDING)
  np.testing.assert_array_equal(found, want)


def test_distances_of_real_positions_are_as_many_as_pairs():
  """A range of floats may be one longer than its ends say."""
  counts = set()
  for first, other in 10 * np.random.default_rng(0).random((3_000, 2)):
    sides = (at(start + np.arange(L)[None]) for start in (first, other))
    if (distance_N := distance_range(*sides)) is not None:
      counts.add(len(distance_N))
  assert counts == {2 * L - 1}


@pytest.mark.parametrize('name', ['talking_heads', 'differential'])
def test_a_mask_of_one_head_hides_in_that_head(name):
  normaliser = NORMALISERS[name](H, head_dim=K)
  params = draw(normaliser.init, jax.random.key(0))
  mask = np.ones((1, H, 1, L), bool)
  mask[0, 1, 0, 2] = False
  _, weights = attend(
    Q, KEYS, VALUES, mask=mask, normaliser=normaliser,
    normaliser_params=params, return_weights=True,
  )  # fmt: skip
  assert not weights[:, 1, :, 2].any()
  assert weights[:, 0, :, 2].any()


# --- one line that says what was given and what is expected ------------------

T5 = positions.make({'t5': {}}, D, H, False)
RATES = POSITIONS['complex_order'](D, H, False, vocab_size=V)
GATES = POSITIONS['forgetting'](D, H, False)


def call(**given):
  return lambda: attend(Q, KEYS, VALUES, **given)


def init(layer, *arrays):
  key = jax.random.key(0)
  return lambda: jax.eval_shape(layer.init, key, *(arrays or (X,)))


def make(blocks, **sizes):
  sizes = {'embed_dim': D, 'num_heads': H, 'causal': False} | sizes
  return lambda: positions.make(blocks, **sizes)


MISTAKES = {
  'softcap': (call(softcap=-1.0), r'softcap = -1\.0 must be finite'),
  'no cap': (call(softcap=np.inf), 'softcap = inf must be finite'),
  'window': (call(window=(1, -2)), r'window = \(1, -2\) must be'),
  'a number as window': (call(window=3), 'window = 3 must be'),
  'a rate as dropout': (call(dropout=0.1), r'dropout = 0\.1 must be a Dropout'),
  'a name as position': (call(position='rotary'), "'rotary' must be a Pos"),
  'of a layer': (init(Attention(D, H, position='t5')), "'t5' must be a Pos"),
  'a class as normaliser': (call(normaliser=Softmax), 'must be an object of'),
  'normaliser of a layer': (
    init(Attention(D, H, normaliser=Softmax)), 'must be an object of',
  ),
  'parameters': (call(position=T5), "position_params of T5 have no 'table'"),
  'parameters of a layer': (
    init(Attention(D, H, position=T5)), "position_params of T5 have no 'table'",
  ),
  'parameters of a normaliser': (
    call(normaliser=Sinks(H)), "normaliser_params of Sinks have no 'sink'",
  ),
  'heads of a method': (
    call(position=POSITIONS['alibi'](D, 1, False)), 'made with num_heads = 1',
  ),
  'heads of a method in a layer': (
    init(Attention(D, 4, position=POSITIONS['rotary'](D, 6, False))),
    'Rotary was made with num_heads = 6, and its attention has num_heads = 4',
  ),
  'heads of a normaliser': (
    call(normaliser=Sinks(1, learned=False)), 'made with num_heads = 1',
  ),
  'causal': (
    call(position=POSITIONS['alibi'](D, H, True)), 'made with causal = True',
  ),
  'causal only': (
    call(position=POSITIONS['xpos'](D, H, False)), 'causal = False must be',
  ),
  'ids': (
    lambda: RATES.embed(
      RATES.init(jax.random.key(0)), X, Tokens().with_defaults(L)
    ),
    r'tokens\.ids',
  ),
  'words': (
    lambda: POSITIONS['complex_order'](D, H, False).init(jax.random.key(0)),
    'vocab_size',
  ),
  'a state': (
    call(position=GATES, position_params=GATES.init_layer(jax.random.key(0))),
    'Forgetting needs the state',
  ),
  'embeddings in a layer': (
    init(Attention(D, H, position=positions.make({'learned': {}, 't5': {}}, D,
                                                 H, False))),
    'Learned adds positions to the input of',
  ),
  'ids in a layer': (
    init(Attention(D, H, position=RATES)), 'ComplexOrder adds positions to',
  ),
  'negative positions': (
    lambda: layer_of('lie_re').init(
      jax.random.key(0), X,
      query_tokens=Tokens(positions=np.arange(-5, -1)[None]),
    ),
    'positions from 0 on, not -5',
  ),
  'an output gate': (
    init(Attention(D, H, output_gate='channelwise')),
    "'channelwise' is not one of",
  ),
  'heads without a pair': (
    lambda: attend(Q[:, :, :1], KEYS[:, :, :1], VALUES[:, :, :1],
                   normaliser=NORMALISERS['differential'](1, head_dim=K)),
    'even number of heads, not 1',
  ),
  'an odd width in two directions': (
    lambda: POSITIONS['recurrent'](5, 1, False), 'even width, not 5',
  ),
  'a bias of booleans': (
    call(bias=np.ones((L, L), bool)), 'bias of bool must be floats',
  ),
  'a mask of numbers': (
    call(mask=np.ones((L, L), np.int32)), 'mask of int32 must be boolean',
  ),
  'a mask of another length': (
    call(mask=np.ones(L + 1, bool)),
    r'mask of shape \(5,\) does not broadcast to \(B, H, L, M\)',
  ),
  'a bias of five axes': (
    call(bias=np.ones((1, B, H, L, L))),
    r'bias of shape \(1, 2, 2, 4, 4\) does not broadcast to',
  ),
  'positions of one axis': (
    lambda: Tokens(positions=np.zeros(L, int)).with_defaults(L),
    r'positions of shape \(4,\) must be \(1 or B, 4\)',
  ),
  'an index of another length': (
    lambda: Tokens(index=np.zeros((B, L - 1), int)).with_defaults(L),
    r'index of shape \(2, 3\) must be \(1 or B, 4\)',
  ),
  'segments of one side': (
    call(query_tokens=Tokens(segments=np.zeros((1, L), int)),
         key_tokens=Tokens()),
    'both sides',
  ),
  'real positions': (
    call(position=POSITIONS['t5'](D, H, False), position_params={'table': 0},
         query_tokens=Tokens(positions=np.arange(L)[None] / 2)),
    'T5 supports integer positions',
  ),
  'an additive padding mask': (
    call(query_tokens=np.where(PADDING, 0.0, -np.inf)),
    'padding_mask of float64 must be booleans or integers',
  ),
  'rank of a layer': (init(layer_of(), X[0]), r'\(4, 12\) must be \(batch'),
  'rank': (lambda: attend(Q[0], KEYS[0], VALUES[0]), 'must be .batch, length'),
  'KV heads': (
    lambda: attend(Q, jnp.ones((B, L, 3, K)), jnp.ones((B, L, 3, K))),
    '3 KV heads do not divide 2',
  ),
  'a backend': (call(backend='fast'), f'not one of .*{BACKENDS[0]}'),
  'batch': (lambda: attend(Q, KEYS[:1], VALUES[:1]), r'must be \(B, L, H, K\)'),
  'no heads': (init(Attention(D, 0)), 'num_heads = 0 does not divide 12'),
  'heads below none': (
    init(Attention(D, H, num_kv_heads=-1)), 'num_kv_heads = -1 does not divide',
  ),
  'ids that are floats': (
    init(
      TextClassifier(9, 3, D, None), np.ones((1, 2)), np.ones((1, 2), bool)
    ),
    'tokens_BL of float32 must be integers',
  ),
  'a rate as dropout of an encoder': (
    lambda: AttentionEncoder(
      1, H, 7, POSITIONS['none'](D, H, False), jnp.float32
    ).init(jax.random.key(0), X, None, 0.1),
    r'dropout = 0\.1 must be a Dropout',
  ),
  'nothing': (make({}), 'no position method is named'),
  'twice': (make({'rope': {}, 'rotary': {}}), 'rope and rotary are one method'),
  'unknown name': (make({'rop': {}}), "name = 'rop' must be one of alibi"),
  'a pattern in a layer': (
    init(Attention(D, H, position=positions.layered([
      {'rotary': POSITIONS['rotary'](D, H, False)},
      {'none': POSITIONS['none'](D, H, False)},
    ]))), r'position\.of_layer',
  ),
  'two rotations': (make({'rotary': {}, 'pope': {}}), r'rotary\+pope must'),
}  # fmt: skip


@pytest.mark.parametrize(('mistake', 'line'), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(mistake, line):
  with pytest.raises(ValueError, match=line):
    mistake()


@pytest.mark.parametrize('backend', BACKENDS)
def test_a_mistake_is_the_same_for_every_backend(backend):
  for given in ({'softcap': -1.0}, {'window': (0,)}, {'dropout': 0.5}):
    with pytest.raises(ValueError, match='must be'):
      attend(Q, KEYS, VALUES, backend=backend, **given)
  for empty in (Q[:0], Q[:, :0]):
    with pytest.raises(ValueError, match='must be'):
      attend(empty, empty, empty, backend=backend, softcap=-1.0)


@dataclasses.dataclass(frozen=True)
class BothKinds(Position):
  """A slope that layers share times a slope of each layer's own."""

  is_relative = True

  def init_model(self, key):
    return {'slope': jnp.full((), 2.0)}

  def init_layer(self, key):
    return {'own': jnp.full((), 3.0)}

  def bias(self, params, query, key):
    far = jnp.asarray(abs(distances(query, key)))
    slope = params['slope'] * params['own'] * jnp.ones(self.num_heads)
    return -slope[None, :, None, None] * far[:, None]


def test_a_part_keeps_its_parameters_of_the_model_and_of_the_layer():
  both = BothKinds(D, H, False)
  joined = positions.Combined(D, H, False, (('both', both), ('t5', T5)))
  table = {'t5': {'table': jnp.zeros((32, H))}}
  weights = []
  for method, more in ((both, {}), (joined, table)):
    layer = Attention(D, H, position=method)
    shared = method.init_model(jax.random.key(0)) | more
    variables = layer.init(jax.random.key(1), X, position_params=shared)
    _, found = layer.apply(
      variables, X, position_params=shared, return_weights=True
    )
    weights.append(found)
  np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-6)


def test_pairs_of_texts_have_no_cache():
  encoder = AttentionEncoder(
    1, H, 8, positions.make({'none': {}}, D, H, True), jnp.float32, causal=True
  )
  model = TextClassifier(V, 3, D, encoder, separator=V - 1)
  ids = np.ones((1, L), int)
  variables = draw(model.init, jax.random.key(0), ids, ids == 0)
  with pytest.raises(ValueError, match='separator = 8 must be None with a cac'):
    model.apply(variables, ids, ids == 1, mutable='cache', cache_len=L)


@pytest.mark.slow
@pytest.mark.parametrize('name', NORMALISERS)
def test_weights_are_float32_in_x64_mode_whatever_parameters_are(name):
  normaliser = NORMALISERS[name](2, head_dim=4)
  with jax.enable_x64(True):
    params = jax.tree.map(
      lambda x: x.astype(jnp.float64), normaliser.init(jax.random.key(0))
    )
    q = jnp.ones((1, 3, 2, 4), jnp.float64)
    _, weights = attend(
      q,
      q,
      q,
      causal=True,
      normaliser=normaliser,
      normaliser_params=params,
      return_weights=True,
    )
  assert weights.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize('name', POSITIONS)
def test_a_cache_is_float32_in_x64_mode(name):
  method = POSITIONS[name](8, 2, True, vocab_size=9)
  if not method.supports_cache:
    return
  layer = Attention(8, 2, position=method, causal=True, in_encoder=True)

  def run(x, params):
    more = {'position_params': params, 'cache_len': 7, 'mutable': ['cache']}
    variables = layer.init(jax.random.key(0), x, position_params=params)
    return layer.apply(variables, x, **more)

  with jax.enable_x64(True):
    x = jnp.ones((2, 5, 8), jnp.float32)
    _, cache = jax.eval_shape(run, x, method.init_model(jax.random.key(0)))
  assert jnp.dtype('float64') not in {x.dtype for x in jax.tree.leaves(cache)}
