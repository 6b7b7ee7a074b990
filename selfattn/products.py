"""Matmuls of vectors with a kernel, with a gradient that is fast on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def products(x, kernel, dimension_numbers, **options) -> jax.Array:
  """jax.lax.dot_general for flax.linen.Dense, see `with_fast_gradient`."""
  kernel = with_fast_gradient(kernel)
  return jax.lax.dot_general(x, kernel, dimension_numbers, **options)


@jax.custom_jvp
def with_fast_gradient(kernel: jax.Array) -> jax.Array:
  """A kernel (D, N) itself, whose gradient is computed as (N, D).

  XLA makes a matmul of two transposed operands of the gradient of x @ kernel,
  which is slower on a CPU than the other matmuls of a step. The transposed
  gradient is a matmul of rows; fused with the transposition, XLA would turn it
  around.
  """
  return kernel


@with_fast_gradient.defjvp
def _tangent(primals, tangents):
  tangent = unfused_on_cpu(jnp.swapaxes(tangents[0], -1, -2))
  return primals[0], jnp.swapaxes(tangent, -1, -2)


def unfused_on_cpu(x: jax.Array) -> jax.Array:
  """x, which XLA does not fuse with what uses it, and so its cotangent.

  Other devices than a CPU fuse it.
  """
  barrier = jax.lax.optimization_barrier
  return jax.lax.platform_dependent(x, cpu=barrier, default=lambda x: x)


@jax.custom_jvp
def logits_of(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x @ kernel, at least float32, with operands of the type of x.

  Logits of bfloat16 would have ties. Gradients have the type of x inside, too.
  """
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  return jnp.matmul(x, kernel.astype(x.dtype), preferred_element_type=dtype)


@logits_of.defjvp
def _tangent_of_logits(primals, tangents):
  (x, kernel), (of_x, of_kernel) = primals, tangents
  logits, dtype = logits_of(x, kernel), x.dtype
  of_kernel = with_fast_gradient(of_kernel.astype(dtype))
  # Transposed, the cast of the sum makes cotangents of the type of x.
  tangent = of_x @ kernel.astype(dtype) + x @ of_kernel
  return logits, tangent.astype(logits.dtype)
