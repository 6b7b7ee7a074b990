"""Attention of any method, mask and backend against float64 NumPy."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import reference, visible
from conftest import draw
from test_positions import ROWS, VARIANTS, D, H, K

from selfattn import choice, positions
from selfattn.backends import attend
from selfattn.kernels import unsupported_reason
from selfattn.tokens import Tokens

close = {'rtol': 2e-5, 'atol': 2e-5}
# The same examples every time, so that the time they take is the same.
few = functools.partial(
  hypothesis.settings, deadline=None, derandomize=True, database=None
)
BACKENDS = st.sampled_from(['reference', 'chunked', 'xla'])


# --- what is drawn -----------------------------------------------------------


def make(variant, partner, causal):
  """A method, or two that are joined."""
  name, options = variant
  blocks = {name: options} | ({} if partner in (None, name) else {partner: {}})
  return positions.make(blocks, D, H, causal)


def parts_of(method, name, params):
  """The parts of a method as `reference` takes them."""
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return [
    (part or name, m, exact.get(part, {}) if part else exact)
    for part, m in method.parts
  ]


def draw_params(method):
  """Of the model and of a layer; a part has one or the other."""
  key = jax.random.key(0)
  return draw(method.init_model, key) | draw(method.init_layer, key)


def shapes_that_broadcast(full):
  """Shapes of any rank whose axes are 1 or as in `full`."""
  axes = st.tuples(*(st.sampled_from([1, size]) for size in full))
  return st.builds(
    lambda shape, rank: shape[4 - rank :], axes, st.integers(0, 4)
  )


@st.composite
def places(draw, B, L, causal):
  """What Tokens are given, and where that puts them: integers (B, L)."""
  kind = draw(st.sampled_from(['none', 'offset', 'known', 'traced', 'by row']))
  if kind == 'none':
    return {}, np.tile(np.arange(L), (B, 1))
  if kind == 'offset':
    first = np.array(draw(st.lists(st.integers(0, 9), min_size=B, max_size=B)))
    full = first[:, None] + np.arange(L)[None]
    return {'positions': jnp.asarray(full), 'is_consecutive': True}, full
  rows = B if kind == 'by row' else 1
  row = st.lists(st.integers(0, 40), min_size=L, max_size=L, unique=True)
  drawn = np.array(draw(st.lists(row, min_size=rows, max_size=rows)))
  if causal:
    # What comes later in a causal text stands further on.
    drawn = np.sort(drawn, axis=1)
  full = np.broadcast_to(drawn, (B, L))
  return {'positions': drawn if kind == 'known' else jnp.asarray(drawn)}, full


@st.composite
def calls(draw):
  """Everything about a call of `attend` but the method."""
  is_self, causal = draw(st.booleans()), draw(st.booleans())
  B, L = draw(st.integers(1, 2)), draw(st.integers(1, 5))
  M = L if is_self else draw(st.integers(1, 5))
  where = places(B, L, causal)
  if causal and not is_self:
    where = st.just(({}, np.tile(np.arange(max(L, M)), (B, 1))))
  query, query_BL = draw(where)
  key, key_BM = query, query_BL
  if not is_self and not causal:
    key, key_BM = draw(places(B, M, causal))
  rng = np.random.default_rng(draw(st.integers(0, 99)))
  shapes = shapes_that_broadcast((B, H, L, M))
  padding_mask = segments = mask = bias = None
  if draw(st.booleans()):
    padding_mask = np.arange(M)[None] < rng.integers(0, M + 1, (B, 1))
  if is_self and draw(st.booleans()):
    segments = np.tile(np.arange(L) // 2, (B, 1))
  if draw(st.booleans()):
    mask = rng.random(draw(shapes)) < 0.7
  if draw(st.booleans()):
    bias = rng.standard_normal(draw(shapes)).astype(np.float32)
  return {
    'backend': draw(BACKENDS),
    'rows_at_once': draw(st.integers(1, 3)),
    'shape': (B, L, M, draw(st.sampled_from([1, H]))),
    'is_self': is_self,
    'query': query,
    'key': key,
    'where': (query_BL[:, :L], key_BM[:, :M]),
    'padding_mask': padding_mask,
    'segments': segments,
    'mask': mask,
    'bias': bias,
    'causal': causal,
    'window': draw(st.sampled_from([None, (1, 2), (2, -1)])),
    'softcap': draw(st.sampled_from([0.0, 0.0, 1.5])),
  }


def tokens_of(padding_mask, B, L):
  """Boolean (B, L): where there is a token, whose output means something."""
  mask = True if padding_mask is None else padding_mask
  return np.broadcast_to(mask, (B, L))


def arrays(B, L, M, G):
  """Queries, keys and values."""
  rng = np.random.default_rng(B + L * M)
  shapes = ((B, L, H, K), (B, M, G, K), (B, M, G, K))
  return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


def run(call, method, params):
  """Output and weights of `attend`."""
  c = call
  query, key = (
    Tokens(c['padding_mask'], segments=c['segments'], **c[side])
    for side in ('query', 'key')
  )
  if not c['is_self']:
    query = query.replace(padding_mask=None)

  @jax.jit
  def attended(q, k, v):
    return attend(
      q,
      k,
      v,
      query_tokens=query,
      key_tokens=None if c['is_self'] else key,
      mask=c['mask'],
      bias=c['bias'],
      position=method,
      position_params=params,
      return_weights=True,
      **{n: c[n] for n in ('backend', 'causal', 'window', 'softcap')},
    )

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(choice, '_CHUNK_OF_CPU', (c['rows_at_once'], 0))
    return attended(*arrays(*c['shape']))


def refusal(call, method):
  """Why the backend does not support a call, or None."""
  return unsupported_reason(
    call['backend'],
    platform='cpu',
    dtype=jnp.float32,
    head_dim=K,
    has_dropout=False,
    has_softcap=call['softcap'] > 0,
    hooks=method.hooks,
  )


# --- the properties ----------------------------------------------------------

PARTNERS = st.sampled_from([None, *ROWS])


@few(max_examples=40)
@hypothesis.given(
  variant=st.sampled_from(VARIANTS), call=calls(), partner=PARTNERS
)
def test_attend_equals_the_reference_or_says_why_not(variant, call, partner):
  method = make(variant, partner, call['causal'])
  params = draw_params(method)
  reason = refusal(call, method)
  if reason:
    with pytest.raises(ValueError, match=f'is unsupported: {reason}'):
      run(call, method, params)
    return
  (B, L, M, _), bias = call['shape'], call['bias']
  names = ('padding_mask', 'segments', 'causal', 'window')
  sees = visible(B, L, M, **{name: call[name] for name in names})
  if call['mask'] is not None:
    sees = sees & call['mask']
  want, want_weights = reference(
    *arrays(*call['shape']),
    parts_of(method, variant[0], params),
    *call['where'],
    sees,
    0.0 if bias is None else bias,
    call['softcap'],
  )
  output, weights = run(call, method, params)
  is_token = tokens_of(call['padding_mask'] if call['is_self'] else None, B, L)
  by_query = np.asarray(weights).swapaxes(1, 2), want_weights.swapaxes(1, 2)
  for found, wanted in (by_query, (output, want)):
    np.testing.assert_allclose(found[is_token], wanted[is_token], **close)
