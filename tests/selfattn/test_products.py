"""Matmuls with a kernel, and their derivatives."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.products import logits_of, products, with_fast_gradient

X, KERNEL = (
  jax.random.normal(jax.random.key(n), shape)
  for n, shape in enumerate([(2, 3, 4), (4, 5)])
)


def _of_dense(x, kernel):
  return products(x, kernel, (((2,), (0,)), ((), ())))


FUNCTIONS = [_of_dense, logits_of]


def _loss(function, *arguments):
  return (jnp.tanh(function(*arguments)) ** 2).sum()


@pytest.mark.parametrize(
  'function', [pytest.param(_of_dense, marks=pytest.mark.slow), logits_of]
)
def test_derivatives_are_those_of_a_matmul(function):
  def plain(x, kernel):
    return _loss(jnp.matmul, x, kernel)

  def ours(x, kernel):
    return _loss(function, x, kernel)

  for derive in (jax.grad, jax.jacfwd, jax.hessian):
    found = derive(ours, (0, 1))(X, KERNEL)
    expected = derive(plain, (0, 1))(X, KERNEL)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected
    )


@pytest.mark.parametrize('function', FUNCTIONS)
def test_gradients_of_many_kernels(function):
  kernels = jnp.stack([KERNEL, -KERNEL, KERNEL + 1])

  def gradient(kernel):
    return jax.grad(_loss, 2)(function, X, kernel)

  np.testing.assert_allclose(
    jax.vmap(gradient)(kernels), jnp.stack([*map(gradient, kernels)]), atol=1e-5
  )


def test_logits_of_bfloat16_have_all_derivatives():
  x, kernel = X.astype(jnp.bfloat16), KERNEL
  assert logits_of(x, kernel).dtype == jnp.float32
  expected = jax.hessian(_loss, 2)(jnp.matmul, x.astype(jnp.float32), kernel)
  found = jax.hessian(_loss, 2)(logits_of, x, kernel)
  np.testing.assert_allclose(found, expected, atol=0.3)
  assert jax.grad(_loss, 1)(logits_of, x, kernel).dtype == jnp.bfloat16


@pytest.mark.parametrize('product', [jax.lax.dot_general, products])
def test_only_a_plain_matmul_has_a_gradient_of_two_transposed_operands(product):
  """On a CPU, XLA runs it at half the speed of the others."""
  dense = nn.Dense(512, dot_general=product)
  x = jnp.ones((8, 64, 128))
  params = dense.init(jax.random.key(0), x)

  def loss(params):
    return (dense.apply(params, x) ** 2).sum()

  text = jax.jit(jax.grad(loss)).lower(params).compile().as_text()
  slow = 'lhs_contracting_dims={0}, rhs_contracting_dims={1}'
  assert (slow in text) == (product is jax.lax.dot_general)


def test_values_are_those_of_the_kernel():
  np.testing.assert_array_equal(with_fast_gradient(KERNEL), KERNEL)
