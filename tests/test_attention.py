"""Backends equal the reference; rows that see nothing; what is refused."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import masks
from selfattn.attention import BACKENDS, attend, masked_softmax, why_not_xla
from selfattn.dropout import Dropout


def arrays(B, L, M, H, K, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(B + L * M), 4)
  shapes = ((B, L, H, K), (B, M, H, K), (B, M, H, K), (1, H, L, M))
  return [
    jax.random.normal(key, shape, dtype)
    for key, shape in zip(keys, shapes, strict=True)
  ]


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
  st.integers(1, 3),
  st.integers(1, 9),
  st.integers(1, 9),
  st.integers(1, 4),
  st.integers(1, 9),
  st.sampled_from(['none', 'padding', 'causal', 'both', 'random']),
  st.booleans(),
)
def test_xla_equals_the_reference(B, L, M, H, K, kind, has_bias):
  q, k, v, bias = arrays(B, L, M, H, K)
  bias = bias if has_bias else None
  lengths = masks.valid_lens_mask(jnp.arange(B) % (M + 1), M)
  causal = masks.causal_mask(np.arange(L)[None], np.arange(M)[None])
  mask = {
    'none': None,
    'padding': lengths,
    'causal': jnp.asarray(causal),
    'both': masks.combine(lengths, jnp.asarray(causal)),
    'random': jax.random.bernoulli(jax.random.key(L), 0.5, (B, H, L, M)),
  }[kind]

  @functools.partial(jax.jit, static_argnums=0)
  def outputs(backend, q, k, v):
    def scalar(q, k, v):
      output, weights = attend(
        q, k, v, mask=mask, bias=bias, backend=backend, return_weights=True
      )
      return (output**2).sum(), (output, weights)

    grads, aux = jax.grad(scalar, (0, 1, 2), has_aux=True)(q, k, v)
    return grads, aux

  ours, theirs = (outputs(b, q, k, v) for b in ('reference', 'xla'))
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_weights_are_float32_rows_that_sum_to_one_whatever_the_dtype():
  q, k, v, _ = arrays(2, 5, 7, 3, 8, jnp.bfloat16)
  output, weights = attend(q, k, v, return_weights=True)
  assert output.dtype == jnp.bfloat16
  assert weights.dtype == jnp.float32
  np.testing.assert_allclose(weights.sum(-1), np.ones((2, 3, 5)), rtol=1e-6)


@pytest.mark.parametrize('backend', ['reference', 'xla'])
def test_a_query_that_sees_nothing_is_zero_with_finite_gradients(backend):
  q, k, v, _ = arrays(2, 3, 5, 2, 4)
  mask = jnp.ones((2, 1, 3, 5), bool).at[0].set(False).at[1, 0, 2].set(False)

  def scalar(q, k, v):
    output, _ = attend(q, k, v, mask=mask, backend=backend)
    return (output**2).sum() + output.sum(), output

  grads, output = jax.grad(scalar, (0, 1, 2), has_aux=True)(q, k, v)
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
  output, weights = attend(q, k, v, dropout=dropout, return_weights=True)
  plain, plain_weights = attend(q, k, v, return_weights=True)
  np.testing.assert_array_equal(weights, plain_weights)  # before dropout
  assert (np.asarray(output) != np.asarray(plain)).any()
  by_hand = jnp.einsum('BHLM,BMHK->BLHK', dropout(weights), v)
  np.testing.assert_allclose(output, by_hand, rtol=1e-5, atol=1e-6)


def test_a_backend_that_cannot_serve_says_why():
  q, k, v, _ = arrays(1, 2, 2, 1, 4)
  dropout = Dropout.create(jax.random.key(0), 0.5)
  assert why_not_xla(value=None, dropout=None) is None
  with pytest.raises(ValueError, match=r"'xla' cannot serve: .* dropout"):
    attend(q, k, v, dropout=dropout, backend='xla')
  with pytest.raises(ValueError, match=r"'xla' cannot serve: .* value term"):
    attend(q, k, v, value=lambda weights: None, backend='xla')
  with pytest.raises(ValueError, match=f'not one of .*{BACKENDS[0]}'):
    attend(q, k, v, backend='fast')


def test_masks_combine_with_and():
  assert masks.combine(None, None) is None
  a = jnp.array([[True, True, False]])
  b = jnp.array([[True, False, True]])
  np.testing.assert_array_equal(masks.combine(a, None, b), [[1, 0, 0]])


def test_causal_mask_compares_positions_not_indices():
  query, key = np.array([[7, 3]]), np.array([[3, 5, 7, 9]])
  found = masks.causal_mask(query, key)
  assert found.shape == (1, 1, 2, 4)
  np.testing.assert_array_equal(found[0, 0], [[1, 1, 1, 0], [1, 0, 0, 0]])
