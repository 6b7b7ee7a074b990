"""Every position method against its formula in float64, and identities."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.backends import attend
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS, Position
from selfattn.positions.biases import slopes
from selfattn.positions.rotary import Rotary
from selfattn.tokens import Tokens
from tests.conftest import at, draw, is_causal_only, normal

pytestmark = pytest.mark.matrix

B, H, K = 2, 3, 6
D = H * K
SCATTERED = np.array([[0, 1, 5, 2, 11]])
IN_ROW = np.arange(5)[None]
KEYS_IN_ROW = np.arange(2, 9)[None]
# Positions of queries and keys: scattered, of self- and of cross-attention.
SIDES = [
  (SCATTERED, SCATTERED[:, ::-1] + 1),
  (IN_ROW, IN_ROW),
  (IN_ROW, KEYS_IN_ROW),
]


# One row a method: its terms in float64, as loops over positions and heads.
# Each takes the method, its parameters, query and key positions (1-d), queries
# (B, L, H, K) and weights (B, H, L, M), and returns a dict by hook.


def none(method, params, query, key, q, weights):
  return {}


def sinusoidal(method, params, query, key, q, weights):
  columns, half = [], D // 2
  for j in range(half):
    exponent = 2 * j / D
    if method.layout == 'tensor2tensor':
      exponent = j / (half - 1)
    angle = query * method.base**-exponent
    columns.append((np.sin(angle), np.cos(angle)))
  sin, cos = zip(*columns, strict=True)
  if method.layout == 'interleaved':
    columns = [column for pair in columns for column in pair]
  else:
    columns = [*sin, *cos]
  return {'embed': params.get('scale', 1) * np.stack(columns, axis=-1)}


def learned(method, params, query, key, q, weights):
  table = params['table']
  place = query / method.stretch
  rows = [
    np.interp(place, np.arange(len(table)), table[:, column])
    for column in range(D)
  ]
  return {'embed': np.stack(rows, axis=-1)}


def relative_keys(method, params, query, key, q, weights):
  far = method.max_distance
  content = np.zeros(weights.shape)
  value = np.zeros(q.shape)
  for (row, i), (m, j), h in itertools.product(
    enumerate(query), enumerate(key), range(H)
  ):
    distance = min(max(j - i, -far), 0 if method.causal else far)
    table = params['keys']
    table = table[h] if table.ndim == 3 else table
    content[:, h, row, m] = q[:, row, h] @ table[distance + far]
    if 'value' in method.hooks:
      vector = params['values'][distance + far]
      value[:, row, h] += weights[:, h, row, m, None] * vector
  if method.causal:
    # What comes after is hidden anyway.
    content = np.where(key[None, :] > query[:, None], np.nan, content)
  return {'content': content} | (
    {'value': value} if 'value' in method.hooks else {}
  )


def rotary(method, params, query, key, q, weights):
  width = 2 * int(K * method.fraction / 2)
  turned = q.copy()
  for j in range(width // 2):
    angle = query * method.base ** (-2 * j / width)
    a, b = (
      (j, j + width // 2) if method.layout == 'half' else (2 * j, 2 * j + 1)
    )
    number = q[..., a] + 1j * q[..., b]
    number = number * np.exp(1j * angle)[None, :, None]
    turned[..., a], turned[..., b] = number.real, number.imag
  return {'rotate': turned}


def by_pair(query, key, of_pair):
  """(H, L, M) from of_pair(i, j) -> (H,)."""
  rows = [[of_pair(int(i), int(j)) for j in key] for i in query]
  return np.moveaxis(np.array(rows, float), -1, 0)


def exact_bucket(method, distance):
  """T5's bucket in exact rational arithmetic."""
  side = method.num_buckets
  offset = 0
  if not method.causal:
    side //= 2
    offset = side if distance > 0 else 0
  size = max(-distance, 0) if method.causal else abs(distance)
  half = side // 2
  if size < half:
    return offset + size
  steps = 0
  while size ** (side - half) * half ** (steps + 1) >= method.max_distance ** (
    steps + 1
  ) * half ** (side - half):
    steps += 1
  return offset + min(half + steps, side - 1)


def t5(method, params, query, key, q, weights):
  table = params['table']
  return {
    'bias': by_pair(query, key, lambda i, j: table[exact_bucket(method, j - i)])
  }


def alibi(method, params, query, key, q, weights):
  m = slopes(H)

  def of_pair(i, j):
    if method.variant == 'learned':
      left, right = np.exp(params['log_left']), np.exp(params['log_right'])
      return -(left if j < i else right) * abs(i - j)
    shift = 0.5 if method.variant == 'asymmetric' and j < i else 0.0
    return -m * abs(i - j) + shift * m

  return {'bias': by_pair(query, key, of_pair)}


def kerple(method, params, query, key, q, weights):
  r1, r2 = params['r1'], params['r2']

  def of_pair(i, j):
    size = abs(i - j)
    if method.form == 'log':
      return -r1 * np.log(1 + r2 * size)
    return -r1 * float(size) ** r2 if size else 0 * r1

  return {'bias': by_pair(query, key, of_pair)}


def network(params, x):
  hidden = np.maximum(x * params['in_kernel'][0] + params['in_bias'], 0)
  return hidden @ params['out_kernel'] + params['out_bias']


def fire(method, params, query, key, q, weights):
  def psi(x):
    return np.log(1 + abs(params['c'][0] * x))

  limit = abs(params['threshold_scale'][0] * method.threshold)

  def of_pair(i, j):
    quotient = psi(i - j) / psi(max(limit, i, j))
    return network(params, np.sign(i - j) * quotient)

  return {'bias': by_pair(query, key, of_pair)}


def continuous(method, params, query, key, q, weights):
  return {
    'bias': by_pair(
      query,
      key,
      lambda i, j: network(params, np.sign(j - i) * np.log(1 + abs(j - i))),
    )
  }


def sandwich(method, params, query, key, q, weights):
  channels = method.num_channels

  def of_pair(i, j):
    total = sum(
      np.cos((i - j) / method.base ** (2 * pair / channels))
      for pair in range(1, channels // 2 + 1)
    )
    ratio = 8 * np.arange(1, H + 1) / H
    return (total - channels / 2) / ratio

  return {'bias': by_pair(query, key, of_pair)}


ROWS = {
  'none': none,
  'sinusoidal': sinusoidal,
  'learned': learned,
  'shaw': relative_keys,
  'music_transformer': relative_keys,
  't5': t5,
  'alibi': alibi,
  'rotary': rotary,
  'kerple': kerple,
  'fire': fire,
  'continuous': continuous,
  'sandwich': sandwich,
}
# Those that read the text, or that other libraries have, in other files.
ELSEWHERE = {
  'complex_order', 'pope', 'cope', 'forgetting', 'dape', 'path', 'tupe',
  'convolutional', 'recurrent', 'selective', 'grape', 'carope', 'repo',
  'grape_a', 'grape_ap', 'inkling', 'wall', 'transformer_xl', 'deberta',
  'xpos', 'lie_re',
}  # fmt: skip
# Options whose value changes what a method computes.
VARIANTS = [
  *((name, {}) for name in ROWS),
  ('sinusoidal', {'layout': 'concatenated', 'base': 500.0}),
  ('sinusoidal', {'layout': 'tensor2tensor'}),
  ('sinusoidal', {'scaled': True}),
  ('learned', {'max_len': 7, 'stretch': 2.5}),
  ('shaw', {'max_distance': 3, 'with_values': True}),
  ('music_transformer', {'max_distance': 3}),
  ('t5', {'num_buckets': 8, 'max_distance': 9, 'shared': False}),
  ('alibi', {'variant': 'asymmetric'}),
  ('alibi', {'variant': 'learned'}),
  ('rotary', {'layout': 'interleaved', 'base': 77.0}),
  ('rotary', {'fraction': 0.7}),
  ('rotary', {'layout': 'interleaved', 'fraction': 0.7}),
  ('kerple', {'form': 'power'}),
  ('fire', {'threshold': 3.0, 'shared': True}),
  ('continuous', {'hidden_dim': 5, 'shared': False}),
  ('sandwich', {'num_channels': 6, 'base': 50.0}),
]


def label(variant):
  name, options = variant
  return '-'.join([name, *map(str, options.values())])


def make(name, causal=False, **options):
  method = POSITIONS[name](D, H, causal, **options)
  # Fresh biases are zero and fresh slopes equal: then some terms are hidden.
  return method, draw(method.init, jax.random.key(0))


def arrays(L, M):
  rng = np.random.default_rng(2)
  q = rng.standard_normal((B, L, H, K), np.float32)
  weights = np.exp(rng.standard_normal((B, H, L, M), np.float32))
  weights /= weights.sum(-1, keepdims=True)
  return jnp.asarray(q), jnp.asarray(weights)


def found_terms(method, params, query_BL, key_BM, q, weights):
  query, key = at(query_BL), at(key_BM)
  terms = {
    'embed': lambda: method.encoding(params, query),
    'bias': lambda: method.bias(params, query, key),
    'content': lambda: method.content(params, q, None, query, key),
    'value': lambda: method.value(params, weights, query, key),
    'rotate': lambda: method.rotate(params, q, q, query, query)[0],
  }
  return {hook: terms[hook]() for hook in method.hooks}


def float64(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def test_every_method_has_a_row_here_or_elsewhere():
  assert set(ROWS) ^ ELSEWHERE == set(POSITIONS)


@pytest.mark.parametrize(
  ('known', 'causal'),
  [(True, False), (False, True)],
  ids=['known', 'traced, causal'],
)
@pytest.mark.parametrize('variant', VARIANTS, ids=label)
def test_every_hook_equals_its_formula(variant, known, causal):
  name, options = variant
  method, params = make(name, causal, **options)
  given = [arrays(query.shape[1], key.shape[1]) for query, key in SIDES]

  def terms(sides):
    return [
      found_terms(method, params, *side, *each)
      for side, each in zip(sides, given, strict=True)
    ]

  all_found = jax.device_get((terms if known else jax.jit(terms))(SIDES))
  if causal and 'value' in method.hooks:
    # A causal table ends at distance 0; nothing after it has a weight.
    assert method.num_rows == len(params['values'])
  for (query, key), each, found in zip(SIDES, given, all_found, strict=True):
    want = ROWS[name](method, float64(params), query[0], key[0], *float64(each))
    assert set(found) == set(want)
    for hook, term in want.items():
      assert found[hook].dtype == jnp.float32
      seen = ~np.isnan(term)
      np.testing.assert_allclose(
        np.broadcast_to(found[hook], term.shape)[seen]
        if found[hook].ndim == term.ndim
        else found[hook][0][seen],
        term[seen],
        rtol=1e-5,
        atol=1e-5,
      )


WRONG = [
  ('sinusoidal', {'layout': 'mixed'}),
  ('sinusoidal', {'base': 1.0}),
  ('learned', {'max_len': 0}),
  ('learned', {'init_std': -1.0}),
  ('learned', {'stretch': 0.5}),
  ('shaw', {'max_distance': 0}),
  ('music_transformer', {'init_std': -0.1}),
  ('t5', {'num_buckets': 6}),
  ('t5', {'max_distance': 8}),
  ('t5', {'init_std': -0.1}),
  ('alibi', {'variant': 'both'}),
  ('rotary', {'layout': 'quarter'}),
  ('rotary', {'base': 0.5}),
  ('rotary', {'fraction': 0.2}),
  ('rotary', {'scaling': 'cubic'}),
  ('rotary', {'factor': 0.5}),
  ('kerple', {'form': 'root'}),
  ('sandwich', {'num_channels': 3}),
  ('lie_re', {'block_dim': 4}),
  ('deberta', {'num_buckets': 80}),
  ('deberta', {'terms': 'none'}),
  ('transformer_xl', {'base': 1.0}),
  ('tupe', {'max_len': 0}),
  ('dape', {'hidden_dim': 0}),
  ('complex_order', {'shared': 'all'}),
  ('cope', {'max_position': 0}),
  ('fire', {'threshold': 0.0}),
  ('fire', {'hidden_dim': 0}),
  ('continuous', {'hidden_dim': 0}),
  ('convolutional', {'kernel_size': 0}),
  ('convolutional', {'num_groups': 4}),
  ('convolutional', {'activation': 'relu'}),
  ('recurrent', {'cell': 'rnn'}),
  ('recurrent', {'window': -1}),
  ('xpos', {'scale_base': 0.5}),
  # The option that is named, and others beside it.
  ('rotary', {'scaling': 'ntk', 'fraction': 0.4}),
  ('rotary', {'beta_fast': 0.5, 'scaling': 'yarn'}),
  ('rotary', {'original_length': 1}),
  ('rotary', {'pair_factors': (), 'scaling': 'longrope'}),
  ('rotary', {'pair_factors': ('a', 'b', 'c'), 'scaling': 'longrope'}),
  ('rotary', {'pair_factors': (1.0, 2.0, np.inf), 'scaling': 'longrope'}),
  ('rotary', {'high_freq_factor': np.inf, 'scaling': 'llama3'}),
  ('rotary', {'high_freq_factor': 0.5, 'scaling': 'llama3'}),
]


@pytest.mark.parametrize('variant', WRONG, ids=label)
def test_an_option_out_of_range_is_named(variant):
  name, options = variant
  option, value = next(iter(options.items()))
  with pytest.raises(
    ValueError, match=rf'^{name}\.{option} = {re.escape(repr(value))} must be'
  ):
    positions.make({name: options}, D, H, is_causal_only(name))


def test_the_scores_of_xpos_are_finite_wherever_a_text_begins():
  """Texts of one batch may be far apart."""
  method = POSITIONS['xpos'](D, H, True)
  q, _ = arrays(5, 5)
  far = np.array([[0], [10**6]]) + np.arange(5)[None]
  turned = method.rotate({}, q, q, at(far), at(far))
  assert all(np.isfinite(x).all() for x in turned)
  # Of one text they have a limit, which scale_base raises.
  ends = np.array([[0, method.max_length()]])
  q, k = 3 * arrays(2, 2)[0], jnp.ones((B, 2, H, K))
  turned = method.rotate({}, q, k, at(ends), at(ends))
  assert all(np.isfinite(x).all() for x in turned)
  assert method.max_length() > 30_000


def test_the_scores_of_xpos_have_gradients_in_its_longest_text():
  """Those of later keys grow until they are masked."""
  method = POSITIONS['xpos'](D, H, True, scale_base=1.0)
  q, _ = arrays(method.max_length(), 1)
  normaliser = NORMALISERS['ssmax'](H)

  def loss(params):
    output, _ = attend(
      q, q, q, causal=True, position=method, normaliser=normaliser,
      normaliser_params=params,
    )  # fmt: skip
    return (output**2).sum()

  gradient = jax.grad(loss)(normaliser.init(jax.random.key(0)))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize('name', ['shaw', 'music_transformer'])
def test_visible_later_positions_have_their_scores(name):
  """In the order of a permutation, a key may come before, but stand after."""
  method, params = make(name, causal=True)
  q, _ = arrays(6, 6)
  index = np.array([[3, 1, 5, 0, 2, 4]])
  known, traced = (
    attend(
      q, q, q, causal=True, position=method, position_params=params,
      query_tokens=(tokens := Tokens(positions=ids, index=index)),
      key_tokens=tokens,
    )[0]
    for ids in (np.arange(6)[None], jnp.arange(6)[None])
  )  # fmt: skip
  np.testing.assert_allclose(known, traced, rtol=1e-5, atol=1e-5)


# --- positions past a table --------------------------------------------------


@pytest.mark.parametrize('stretch', [1.0, 1.5])
def test_learned_refuses_known_positions_past_its_table(stretch):
  method, params = make('learned', max_len=6, stretch=stretch)
  longest = method.max_length()
  assert longest == (6 if stretch == 1 else 8)
  method.encoding(params, Tokens().with_defaults(longest))
  with pytest.raises(ValueError, match=f'max_len = {longest}'):
    method.encoding(params, Tokens().with_defaults(longest + 1))
  with pytest.raises(ValueError, match=f'max_len = {longest}'):
    method.encoding(params, at(np.array([[-1]])))


@pytest.mark.parametrize('stretch', [1.0, 1.5])
def test_learned_marks_traced_positions_past_its_table_as_nan(stretch):
  method, params = make('learned', max_len=6, stretch=stretch)
  last = method.max_length() - 1
  here = at(jnp.array([[-1, 0, last, last + 1]]))
  rows = jax.jit(method.encoding)(params, here)
  assert np.isnan(rows).all(axis=-1).tolist() == [[True, False, False, True]]
  assert np.isnan(rows).any(axis=-1).tolist() == [[True, False, False, True]]


# --- exact identities --------------------------------------------------------


X = normal(3, (B, 5, D))


@pytest.mark.parametrize('form', ['log', 'power'])
def test_kerple_has_finite_gradients_at_distance_zero(form):
  method, params = make('kerple', form=form)
  grads = jax.grad(lambda p: method.bias(p, at(IN_ROW), at(IN_ROW)).sum())(
    params
  )
  assert all(np.isfinite(grad).all() for grad in grads.values())
  assert all((grad != 0).all() for grad in grads.values())


@pytest.mark.parametrize(
  ('c', 'scale'),
  [(0.0, 1.0), (1e-40, 1.0), (1e-12, 0.0), (-1e-7, 1.0), (1e-5, 1.0)],
)
def test_fire_has_a_limit_where_c_is_zero(scale, c):
  """The quotient tends to |i - j| / last, by a slope that is one-sided."""
  method, params = make('fire', threshold=3.0)
  positions_1L = np.array([[0, 1, 5, 2, 70]])
  params |= {'c': jnp.full(1, c), 'threshold_scale': jnp.full(1, scale)}
  # The network of a quotient x gives x itself, in every head.
  params |= {
    'in_kernel': jnp.array([[1.0, -1.0]]),
    'in_bias': jnp.zeros(2),
    'out_kernel': jnp.array([[1.0] * H, [-1.0] * H]),
    'out_bias': jnp.zeros(H),
  }

  def bias(params):
    return method.bias(params, at(positions_1L), at(positions_1L))[0, 0]

  past = (positions_1L.T - positions_1L).astype(float)
  last = np.maximum(np.maximum(positions_1L.T, positions_1L), 3.0 * scale)
  safe = np.maximum(last, 1e-9)
  np.testing.assert_allclose(bias(params), past / safe, rtol=4e-4, atol=1e-6)
  slopes_of = jax.jacobian(bias)(params)
  # (log(1 + c a) / log(1 + c b))' tends to a (b - a) / 2b.
  sign = -1.0 if c < 0 else 1.0
  np.testing.assert_allclose(
    slopes_of['c'][..., 0],
    sign * past * (last - abs(past)) / (2 * safe),
    rtol=2e-3,
    atol=1e-5,
  )
  assert all(np.isfinite(slope).all() for slope in slopes_of.values())


# --- several at once ---------------------------------------------------------


def test_a_join_is_relative_and_as_long_as_all_of_its_parts():
  def joined(**blocks):
    return positions.make(blocks, D, H, False)

  assert joined(alibi={}, t5={}).is_relative
  assert not joined(alibi={}, fire={}).is_relative
  assert joined(learned={'max_len': 9}, t5={}).max_length() == 9


@dataclasses.dataclass(frozen=True)
class Behind(Position):
  """-|key - query|, of the order of the tokens."""

  is_relative = True

  def bias(self, params, query, key):
    far_BLM = abs(key.index[:, None] - query.index[:, :, None])
    return jnp.repeat(-jnp.float32(far_BLM)[:, None], self.num_heads, axis=1)


def test_a_bias_that_is_computed_by_distance_may_read_the_index():
  q, k, v = normal(2, (3, B, 5, H, K))
  found, _ = attend(q, k, v, position=Behind(D, H, False))
  far = abs(np.arange(5)[None] - np.arange(5)[:, None])
  want, _ = attend(q, k, v, bias=-jnp.float32(far)[None, None])
  np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', POSITIONS)
def test_a_method_declares_the_width_of_heads_after_its_rotation(name):
  alone = POSITIONS[name](D, H, False, vocab_size=9)
  causal = is_causal_only(name)
  joined = positions.make({'alibi': {}, name: {}}, D, H, causal, 9)
  assert joined.rotated_dim == alone.rotated_dim
  row = Tokens().with_defaults(5)
  x_BLHK = jnp.ones((B, 5, H, K))
  width = K
  if 'rotate' in alone.hooks:
    params = alone.init(jax.random.key(0))
    row = row.replace(state=alone.state(params, jnp.ones((B, 5, D)), row))
    turned = alone.rotate(params, x_BLHK, x_BLHK, row, row)
    (width,) = {x.shape[-1] for x in turned}
  assert alone.rotated_dim == width


def test_heads_of_kerple_begin_apart():
  """One of r1 and one of r2 in every eighth of their ranges."""
  params = positions.make({'kerple': {}}, 32, 8, False).init(jax.random.key(0))
  for name, top in {'r1': 2.0, 'r2': 1.0}.items():
    parts = np.floor(np.sort(params[name]) / top * 8)
    np.testing.assert_array_equal(parts, np.arange(8))


@pytest.mark.parametrize('name', POSITIONS)
def test_heads_one_channel_wide_have_positions_or_are_refused(name):
  kind = POSITIONS[name]
  if kind.turns_pairs or issubclass(kind, Rotary):
    with pytest.raises(ValueError, match=r'at least 2|leave a pair'):
      kind(4, 4, True)
    return
  method = kind(4, 4, True, vocab_size=9)
  trees = [
    jax.eval_shape(init, jax.random.key(0))
    for init in (method.init_model, method.init_layer)
  ]
  assert all(leaf.size for leaf in jax.tree.leaves(trees))
  # A rotation of one channel is the identity; a polar one has two of each.
  assert 'rotate' not in method.hooks or method.rotated_dim > 1


@pytest.mark.parametrize('causal', [True, False])
def test_inkling_forms_no_curves_of_pairs(causal):
  method = POSITIONS['inkling'](8, 2, causal, num_curves=64, max_distance=4)
  params = draw(method.init, jax.random.key(0))
  rows = np.arange(6)[None]
  state = normal(1, (3, 6, 2, 64))
  sides = [
    Tokens(positions=one, index=one, state=state)
    for one in (rows, jnp.asarray(rows))
  ]
  for tokens in sides:
    run = functools.partial(method.bias, params, tokens, tokens)
    sizes = [
      variable.aval.size
      for equation in jax.make_jaxpr(run)().eqns
      for variable in equation.outvars
    ]
    assert max(sizes) < 3 * 6 * 6 * 64
  ahead = rows - rows.T
  row = np.where(ahead > 0, ahead + 3, -ahead)
  is_near = (abs(ahead) <= 3) & ((ahead <= 0) | (not causal))
  table = np.array(params['table'])[np.where(is_near, row, 0)]
  table *= is_near[..., None]
  want = np.einsum('BLHC,LMC->BHLM', state, table)
  seen = ahead <= (0 if causal else 6)
  for tokens in sides:
    bias = np.asarray(method.bias(params, tokens, tokens))
    np.testing.assert_allclose(bias * seen, want * seen, atol=1e-4)


@pytest.mark.parametrize('kind', [*POSITIONS.values(), *NORMALISERS.values()])
def test_parameters_are_float32_in_x64_mode(kind):
  with jax.enable_x64(True):
    is_position = issubclass(kind, Position)
    made = (
      kind(8, 2, True, vocab_size=9) if is_position else kind(2, head_dim=4)
    )
    names = ('init', 'init_model', 'init_layer') if is_position else ('init',)
    for name in names:
      like = jax.eval_shape(getattr(made, name), jax.random.key(0))
      assert {leaf.dtype for leaf in jax.tree.leaves(like)} <= {
        jnp.dtype('float32')
      }
