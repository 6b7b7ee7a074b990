"""Masks and biases of every rank, in all backends."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import chapters, choice, masks
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.masks import Tokens

B, L, M, H, K = 2, 5, 7, 3, 4
SHAPES = [
  (), (1,), (M,), (L, M), (L, 1), (1, M), (H, L, M), (H, 1, 1), (1, L, 1),
  (B, H, L, M), (B, 1, 1, M), (1, H, L, 1), (B, 1, L, 1), (1, 1, 1, 1),
]  # fmt: skip


def arrays():
  rng = np.random.default_rng(0)
  shapes = (B, L, H, K), (B, M, H, K), (B, M, H, K)
  return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def formula(q, k, v, bias=None, mask=None):
  """Output in float64, by pairs of a query and a key."""
  scores = np.einsum('blhk,bmhk->bhlm', q, k, dtype=np.float64) / np.sqrt(K)
  scores = scores + (0 if bias is None else bias)
  sees = np.broadcast_to(True if mask is None else mask, scores.shape)
  weights = np.where(sees, np.exp(scores), 0)
  total = weights.sum(-1, keepdims=True)
  weights = weights / np.where(total > 0, total, 1)
  return np.einsum('bhlm,bmhk->blhk', weights, v)


@pytest.fixture(params=['reference', 'chunked', 'xla'])
def backend(request, monkeypatch):
  monkeypatch.setattr(choice, '_CHUNK_SCORES', 1)  # a query at a time
  return request.param


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_whatever_broadcasts_is_broadcast(backend, shape):
  q, k, v = arrays()
  rng = np.random.default_rng(1)
  bias = rng.standard_normal(shape).astype(np.float32)
  mask = rng.random(shape) < 0.7

  @jax.jit
  def run(bias, mask):
    return attend(
      q, k, v, key_tokens=Tokens(), bias=bias, mask=mask, backend=backend
    )

  found, _ = run(jnp.asarray(bias), jnp.asarray(mask))
  want = formula(q, k, v, bias, mask)
  np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('shape', [(L,), (B, L, M), (1, B, H, L, M)], ids=str)
@pytest.mark.parametrize('name', ['mask', 'bias'])
def test_what_does_not_broadcast_is_refused_alike(backend, name, shape):
  given = {name: jnp.ones(shape, bool if name == 'mask' else jnp.float32)}
  reason = re.escape(
    f'{name} of shape {shape} does not broadcast to (B, H, L, M) = '
    f'{(B, H, L, M)}'
  )
  with pytest.raises(ValueError, match=f'^{reason}$'):
    attend(*arrays(), key_tokens=Tokens(), backend=backend, **given)


def test_a_mask_of_numbers_is_refused(backend):
  """Combined with AND it would be right where all numbers are 0 or 1 only."""
  mask = jnp.ones((L, M), jnp.int32)
  with pytest.raises(ValueError, match='mask of int32 must be boolean'):
    attend(*arrays(), key_tokens=Tokens(), mask=mask, backend=backend)


def test_minus_infinity_in_a_bias_hides_a_key(backend):
  """A row of it is zero, and no gradient is NaN, that of the bias included."""
  q, k, v = arrays()
  sees = np.random.default_rng(2).random((L, M)) < 0.6
  sees[1] = False
  noise = np.random.default_rng(3).standard_normal((L, M)).astype(np.float32)

  def total(bias, q, k, v):
    output, _ = attend(q, k, v, key_tokens=Tokens(), bias=bias, backend=backend)
    return (output**2).sum(), output

  bias = jnp.where(sees, noise, -jnp.inf)
  differentiate = jax.jit(jax.grad(total, (0, 1, 2, 3), has_aux=True))
  grads, output = differentiate(bias, q, k, v)
  want = formula(q, k, v, noise, sees)
  np.testing.assert_allclose(output, want, rtol=1e-5, atol=1e-5)
  assert (output[:, 1] == 0).all()
  assert all(np.isfinite(grad).all() for grad in grads)
  assert (grads[0][~sees] == 0).all()


def test_a_layer_takes_a_mask_of_any_rank_beside_padding():
  x_BLD = jax.random.normal(jax.random.key(0), (B, L, 12))
  layer = Attention(12, H)
  padding_mask = jnp.arange(L)[None] < jnp.array([[L], [3]])
  variables = layer.init(jax.random.key(1), x_BLD)
  last = jnp.arange(L) < 4
  low, full = (
    layer.apply(variables, x_BLD, query_tokens=padding_mask, mask=mask)[0]
    for mask in (last, jnp.broadcast_to(last, (B, H, L, L)))
  )
  np.testing.assert_array_equal(low, full)


def test_the_chapters_take_masks_of_any_rank():
  q, k, v = (x[:, :, 0] for x in arrays())
  for shape in ((), (M,), (L, M), (B, 1, M)):
    mask = np.random.default_rng(4).integers(0, 2, shape)
    found, _ = chapters.scaled_dot_product_attention(q, k, v, mask)
    full = np.broadcast_to(mask, (B, L, M))
    want, _ = chapters.scaled_dot_product_attention(q, k, v, full)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)
  layer = chapters.MultiHeadAttention(12, H)
  x_BLD = jax.random.normal(jax.random.key(0), (B, L, 12))
  variables = layer.init(jax.random.key(1), x_BLD, x_BLD, x_BLD)
  mask = jnp.tril(jnp.ones((L, L), bool))
  low, full = (
    layer.apply(variables, x_BLD, x_BLD, x_BLD, jnp.array([L, 3]), mask=m)[0]
    for m in (mask, mask[None, None])
  )
  np.testing.assert_array_equal(low, full)


def test_masks_of_any_rank_combine():
  both = masks.combine(jnp.ones(M, bool), None, jnp.zeros((B, 1, 1, M), bool))
  assert both.shape == (B, 1, 1, M)


@pytest.mark.parametrize(
  ('name', 'shape'),
  [('padding_mask', (L,)), ('positions', (L,)), ('segments', (B, 1, L)),
   ('index', (B, L - 1))],
)  # fmt: skip
def test_what_tokens_hold_has_two_axes(name, shape):
  tokens = Tokens(**{name: np.zeros(shape, int)})
  reason = re.escape(f'{name} of shape {shape} must be (1 or B, {L})')
  with pytest.raises(ValueError, match=reason):
    tokens.with_defaults(L)
