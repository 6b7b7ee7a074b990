"""The linear maps of an attention layer, submodules of the one that calls."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.positions.calls import with_rows
from selfattn.positions.contract import Position


def project(
  layer: Any, query_BLD, key_BMD, value_BMD, method: Position, params
) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
  """Queries, keys and values by head; position parameters with `rows`.

  Args:
    layer: an Attention, inside its call.
  """
  head_dim = layer.embed_dim // layer.num_heads
  num_kv_heads = layer.num_kv_heads or layer.num_heads
  to_query = _heads(layer, 'query', layer.num_heads, head_dim)
  to_key = _heads(layer, 'key', num_kv_heads, head_dim)
  q_BLHK, k_BMGK = to_query(query_BLD), to_key(key_BMD)
  v_BMGK = _heads(layer, 'value', num_kv_heads, head_dim)(value_BMD)

  def rows_by_head(to_heads):
    def run(rows_ND):
      rows = to_heads(rows_ND).astype(jnp.float32).swapaxes(0, 1)
      return jnp.repeat(rows, layer.num_heads // len(rows), axis=0)

    return run

  params = with_rows(
    method, params, rows_by_head(to_query), rows_by_head(to_key)
  )
  if layer.qk_norm:
    q_BLHK = nn.RMSNorm(dtype=layer.dtype, name='query_norm')(q_BLHK)
    k_BMGK = nn.RMSNorm(dtype=layer.dtype, name='key_norm')(k_BMGK)
  return q_BLHK, k_BMGK, v_BMGK, params


def gate(layer: Any, query_BLD) -> jax.Array:
  """Gates of outputs, from 0 to 1, (B, L, H, K) or (B, L, H, 1)."""
  head_dim = layer.embed_dim // layer.num_heads
  width = head_dim if layer.output_gate == 'elementwise' else 1
  return nn.sigmoid(_heads(layer, 'gate', layer.num_heads, width)(query_BLD))


# Initial values of kernels: of Glorot and Bengio 2010, and uniform up to the
# inverse square root of the width of the input, as torch.nn.Linear has them.
KERNEL_INITS = {
  'xavier': nn.initializers.xavier_uniform(),
  'torch': nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
}


def dense(layer: Any, name: str, features: int) -> nn.Dense:
  """A linear map with the fields of the layer."""
  return nn.Dense(
    features,
    use_bias=layer.use_bias,
    dtype=layer.dtype,
    kernel_init=KERNEL_INITS[layer.kernel_init],
    name=name,
  )


def _heads(layer, name, num_heads, head_dim):
  """A projection from (..., D) to (..., heads, K)."""
  to_all = dense(layer, name, num_heads * head_dim)

  def run(x):
    return to_all(x).reshape(*x.shape[:-1], num_heads, head_dim)

  return run
