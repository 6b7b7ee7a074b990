"""Backends equal the reference; rows that see nothing; what is refused."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pallas_tpu

from selfattn import choice, masks, positions
from selfattn.backends import BACKENDS, attend
from selfattn.dropout import Dropout
from selfattn.kernels import unsupported_reason
from selfattn.masks import Tokens
from selfattn.normalisers import masked_softmax
from selfattn.positions import POSITIONS
from selfattn.positions.calls import with_state
from tests.conftest import draw, is_causal_only

pytestmark = pytest.mark.matrix

METHODS = [
  *POSITIONS,
  'shaw with values',
  'alibi+t5',
  'shaw+continuous',
]


def make(name, H, K, causal):
  """A method and its parameters."""
  blocks = {part: {} for part in name.split(' ')[0].split('+')}
  if name.endswith('values'):
    blocks = {'shaw': {'max_distance': 3, 'with_values': True}}
  method = positions.make(blocks, H * K, H, causal, 9)
  key = jax.random.key(7)
  return method, draw(method.init_model, key) | draw(method.init_layer, key)


def arrays(B, L, M, H, K, G=None, dtype=jnp.float32):
  rng = np.random.default_rng(B + L * M)
  G = G or H
  shapes = ((B, L, H, K), (B, M, G, K), (B, M, G, K), (1, H, L, M))
  return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


MASKS = ('padding', 'causal', 'window', 'segments', 'dense')


def some_tokens(kinds, B, L, has_positions):
  lengths = np.arange(B)[:, None] * 2 % (L + 1)
  tokens = Tokens()
  if 'padding' in kinds:
    tokens = tokens.replace(padding_mask=jnp.asarray(np.arange(L) < lengths))
  if 'segments' in kinds:
    segments = np.tile(np.arange(L, dtype=np.int32) // 2, (B, 1))
    tokens = tokens.replace(segments=jnp.asarray(segments))
  if has_positions:
    scattered = np.random.default_rng(B).integers(0, 9, (B, L), np.int32)
    tokens = tokens.replace(
      positions=jnp.asarray(scattered), is_consecutive=False
    )
  return tokens


@st.composite
def requests(draw):
  """Sizes, masks, a method and features, all of them odd."""
  G, R = draw(st.integers(1, 2)), draw(st.integers(1, 3))
  is_self = draw(st.booleans())
  L = draw(st.integers(1, 9))
  method = draw(st.sampled_from(METHODS))
  kinds = draw(st.sets(st.sampled_from(MASKS)))
  return {
    'B': draw(st.integers(1, 3)),
    'L': L,
    'M': L if is_self else draw(st.integers(1, 9)),
    'is_self': is_self,
    'H': G * R,
    'G': G,
    'K': draw(st.sampled_from([2, 4, 6])),
    'kinds': kinds | {'causal'} if is_causal_only(method) else kinds,
    'has_positions': draw(st.booleans()),
    'has_bias': draw(st.booleans()),
    'method': method,
    'softcap': draw(st.sampled_from([0.0, 0.0, 1.5])),
    'has_dropout': draw(st.booleans()),
    'broadcast': draw(st.booleans()),
  }


def run(backend, request, q, k, v, bias):
  """Gradients of everything, output and weights."""
  r = request
  causal = 'causal' in r['kinds']
  method, params = make(r['method'], r['H'], r['K'], causal)
  query = some_tokens(r['kinds'], r['B'], r['L'], r['has_positions'])
  key = some_tokens(r['kinds'], r['B'], r['M'], r['has_positions'])
  rng = np.random.default_rng(5)
  mask = None
  if 'dense' in r['kinds']:
    shape = (r['B'], r['H'], r['L'], r['M'])
    mask = jnp.asarray(rng.random(shape) < 0.6)
  probe = rng.standard_normal(q.shape).astype(np.float32)
  dropout = None
  if r['has_dropout']:
    dropout = Dropout.create(jax.random.key(6), 0.4)

  x_of = {
    length: jnp.asarray(
      rng.standard_normal((r['B'], length, r['H'] * r['K'])), jnp.float32
    )
    for length in (r['L'], r['M'])
  }

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1, 2, 3, 4), has_aux=True)
  def differentiate(q, k, v, bias, params):
    stated = [
      with_state(method, params, x_of[length], side.with_defaults(length))
      for length, side in ((r['L'], query), (r['M'], key))
    ]
    output, weights = attend(
      q,
      k,
      v,
      query_tokens=stated[0],
      key_tokens=None if r['is_self'] else stated[1],
      causal=causal,
      window=(2, 1) if 'window' in r['kinds'] else None,
      mask=mask,
      bias=bias if r['has_bias'] else None,
      position=method,
      position_params=params,
      softcap=r['softcap'],
      dropout=dropout,
      broadcast_dropout=r['broadcast'],
      backend=backend,
      return_weights=True,
    )
    return (output * probe).sum(), (output, weights)

  return differentiate(q, k, v, bias, params)


def assert_equal_to_the_reference(request, *others):
  r = request
  q, k, v, bias = arrays(r['B'], r['L'], r['M'], r['H'], r['K'], r['G'])
  ours = jax.tree.leaves(run('reference', r, q, k, v, bias))
  for backend in others:
    theirs = jax.tree.leaves(run(backend, r, q, k, v, bias))
    for a, b in zip(ours, theirs, strict=True):
      assert np.isfinite(a).all()
      np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(requests(), st.integers(1, 5))
def test_chunked_equals_the_reference(request, rows_at_once):
  """Whatever the method, the mask and the feature: it serves everything."""
  with pytest.MonkeyPatch.context() as patch:
    scores = rows_at_once * request['B'] * request['H'] * request['M']
    patch.setattr(choice, '_CHUNK_SCORES', scores)
    assert_equal_to_the_reference(request, 'chunked')


def refusal(backend, request, platform):
  return unsupported_reason(
    backend,
    platform=platform,
    dtype=jnp.float32,
    head_dim=request['K'],
    has_dropout=request['has_dropout'],
    has_softcap=request['softcap'] > 0,
    hooks=make(request['method'], 1, request['K'], True)[0].hooks,
  )


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(requests())
def test_xla_equals_the_reference_or_says_why_not(request):
  reason = refusal('xla', request, 'cpu')
  if reason is None:
    assert_equal_to_the_reference(request, 'xla')
    return
  q, k, v, bias = arrays(*(request[n] for n in ('B', 'L', 'M', 'H', 'K', 'G')))
  with pytest.raises(ValueError, match=f"'xla' is unsupported: {reason}"):
    run('xla', request, q, k, v, bias)


@pytest.mark.parametrize(
  ('method', 'causal'),
  [
    *((name, is_causal_only(name)) for name in METHODS),
    ('t5', True),
    ('fire', True),
  ],
)
def test_every_method_is_the_same_in_chunks_and_in_xla(method, causal):
  request = {
    'B': 2, 'L': 7, 'M': 7, 'is_self': True, 'H': 2, 'G': 1, 'K': 4,
    'kinds': {'padding', 'causal'} if causal else {'padding', 'window'},
    'has_positions': False, 'has_bias': False, 'method': method,
    'softcap': 0.0, 'has_dropout': False, 'broadcast': False,
  }  # fmt: skip
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(choice, '_CHUNK_SCORES', 3 * 2 * 2 * 7)
    served = [
      name for name in ('xla',) if refusal(name, request, 'cpu') is None
    ]
    assert_equal_to_the_reference(request, 'chunked', *served)


@pytest.mark.parametrize('method', ['none', 't5', 'shaw', 'pope'])
@pytest.mark.parametrize('causal', [False, True])
def test_the_tpu_kernel_equals_the_reference(method, causal, monkeypatch):
  """In jax's interpreter of TPU kernels, with lengths it has to fill up."""
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  q, k, v, bias = arrays(2, 5, 5, 4, 8, G=2)
  method, params = make(method, 4, 8, causal)
  padding_mask = jnp.arange(5)[None] < jnp.array([[5], [0]])

  def both(backend):
    def scalar(q, k, v, bias, params):
      output, _ = attend(
        q,
        k,
        v,
        query_tokens=padding_mask,
        causal=causal,
        bias=bias,
        position=method,
        position_params=params,
        backend=backend,
      )
      return (output**2).sum(), output

    differentiate = jax.jit(jax.grad(scalar, (0, 1, 2, 3, 4), has_aux=True))
    return differentiate(q, k, v, bias, params)

  ours = both('reference')
  with pallas_tpu.force_tpu_interpret_mode():
    theirs = both('pallas_tpu')
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_chunks_of_a_long_sequence_need_little_memory():
  """Twice the length, at most two and a half times the memory."""

  def temporary(length):
    shape = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)

    def scalar(q, k, v):
      output, _ = attend(
        q, k, v, position=POSITIONS['alibi'](16, 2, False), backend='chunked'
      )
      return (output**2).sum()

    compiled = (
      jax.jit(jax.grad(scalar, (0, 1, 2))).lower(*[shape] * 3).compile()
    )
    return compiled.memory_analysis().temp_size_in_bytes

  short, long = temporary(2_048), temporary(4_096)
  assert long < 2.5 * short
  assert long < 2 * 4_096**2 * 4 / 4


def test_auto_takes_chunks_when_there_are_many_scores(monkeypatch):
  q, k, v, _ = arrays(1, 9, 9, 2, 4)

  def has_loop():
    text = jax.jit(lambda q, k, v: attend(q, k, v)[0]).lower(q, k, v).as_text()
    return 'while' in text

  monkeypatch.setattr(choice, '_CHUNK_SCORES', 40)
  assert not has_loop()
  monkeypatch.setattr(choice, '_MANY_SCORES', 2 * 9 * 9 - 1)
  assert has_loop()


def test_weights_are_float32_rows_that_sum_to_one_whatever_the_dtype():
  q, k, v, _ = arrays(2, 5, 7, 3, 8, dtype=jnp.bfloat16)
  output, weights = attend(q, k, v, return_weights=True)
  assert output.dtype == jnp.bfloat16
  assert weights.dtype == jnp.float32
  np.testing.assert_allclose(weights.sum(-1), np.ones((2, 3, 5)), rtol=1e-6)


@pytest.mark.parametrize('backend', ['reference', 'chunked', 'xla'])
def test_a_query_that_sees_nothing_is_zero_with_finite_gradients(
  backend, monkeypatch
):
  monkeypatch.setattr(choice, '_CHUNK_SCORES', 2 * 2 * 2 * 5)
  q, k, v, _ = arrays(2, 3, 5, 2, 4)
  mask = jnp.ones((2, 1, 3, 5), bool).at[0].set(False).at[1, 0, 2].set(False)

  def scalar(q, k, v):
    output, _ = attend(q, k, v, key_tokens=Tokens(), mask=mask, backend=backend)
    return (output**2).sum() + output.sum(), output

  differentiate = jax.jit(jax.grad(scalar, (0, 1, 2), has_aux=True))
  grads, output = jax.device_get(differentiate(q, k, v))
  assert (output[0] == 0).all()
  assert (output[1, 2] == 0).all()
  assert (output[1, :2] != 0).any()
  assert all(np.isfinite(grad).all() for grad in grads)
  assert all((grad[0] == 0).all() for grad in grads)


def test_softmax_survives_extreme_scores():
  scores = jnp.array([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]])
  weights = masked_softmax(scores, jnp.ones((2, 3), bool))
  np.testing.assert_allclose(weights, [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)
  hidden = masked_softmax(scores, jnp.array([[False, True, True]] * 2))
  np.testing.assert_allclose(hidden, [[0, 0, 1], [0, 0.5, 0.5]], rtol=1e-6)


def test_dropout_scales_what_it_keeps():
  q, k, v, _ = arrays(3, 8, 9, 4, 5)
  dropout = Dropout.create(jax.random.key(0), 0.5)
  more = {'key_tokens': Tokens(), 'return_weights': True}
  output, weights = attend(q, k, v, dropout=dropout, **more)
  plain, plain_weights = attend(q, k, v, **more)
  np.testing.assert_array_equal(weights, plain_weights)  # before dropout
  assert (np.asarray(output) != np.asarray(plain)).any()
  by_hand = jnp.einsum('BHLM,BMHK->BLHK', dropout(weights), v)
  np.testing.assert_allclose(output, by_hand, rtol=1e-5, atol=1e-6)


def test_broadcast_dropout_drops_the_same_everywhere():
  q, k, _, _ = arrays(3, 8, 9, 4, 9)
  # With these values the output is the dropped weights themselves.
  v = jnp.broadcast_to(jnp.eye(9)[None, :, None], (3, 9, 4, 9))
  dropout = Dropout.create(jax.random.key(0), 0.5, first_row=7)
  more = {'key_tokens': Tokens(), 'dropout': dropout}
  output, _ = attend(q, k, v, broadcast_dropout=True, **more)
  is_kept = np.asarray(output) != 0
  assert 0.3 < is_kept.mean() < 0.7
  assert (is_kept == is_kept[:1, :, :1]).all()
  output, _ = attend(q, k, v, **more)
  is_kept = np.asarray(output) != 0
  assert not (is_kept == is_kept[:1, :, :1]).all()


def test_the_soft_cap_acts_before_the_bias():
  q, k, v, bias = arrays(1, 4, 5, 2, 3)
  _, weights = attend(
    q,
    k,
    v,
    key_tokens=Tokens(),
    bias=9 * bias,
    softcap=0.5,
    return_weights=True,
  )
  scores = jnp.einsum('BLHK,BMHK->BHLM', q, k) / np.sqrt(3)
  want = jax.nn.softmax(0.5 * jnp.tanh(scores / 0.5) + 9 * bias)
  np.testing.assert_allclose(weights, want, rtol=1e-5)


def fine(**changes):
  facts = {
    'platform': 'gpu',
    'dtype': jnp.bfloat16,
    'head_dim': 64,
    'has_dropout': False,
    'has_softcap': False,
    'hooks': frozenset(),
  }
  return facts | changes


@pytest.mark.parametrize(
  ('backend', 'changes', 'reason'),
  [
    ('xla', {'has_dropout': True}, 'no dropout'),
    ('xla', {'has_softcap': True}, 'no soft cap'),
    ('xla', {'hooks': {'value'}}, 'value hook'),
    ('xla', {'platform': 'cpu', 'dtype': jnp.float16}, 'float16 .* a cpu'),
    ('cudnn', {'has_dropout': True}, 'no dropout'),
    ('cudnn', {'platform': 'cpu'}, 'needs an NVIDIA GPU, and this is a cpu'),
    ('cudnn', {'dtype': jnp.float32}, 'not float32'),
    ('cudnn', {'head_dim': 60}, 'not 60'),
    ('cudnn', {'head_dim': 264}, 'not 264'),
    ('cudnn', {'head_dim': 136, 'rotated_dim': 272}, 'not 272'),
    ('cudnn', {'value_dim': 68}, 'not 68'),
    ('pallas_tpu', {}, 'needs a TPU, and this is a gpu'),
    ('pallas_tpu', {'platform': 'tpu', 'hooks': {'scores'}}, 'scores hook'),
  ],
)
def test_a_backend_that_cannot_serve_says_why(backend, changes, reason):
  found = unsupported_reason(backend, **fine(**changes))
  assert re.search(reason, found)
  platform = 'tpu' if backend == 'pallas_tpu' else 'gpu'
  assert unsupported_reason(backend, **fine(platform=platform)) is None
  assert unsupported_reason(backend, **fine(platform=None)) is None
  everything = {'has_dropout': True, 'has_softcap': True, 'hooks': {'value'}}
  for backend in ('auto', 'reference', 'chunked'):
    assert unsupported_reason(backend, **fine(**everything)) is None


def test_the_kernel_of_gpus_is_refused_by_the_width_after_rotation():
  q, k, v, _ = arrays(1, 2, 2, 1, 136, dtype=jnp.bfloat16)
  method, params = make('pope', 1, 136, False)
  with pytest.raises(ValueError, match='256 wide, not 272'):
    attend(q, k, v, position=method, position_params=params, backend='cudnn')


def test_asking_for_what_cannot_be_served_is_an_error():
  q, k, v, _ = arrays(1, 2, 2, 2, 4)
  dropout = Dropout.create(jax.random.key(0), 0.5)
  with pytest.raises(ValueError, match=r"'xla' is unsupported: .* dropout"):
    attend(q, k, v, dropout=dropout, backend='xla')
  with pytest.raises(ValueError, match=r"'cudnn' is unsupported: .* float32"):
    attend(q, k, v, backend='cudnn')
  with pytest.raises(ValueError, match=f'not one of .*{BACKENDS[0]}'):
    attend(q, k, v, backend='fast')
  with pytest.raises(ValueError, match='3 KV heads do not divide 2'):
    attend(q, jnp.ones((1, 2, 3, 4)), jnp.ones((1, 2, 3, 4)))


# --- masks -------------------------------------------------------------------


def test_masks_combine_with_and():
  assert masks.combine(None, None) is None
  a = jnp.array([[True, True, False]])
  b = jnp.array([[True, False, True]])
  np.testing.assert_array_equal(masks.combine(a, None, b), [[1, 0, 0]])


def test_causal_mask_compares_places_in_the_index():
  query, key = np.array([[7, 3]]), np.array([[3, 5, 7, 9]])
  found = masks.causal_mask(query, key)
  assert found.shape == (1, 1, 2, 4)
  np.testing.assert_array_equal(found[0, 0], [[1, 1, 1, 0], [1, 0, 0, 0]])


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  st.integers(1, 8),
  st.integers(-1, 9),
  st.integers(-1, 9),
  st.booleans(),
  st.data(),
)
def test_visible_equals_a_loop_over_pairs(L, left, right, causal, data):
  tokens = data.draw(st.lists(st.booleans(), min_size=L, max_size=L))
  segments = data.draw(st.lists(st.integers(0, 2), min_size=L, max_size=L))
  side = Tokens(
    jnp.array([tokens]), segments=jnp.array([segments])
  ).with_defaults(L)
  found = masks.visible(side, side, causal, (left, right))
  found = np.broadcast_to(found, (1, 1, L, L))
  for i in range(L):
    for j in range(L):
      want = (
        tokens[j]
        and segments[i] == segments[j]
        and (not causal or j <= i)
        and (left < 0 or j >= i - left)
        and (right < 0 or j <= i + right)
      )
      assert found[0, 0, i, j] == want


def test_wrong_masks_are_refused():
  for window in ((1,), (-2, 1), 3):
    with pytest.raises(ValueError, match='window = '):
      masks.check_window(window)
  one_sided = Tokens(segments=jnp.zeros((1, 2), int)).with_defaults(2)
  with pytest.raises(ValueError, match='both sides'):
    masks.visible(one_sided, Tokens().with_defaults(2))
