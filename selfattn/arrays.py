"""Types and places of arrays that a result is computed from."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def as_floats(x: jax.Array) -> jax.Array:
  """x, or float32 of its integers or booleans, which hold no result."""
  x = jnp.asarray(x)
  is_float = jnp.issubdtype(x.dtype, jnp.floating)
  return x if is_float else x.astype(jnp.float32)


def placed(x: jax.Array, like: jax.Array) -> jax.Array:
  """A constant that differs between devices as `like` does, which broadcasts.

  A loop whose carry begins with it, or a concatenation, needs that under
  shard_map, and on explicit axes of a mesh.
  """
  return x + jnp.zeros_like(like, dtype=x.dtype)
