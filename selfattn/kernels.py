"""Attention kernels of other libraries, and what each of them cannot do."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from selfattn.normalisers import Softmax

# Rows and columns of the TPU kernel come in multiples of this.
_TPU_BLOCK = 128


class Term(NamedTuple):
  """What joins the products of some queries with all keys."""

  content: jax.Array | None
  bias: jax.Array | None
  mask: jax.Array | None
  scale: float

  def all_biases(self):
    """What other libraries call bias: all terms but the products, scaled."""
    if self.content is None:
      return self.bias
    content = self.content * self.scale
    return content if self.bias is None else content + self.bias


def unsupported_reason(
  backend: str,
  *,
  platform: str | None,
  dtype,
  head_dim: int,
  has_dropout: bool,
  has_softcap: bool,
  hooks: frozenset[str] = frozenset(),
  rotated_dim: int | None = None,
  normaliser: Softmax | None = None,
  value_dim: int | None = None,
) -> str | None:
  """Why a backend does not support a call, or None if it does.

  Args:
    backend: one of selfattn.backends.BACKENDS.
    platform: 'cpu', 'gpu' or 'tpu'; None: the one it needs.
    dtype: of queries; keys and values are cast to it.
    head_dim: K.
    has_dropout: whether weights are dropped.
    has_softcap: whether scores are capped.
    hooks: those that the position method fills.
    rotated_dim: width of queries and keys after its rotation; None: K.
    normaliser: None: softmax.
    value_dim: width of a value; None: K.
  """
  if 'value' in hooks and value_dim not in (None, head_dim):
    return f'a value term is as wide as keys, {head_dim}, not {value_dim}'
  if backend not in KERNELS:
    return None
  for hook in ('scores', 'value'):
    if hook in hooks:
      return f'it never forms the weights, which the {hook} hook needs'
  if normaliser is not None and type(normaliser) is not Softmax:
    return f'its weights are a softmax, not {type(normaliser).__name__}'
  if has_dropout:
    return 'it has no dropout on the weights'
  if has_softcap:
    return 'it has no soft cap'
  if backend == 'cudnn':
    if platform not in (None, 'gpu'):
      return f'it needs an NVIDIA GPU, and this is a {platform}'
    if jnp.dtype(dtype) not in (jnp.float16, jnp.bfloat16):
      return f'it computes in float16 or bfloat16, not {jnp.dtype(dtype).name}'
    width = max(rotated_dim or head_dim, value_dim or 0)
    if width % 8 or width > 256:
      return f'its heads are 8, 16, ... 256 wide, not {width}'
  if backend == 'xla' and (platform, jnp.dtype(dtype)) == ('cpu', jnp.float16):
    return 'its products in float16 do not compile for a cpu'
  if backend == 'pallas_tpu' and platform not in (None, 'tpu'):
    return f'it needs a TPU, and this is a {platform}'
  return None


def call(backend: str, q_BLHK, k_BMGK, v_BMGK, term: Term) -> jax.Array:
  """Output of a kernel (B, L, H, K), zero for a query that sees nothing."""
  kernel, value_dim = KERNELS[backend], v_BMGK.shape[-1]
  # Libraries differ in which types they take together, and take one width
  # only; a column of zeros changes no product.
  width = max(q_BLHK.shape[-1], value_dim)
  # A method may have turned the keys of each head its own way.
  v_BMGK = jnp.repeat(v_BMGK, k_BMGK.shape[2] // v_BMGK.shape[2], axis=2)
  q_BLHK, k_BMGK, v_BMGK = (
    jnp.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])]).astype(q_BLHK.dtype)
    for x in (q_BLHK, k_BMGK, v_BMGK)
  )
  if term.mask is None:
    return kernel(q_BLHK, k_BMGK, v_BMGK, term)[..., :value_dim]
  # Libraries differ in what they make of a query that sees nothing, and some
  # of it is NaN: such a query is shown everything, and its output dropped.
  sees_BHL1 = term.mask.any(axis=-1, keepdims=True)
  shown = term._replace(mask=term.mask | ~sees_BHL1)
  output_BLHK = kernel(q_BLHK, k_BMGK, v_BMGK, shown)[..., :value_dim]
  return jnp.where(sees_BHL1.swapaxes(1, 2), output_BLHK, 0)


def _library(implementation, q_BLHK, k_BMGK, v_BMGK, term):
  """`jax.nn.dot_product_attention`."""
  bias, mask = term.all_biases(), term.mask
  if implementation == 'cudnn':
    # It takes both in full only, and the bias in the type of the queries.
    B, L, H, _ = q_BLHK.shape
    shape = (B, H, L, k_BMGK.shape[1])
    if bias is not None:
      bias = jnp.broadcast_to(bias, shape).astype(q_BLHK.dtype)
    if mask is not None:
      mask = jnp.broadcast_to(mask, shape)
  return jax.nn.dot_product_attention(
    q_BLHK,
    k_BMGK,
    v_BMGK,
    bias=bias,
    mask=mask,
    scale=term.scale,
    implementation=implementation,
  )


def _pallas_tpu(q_BLHK, k_BMGK, v_BMGK, term):
  """jax's flash attention for TPUs, filled up to the blocks it takes."""
  from jax.experimental.pallas.ops.tpu import flash_attention

  B, L, H, _ = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  num_rows, num_keys = (-(-n // _TPU_BLOCK) * _TPU_BLOCK for n in (L, M))

  def filled(x_BNHK, length):
    x_BHNK = x_BNHK.swapaxes(1, 2)
    missing = length - x_BHNK.shape[2]
    return jnp.pad(x_BHNK, [(0, 0), (0, 0), (0, missing), (0, 0)])

  bias = term.all_biases()
  if bias is not None:
    # The kernel scales the sum of products and bias.
    bias = bias / term.scale
  if term.mask is not None:
    # Finite, or a block of keys that are all hidden would be 0/0.
    hidden = flash_attention.DEFAULT_MASK_VALUE
    bias = jnp.where(term.mask, 0.0 if bias is None else bias, hidden)
  if bias is not None:
    bias = jnp.broadcast_to(bias, (B, H, L, M))
    bias = jnp.pad(bias, [(0, 0), (0, 0), (0, num_rows - L), (0, num_keys - M)])
  is_filling = (jnp.arange(num_keys) >= M).astype(jnp.int32)[None]
  output_BHLK = flash_attention.flash_attention(
    filled(q_BLHK, num_rows),
    filled(jnp.repeat(k_BMGK, H // G, axis=2), num_keys),
    filled(jnp.repeat(v_BMGK, H // G, axis=2), num_keys),
    bias,
    flash_attention.SegmentIds(
      jnp.zeros((B, num_rows), jnp.int32),
      jnp.broadcast_to(is_filling, (B, num_keys)),
    ),
    sm_scale=term.scale,
  )
  return output_BHLK[:, :, :L].swapaxes(1, 2)


# From (q_BLHK, k_BMGK, v_BMGK, Term), where every query sees a key, to the
# output, (B, L, H, K).
KERNELS = {
  'xla': functools.partial(_library, 'xla'),
  'cudnn': functools.partial(_library, 'cudnn'),
  'pallas_tpu': _pallas_tpu,
}
