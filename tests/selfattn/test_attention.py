"""Backends equal the reference, or say why they do not serve a call."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import choice, positions
from selfattn.backends import attend
from selfattn.dropout import Dropout
from selfattn.kernels import unsupported_reason
from selfattn.positions import POSITIONS
from selfattn.positions.calls import with_state
from selfattn.simplex import masked_softmax
from selfattn.tokens import Tokens
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


def arrays(B, L, M, H, K, G=None):
  rng = np.random.default_rng(B + L * M)
  G = G or H
  shapes = ((B, L, H, K), (B, M, G, K), (B, M, G, K), (1, H, L, M))
  return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


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


def differentiated(backend, name, causal, **more):
  """Gradients of everything, the output and the weights; two heads a key."""
  B, L, H, K = 2, 7, 2, 4
  method, params = make(name, H, K, causal)
  x_BLD = arrays(B, L, L, 1, H * K)[0][:, :, 0]
  padding_mask = jnp.arange(L)[None] < jnp.array([[L], [2]])
  tokens = Tokens(padding_mask).with_defaults(L)

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def differentiate(arrays, params):
    *qkv, bias = arrays
    output, weights = attend(
      *qkv,
      query_tokens=with_state(method, params, x_BLD, tokens),
      causal=causal,
      bias=bias,
      position=method,
      position_params=params,
      backend=backend,
      return_weights=True,
      **more,
    )
    return (output**2).sum() + output.sum(), (output, weights)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(choice, '_CHUNK_OF_CPU', (3, 0))
    return differentiate(arrays(B, L, L, H, K, G=1), params)


def assert_close(found, want):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize('name', METHODS)
def test_every_method_is_the_same_in_xla_or_is_refused(name):
  """Chunks are a form of test_matrix."""
  causal = is_causal_only(name)
  more = {} if causal else {'window': (2, 1)}
  reason = unsupported_reason(
    'xla', **fine(platform='cpu', hooks=make(name, 1, 4, causal)[0].hooks)
  )
  if reason is None:
    want = differentiated('reference', name, causal, **more)
    assert_close(differentiated('xla', name, causal, **more), want)
    return
  with pytest.raises(ValueError, match=f"'xla' is unsupported: {reason}"):
    differentiated('xla', name, causal, **more)


@pytest.mark.parametrize('broadcast', [False, True])
def test_chunks_drop_what_the_reference_drops(broadcast):
  more = {
    'dropout': Dropout.create(jax.random.key(6), 0.4),
    'broadcast_dropout': broadcast,
    'softcap': 1.5,
    'mask': np.random.default_rng(5).random((2, 2, 7, 7)) < 0.6,
  }
  found, want = (
    differentiated(backend, 'shaw with values', True, **more)
    for backend in ('chunked', 'reference')
  )
  assert_close(found, want)


def test_auto_takes_chunks_when_there_are_many_scores(monkeypatch):
  q, k, v, _ = arrays(1, 9, 9, 2, 4)

  def has_loop():
    text = jax.jit(lambda q, k, v: attend(q, k, v)[0]).lower(q, k, v).as_text()
    return 'while' in text

  monkeypatch.setattr(choice, '_CHUNK_SCORES', 40)
  assert not has_loop()
  monkeypatch.setattr(choice, '_MANY_SCORES', 2 * 9 * 9 - 1)
  assert has_loop()


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
