"""The linear maps of an attention layer, submodules of the one that calls."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.norms import NORMS
from selfattn.positions.calls import with_rows
from selfattn.positions.contract import Position
from selfattn.products import products


def project(
  layer: Any, query_BLD, key_BMD, value_BMD, method: Position, params
) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
  """Queries, keys and values by head; position parameters with `rows`.

  Args:
    layer: an Attention, inside its call.
  """
  head_dim = width_of_heads(layer)
  num_kv_heads = layer.num_kv_heads or layer.num_heads
  to_query = _heads(layer, 'query', layer.num_heads, head_dim)
  to_key = _heads(layer, 'key', num_kv_heads, head_dim, layer.use_key_bias)
  q_BLHK, k_BMGK = to_query(query_BLD), to_key(key_BMD)
  v_BMGK = _heads(layer, 'value', num_kv_heads, head_dim)(value_BMD)
  if c := layer.clip_qkv:
    q_BLHK, k_BMGK, v_BMGK = (
      jnp.clip(x, -c, c) for x in (q_BLHK, k_BMGK, v_BMGK)
    )

  def rows_by_head(to_heads):
    def run(rows_ND):
      rows = to_heads(rows_ND).astype(jnp.float32).swapaxes(0, 1)
      return jnp.repeat(rows, layer.num_heads // len(rows), axis=0)

    return run

  params = with_rows(
    method, params, rows_by_head(to_query), rows_by_head(to_key)
  )
  if layer.qk_norm:
    q_BLHK = _normalised(layer, 'query_norm', q_BLHK)
    k_BMGK = _normalised(layer, 'key_norm', k_BMGK)
  return q_BLHK, k_BMGK, v_BMGK, params


# What a norm of queries and keys is over: the channels of a head, by scales
# that all heads share or by its own; or all channels of all heads.
NORMED = ('head', 'each_head', 'all_heads')


def _normalised(layer: Any, name: str, x_BLHK) -> jax.Array:
  """Queries or keys after the norm of the layer, of the same shape."""
  norm, options = NORMS[layer.qk_norm_kind], {}
  if layer.qk_norm_over == 'each_head':
    options = {'reduction_axes': -1, 'feature_axes': (-2, -1)}
  normed = norm(epsilon=layer.eps, dtype=layer.dtype, name=name, **options)
  if layer.qk_norm_over != 'all_heads':
    return normed(x_BLHK)
  B, L, H, K = x_BLHK.shape
  return normed(x_BLHK.reshape(B, L, H * K)).reshape(x_BLHK.shape)


def width_of_heads(layer: Any) -> int:
  """K of an Attention."""
  return layer.head_dim or layer.embed_dim // layer.num_heads


# Functions of the gates of outputs.
GATES = {'sigmoid': nn.sigmoid, 'softplus': nn.softplus}


def gate(layer: Any, query_BLD) -> jax.Array:
  """Gates of outputs, (B, L, H, K) or (B, L, H, 1)."""
  is_by_channel = layer.output_gate == 'elementwise'
  width = width_of_heads(layer) if is_by_channel else 1
  gate_BLHK = _heads(layer, 'gate', layer.num_heads, width)(query_BLD)
  return GATES[layer.gate_activation](gate_BLHK)


# Initial values of kernels: of Glorot and Bengio 2010, and uniform up to the
# inverse square root of the width of the input, as torch.nn.Linear has them.
KERNEL_INITS = {
  'xavier': nn.initializers.xavier_uniform(),
  'torch': nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
}


def dense(
  layer: Any, name: str, features: int, use_bias: bool | None = None
) -> nn.Dense:
  """A linear map with the fields of the layer.

  Args:
    use_bias: None: that of the layer.
  """
  return nn.Dense(
    features,
    use_bias=layer.use_bias if use_bias is None else use_bias,
    dtype=layer.dtype,
    dot_general=products,
    kernel_init=KERNEL_INITS[layer.kernel_init],
    name=name,
  )


def _heads(layer, name, num_heads, head_dim, use_bias=None):
  """A projection from (..., D) to (..., heads, K)."""
  to_all = dense(layer, name, num_heads * head_dim, use_bias)

  def run(x):
    return to_all(x).reshape(*x.shape[:-1], num_heads, head_dim)

  return run
