"""What differs by layer, and by head: hooks, patterns, and parts of a join."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.blocks import OfAllLayers, PostNorm, PreNorm
from selfattn.encoders import AttentionEncoder
from selfattn.layers import Layer, period
from selfattn.normalisers import Differential, Entmax, Sinks, Softmax
from selfattn.positions import POSITIONS, Position
from selfattn.positions.biases import slopes
from selfattn.tokens import Tokens, without_padding
from tests.conftest import draw, is_causal_only, normal

B, L, H, K, F, V = 2, 6, 4, 6, 7, 9
D = H * K
X = normal(1, (B, L, D))
TOKENS = Tokens(
  jnp.arange(L)[None] < jnp.array([[L], [4]]), ids=np.ones((B, L), int)
)
FORMS = {'plain': {}, 'both': {'scan': True, 'remat': True}}


def make(name, causal=True, **options):
  return POSITIONS[name](D, H, causal, vocab_size=V, **options)


def stack(position=None, num_layers=5, **fields):
  fields = {'causal': True, 'block': PostNorm()} | fields
  position = position or make('none', fields['causal'])
  return AttentionEncoder(num_layers, H, F, position, jnp.float32, **fields)


def drawn(encoder):
  return draw(encoder.init, jax.random.key(0), X, TOKENS)['params']


def outputs(encoder, params):
  return jax.jit(lambda p: encoder.apply({'params': p}, X, TOKENS))(params)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('block', 'dtype'), [(PostNorm, jnp.bfloat16), (PreNorm, jnp.float32)]
)
def test_a_loop_takes_vectors_of_another_type(block, dtype):
  one = stack(num_layers=4, block=block(parent=None)).clone(dtype=dtype)
  loop = one.clone(scan=True)
  other = jnp.float32 if dtype == jnp.bfloat16 else jnp.bfloat16
  params, x = drawn(one), X.astype(other)
  outputs = [e.apply({'params': params}, x, TOKENS) for e in (one, loop)]
  assert outputs[0].dtype == outputs[1].dtype == dtype
  np.testing.assert_allclose(
    *(y.astype(jnp.float32) for y in outputs), rtol=0.1, atol=0.1
  )


# --- the layer of a hook and of a normaliser ---------------------------------


@dataclasses.dataclass(frozen=True)
class Deeper(Position):
  """Every hook reads the layer: half of all, times its number."""

  per_layer = True

  def _share(self):
    return self.layer.value(lambda index: math.sqrt(index / self.layer.count))

  def embed(self, params, x_BLD, tokens):
    return x_BLD * self._share()

  def state(self, params, x_BLD, tokens):
    return x_BLD * self._share()

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    return q_BLHK * self._share(), k_BMGK

  def bias(self, params, query, key):
    by_key = key.state.sum(axis=-1)[:, None, None] * self._share()
    return jnp.broadcast_to(by_key, (B, H, query.positions.shape[1], L))

  def value(self, params, weights_BHLM, query, key):
    sums = weights_BHLM.sum(axis=-1).swapaxes(1, 2)[..., None]
    return jnp.broadcast_to(sums * self._share(), (*sums.shape[:3], K))


@dataclasses.dataclass(frozen=True)
class Sharper(Softmax):
  """Scores times the number of the layer, outputs too."""

  def __call__(self, params, scores_BHLM, mask, query, key):
    factor = self.layer.value(lambda index: 1 + index / 3)
    return super().__call__(params, scores_BHLM * factor, mask, query, key)

  def output(self, params, output_BLHK):
    return output_BLHK * self.layer.value(lambda index: 1 / (1 + index))


def test_a_number_of_a_layer_is_the_same_to_the_bit_in_a_loop():
  value = lambda index: Layer(index, 5).value(lambda n: math.exp(-0.3 * n))  # noqa: E731
  loop = jax.jit(lambda: jax.lax.map(value, jnp.arange(5)))
  np.testing.assert_array_equal(loop(), [value(n) for n in range(5)])


def after_layer(encoder, block_params, of_model, index, x):
  """Vectors after one layer of an encoder, which is run by itself."""
  block = encoder._block(index, D, None, None)
  of_all = OfAllLayers(TOKENS, of_model, None, None, None)
  (x, _), _ = block.apply({'params': block_params}, (x, None), index, of_all)
  return x


def test_every_layer_is_the_one_of_its_number():
  encoder = stack(Deeper(D, H, True), 3, normaliser=Sharper(H))
  params, x = drawn(encoder), without_padding(X, TOKENS)
  for index in range(3):
    block = params[f'block_{index}']
    other = after_layer(encoder, block, {}, (index + 1) % 3, x)
    x = after_layer(encoder, block, {}, index, x)
    assert abs(other - x).max() > 1e-3
  for form in FORMS.values():
    found = outputs(encoder.clone(**form), params)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def test_differential_has_the_lambda_of_its_paper_in_every_layer():
  """0.8 - 0.6 exp(-0.3 (l - 1)), l from 1 (Ye et al. 2024, section 2.1)."""
  encoder = stack(normaliser=Differential(H, head_dim=K), **FORMS['both'])
  params = drawn(encoder)
  for index in range(5):
    # exp(q1 . k1) - exp(q2 . k2) is zero where all vectors are.
    normaliser = params[f'block_{index}']['attention']['normaliser']
    normaliser |= jax.tree.map(jnp.zeros_like, normaliser)
  _, sown = jax.jit(
    lambda p: encoder.apply({'params': p}, X, TOKENS, mutable='intermediates')
  )(params)
  for index in range(5):
    block = sown['intermediates'][f'block_{index}']
    (weights,) = block['attention']['weights']
    want = 1 - (0.8 - 0.6 * math.exp(-0.3 * index))
    np.testing.assert_allclose(weights.sum(axis=-1), want, rtol=1e-5)


# --- patterns over layers ----------------------------------------------------


def pattern(*names):
  return positions.layered(
    [{part: make(part) for part in name.split('+')} for name in names]
  )


def test_a_pattern_of_equal_entries_is_one_entry_to_the_bit():
  single = stack(make('t5'), window=(3, 0), normaliser=Sinks(H))
  several = stack(
    pattern('t5', 't5', 't5'),
    window=((3, 0), (3, 0)),
    normaliser=(Sinks(H), Sinks(H)),
  )
  params = drawn(single)
  jax.tree.map(np.testing.assert_array_equal, params, drawn(several))
  assert single._period() == several._period() == 1
  np.testing.assert_array_equal(
    *(
      outputs(made.clone(**FORMS['both']), params) for made in (single, several)
    )
  )


PATTERNS = {
  'swan': {
    'position': ('rotary', 'rotary', 'none'),
    'window': ((2, 0), (), ()),
  },
  'tables': {'position': ('t5+rotary', 'fire', 't5')},
  'of a layer': {'position': ('cope', 'pope', 'deberta')},
  'embedded': {'position': ('sinusoidal+rotary', 'sinusoidal')},
  'normalisers': {
    'normaliser': (Differential(H, head_dim=K), Softmax(H), Entmax(H)),
    'window': ((1, 0), (4, 0)),
  },
}


@pytest.mark.matrix
@pytest.mark.parametrize('name', PATTERNS)
def test_layers_of_a_pattern_are_those_of_models_without_one(name):
  """As a loop, whose last period is not whole; test_matrix unrolls it."""
  fields = dict(PATTERNS[name])
  names = fields.pop('position', ('none',))
  encoder = stack(pattern(*names), 7, **fields)

  @jax.jit
  def by_layer(params):
    x = without_padding(X, TOKENS)
    if 'embed' in encoder.position.hooks:
      x = make('sinusoidal').embed({}, x, TOKENS.with_defaults(L))
    for index in range(7):
      of_layer = {
        key: several[index % len(several)] for key, several in fields.items()
      }
      parts = names[index % len(names)].split('+')
      method = positions.joined({part: make(part) for part in parts})
      of_model, block = of_method(method, params, f'block_{index}')
      plain = stack(method, 7, **of_layer)
      x = after_layer(plain, block, of_model, index, x)
    return x

  params = drawn(encoder)
  found = outputs(encoder.clone(**FORMS['both']), params)
  np.testing.assert_allclose(found, by_layer(params), rtol=1e-4, atol=1e-5)


def of_method(method, params, block):
  """Parameters of a model and of a block, where a method is the only one."""
  of_model, block = params.get('position', {}), dict(params[block])
  attention = dict(block['attention'])
  of_layer = attention.pop('position', {})
  if len(method.parts) == 1:
    names = [n for n, kind in POSITIONS.items() if type(method) is kind]
    of_model, of_layer = (x.get(names[0], {}) for x in (of_model, of_layer))
  attention |= {'position': of_layer} if of_layer else {}
  return of_model, block | {'attention': attention}


def test_equal_methods_of_a_pattern_share_their_parameters():
  method = pattern('t5+rotary', 't5')
  assert method.layers == (('t5', 'rotary'), ('t5',))
  assert set(method.init_model(jax.random.key(0))) == {'t5'}


def test_unequal_methods_of_one_name_have_parameters_each():
  method = positions.layered(
    [{'t5': make('t5')}, {'t5': make('t5', num_buckets=16)}]
  )
  shapes = [
    p['table'].shape for p in method.init_model(jax.random.key(0)).values()
  ]
  assert shapes == [(32, H), (16, H)]


@pytest.mark.parametrize(
  ('entries', 'fewest'),
  [('aaa', 1), ('abab', 2), ('aab', 3), ('aabaab', 3), ('aba', 3)],
)
def test_a_pattern_is_as_short_as_it_can_be(entries, fewest):
  assert period(entries) == fewest


def test_what_embeds_at_the_input_does_so_in_every_layer_or_in_none():
  with pytest.raises(ValueError, match='learned adds positions'):
    pattern('learned+rotary', 'rotary')


def test_a_window_of_a_pattern_is_checked():
  encoder = stack(window=((2, 0), (1,)))
  with pytest.raises(ValueError, match=r'window = \(\(2, 0\), \(1,\)\) must'):
    encoder.check(D, drops_weights=False, platform=None)


# --- parts of a join on some heads -------------------------------------------

BY_HEAD = [
  name
  for name in POSITIONS
  if make(name).hooks
  and 'embed' not in make(name).hooks
  and make(name).scale == 1
]


@functools.cache
def scores_of(name, heads, causal=False):
  """Output and weights of a layer whose method acts on the first heads."""
  causal = causal or is_causal_only(name)
  method = positions.joined({name: make(name, causal, heads=heads)})
  layer = Attention(D, H, num_kv_heads=2, position=method, causal=causal)
  of_model = draw(method.init_model, jax.random.key(0))
  params = draw(Attention(D, H, num_kv_heads=2).init, jax.random.key(0), X)
  if of_layer := draw(method.init_layer, jax.random.key(0)):
    params['params']['position'] = of_layer
  run = jax.jit(functools.partial(layer.apply, return_weights=True))
  return run(params, X, query_tokens=TOKENS, position_params=of_model)


@pytest.mark.matrix
@pytest.mark.parametrize('name', BY_HEAD)
def test_a_method_acts_on_its_heads_alone(name):
  """On all of them by number, it is the method without a number."""
  for found, want in zip(scores_of(name, H), scores_of(name, 0), strict=True):
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
  _, found = scores_of(name, 3)
  _, want = scores_of('none', 0, is_causal_only(name))
  np.testing.assert_allclose(found[:, 3], want[:, 3], rtol=1e-4, atol=1e-5)
  assert abs(found[:, :3] - want[:, :3]).max(axis=(0, 2, 3)).min() > 1e-3


@pytest.mark.slow
def test_half_of_the_heads_rotate_and_half_have_the_slopes_of_so_few():
  half = H // 2
  method = positions.joined(
    {name: make(name, heads=half) for name in ('rotary', 'alibi')}
  )
  q, k, v = normal(2, (3, B, L, H, K))
  found, _ = attend(q, k, v, position=method, causal=True)
  sizes = half * K, half, True
  for begin, name in ((0, 'rotary'), (half, 'alibi')):
    heads = slice(begin, begin + half)
    want, _ = attend(
      q[:, :, heads],
      k[:, :, heads],
      v[:, :, heads],
      position=POSITIONS[name](*sizes),
      causal=True,
    )
    np.testing.assert_allclose(found[:, :, heads], want, rtol=1e-5, atol=1e-6)
  bias = dict(method.parts)['alibi'].bias({}, *[Tokens().with_defaults(2)] * 2)
  np.testing.assert_allclose(bias[0, :, 0, 1], [0, 0, *-slopes(half)])


def test_a_bias_of_some_heads_is_sown_as_that_of_all():
  method = positions.joined({'alibi': make('alibi', heads=1)})
  P = method.encoding({}, Tokens().with_defaults(3))
  assert P.shape == (1, H, 3, 3)
  assert (np.asarray(abs(P).max(axis=(0, 2, 3))) > 0).tolist() == [
    True, False, False, False
  ]  # fmt: skip


@pytest.mark.parametrize(
  ('parts', 'said'),
  [
    ({'rotary': 3, 'alibi': 2}, r'alibi\.heads = 2 must be from 1 to 1'),
    ({'rotary': 5}, r'rotary\.heads = 5 must be from 1 to 4'),
    ({'sinusoidal': 2}, r'sinusoidal\.heads = 2 must be 0'),
    ({'none': 1}, r'none\.heads = 1 must be 0'),
  ],
)
def test_heads_that_are_not_there_are_refused(parts, said):
  with pytest.raises(ValueError, match=said):
    positions.joined({name: make(name, heads=n) for name, n in parts.items()})


# --- parameters that layers share ---------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
def test_shared_layers_are_a_plain_stack_of_equal_ones(form):
  """Outputs, gradients and sown weights; per-layer positions are shared."""
  position = make('t5', shared=False)
  plain, shared = (
    stack(position, share_layers=shares, **FORMS[form])
    for shares in (False, True)
  )
  params = drawn(shared)
  assert set(params) == {'block_0'}
  copies = {f'block_{n}': params['block_0'] for n in range(5)}

  def run(encoder, params):
    def loss(params):
      y, sown = encoder.apply(
        {'params': params}, X, TOKENS, mutable=['intermediates']
      )
      weights = [
        sown['intermediates'][f'block_{n}']['attention']['weights'][0]
        for n in range(5)
      ]
      return jnp.sum(jnp.sin(y)), (y, jnp.stack(weights))

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

  (_, want), of_copies = run(plain, copies)
  (_, found), (grads) = run(shared, params)
  total = jax.tree.map(lambda *leaves: sum(leaves), *of_copies.values())
  for a, b in zip(
    jax.tree.leaves((found, grads['block_0'])),
    jax.tree.leaves((want, total)),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_shared_layers_have_caches_of_their_own():
  encoder = stack(make('rotary'), share_layers=True)
  params, cache, parts = drawn(encoder), {}, []
  for part in (slice(0, 4), slice(4, L)):
    y, cache = encoder.apply(
      {'params': params, **cache}, X[:, part], cache_len=L, mutable=['cache']
    )
    parts.append(y)
  assert len(cache['cache']) == 6
  whole = encoder.apply({'params': params}, X)
  np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, atol=2e-5)


def test_shared_layers_have_no_pattern():
  encoder = stack(num_layers=4, share_layers=True, window=((), (1, 0)))
  with pytest.raises(ValueError, match='share_layers = True must be False'):
    encoder.check(D, drops_weights=False, platform=None)


# --- a token that is dropped --------------------------------------------------


def test_a_dropped_token_is_zeros_and_the_others_grow():
  ids = np.array([[3, 5, 5, 1, 2, 5], [5, 3, 1, 2, 5, 5]])
  tokens = TOKENS.replace(ids=ids)
  encoder = stack(causal=False)
  params = drawn(encoder)

  def outputs(encoder, x, tokens):
    return encoder.apply({'params': params}, x, tokens)

  found = outputs(encoder.clone(token_dropout_id=5), X, tokens)
  # Three of six are left, and three of four.
  scale = np.array([2.0, 4 / 3])[:, None, None]
  want = outputs(encoder, X * scale * (ids != 5)[..., None], tokens)
  np.testing.assert_allclose(found[0], want[0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found[1, :4], want[1, :4], rtol=1e-4, atol=1e-5)
  with pytest.raises(ValueError, match=r'needs tokens\.ids'):
    outputs(encoder.clone(token_dropout_id=5), X, TOKENS.replace(ids=None))
  with pytest.raises(ValueError, match='-1 in a causal encoder'):
    stack(token_dropout_id=5).check(D, drops_weights=False, platform=None)
