"""Attention kernels of other libraries, and what each does not support."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.normalisers import Softmax
from selfattn.tokens import Tokens

# Rows and columns of the TPU kernel come in multiples of the smallest. Keys are
# read once for each block of queries: in blocks of 128, the memory of a v5e
# would be slower than its matmuls.
TPU_BLOCKS = (512, 256, 128)
# What a program may be compiled for: 'gpu' is NVIDIA's, 'rocm' AMD's.
PLATFORMS = ('cpu', 'gpu', 'tpu', 'rocm')
# The compute capability of Ampere.
_CUDNN_CAPABILITY = 8.0
# The segment of keys that no query attends to.
_HIDDEN = np.iinfo(np.int32).min


class Term(NamedTuple):
  """Terms added to the scores of all queries, with their mask and scale.

  Attributes:
    content, bias: added before and after scaling, or None.
    mask: all masks combined, or None.
    scale: of the scores.
    by_token: (query, key, causal) if the mask is that of their padding and
      segments alone, and causal in the order of the row; else None.
  """

  content: jax.Array | None
  bias: jax.Array | None
  mask: jax.Array | None
  scale: float
  by_token: tuple[Tokens, Tokens, bool] | None = None

  def all_biases(self):
    """The bias of other libraries: all terms but q k, scaled."""
    if self.content is None:
      return self.bias
    content = self.content * self.scale
    return content if self.bias is None else content + self.bias

  def is_by_length(self) -> bool:
    """Whether the mask is that of `causal` and of the numbers of keys alone."""
    return self.by_token is not None and self.by_token[1].has_lengths_alone()


def platform_of(device) -> str:
  """The one of PLATFORMS that a device is, or is used as."""
  if device.platform == 'gpu' and 'rocm' in device.client.platform_version:
    return 'rocm'
  # An unknown platform counts as a CPU, which has no kernel.
  return device.platform if device.platform in PLATFORMS else 'cpu'


def known_platform(platform: str | None) -> str | None:
  """One of PLATFORMS, 'gpu' for 'cuda' (jax's name), or None for None.

  Raises:
    ValueError: it is another.
  """
  platform = 'gpu' if platform == 'cuda' else platform
  if platform not in (None, *PLATFORMS):
    raise ValueError(
      f"platform {platform!r} is not one of {PLATFORMS}, 'cuda' or None"
    )
  return platform


def _compute_capability() -> float | None:
  """Compute capability of this process's first NVIDIA GPU, or None."""
  capability = getattr(jax.local_devices()[0], 'compute_capability', '')
  try:
    return float(capability)
  except ValueError:
    return None


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
    platform: one of PLATFORMS, or 'cuda', which is 'gpu'; None: the one that
      it needs.
    dtype: of queries; keys and values are cast to it.
    head_dim: K.
    has_dropout: whether weights are dropped.
    has_softcap: whether scores are capped.
    hooks: those that the position method implements.
    rotated_dim: width of queries and keys after its rotation; None: K.
    normaliser: None: softmax.
    value_dim: width of a value; None: K.

  Raises:
    ValueError: the platform is unknown.

  Examples:
    >>> call = {'dtype': jnp.float16, 'head_dim': 64}
    >>> without = {'has_dropout': False, 'has_softcap': False}
    >>> selfattn.unsupported_reason('cudnn', platform='cpu', **call, **without)
    'it needs an NVIDIA GPU, and this is a cpu'
  """
  platform = known_platform(platform)
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
      return f'it supports float16 and bfloat16, not {jnp.dtype(dtype).name}'
    width = max(rotated_dim or head_dim, value_dim or 0)
    if width % 8 or width > 256:
      return f'it supports heads 8, 16, ... 256 wide, not {width}'
    capability = _compute_capability() if platform == 'gpu' else None
    if capability and capability < _CUDNN_CAPABILITY:
      return (
        f'it needs compute capability {_CUDNN_CAPABILITY} (Ampere), and the '
        f'GPU of this process has {capability}'
      )
  if backend == 'xla' and (platform, jnp.dtype(dtype)) == ('cpu', jnp.float16):
    return 'its float16 matmuls do not compile for a cpu'
  if backend == 'pallas_tpu' and platform not in (None, 'tpu'):
    return f'it needs a TPU, and this is a {platform}'
  return None


def run_kernel(backend: str, q_BLHK, k_BMGK, v_BMGK, term: Term) -> jax.Array:
  """Output of a kernel (B, L, H, K), zero in a fully masked row."""
  kernel, value_dim = KERNELS[backend], v_BMGK.shape[-1]
  # Libraries differ in which mixed types they support, and support one width
  # only; columns of zeros change no score.
  width = max(q_BLHK.shape[-1], value_dim)
  # A rotation may have given each query head its own keys, but not values.
  v_BMGK = jnp.repeat(v_BMGK, k_BMGK.shape[2] // v_BMGK.shape[2], axis=2)
  q_BLHK, k_BMGK, v_BMGK = (
    jnp.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[-1])]).astype(q_BLHK.dtype)
    for x in (q_BLHK, k_BMGK, v_BMGK)
  )
  if term.mask is None:
    return kernel(q_BLHK, k_BMGK, v_BMGK, term)[..., :value_dim]
  # Libraries differ in what they return for a fully masked row, and some
  # return NaN: such a row attends to all keys, and its output is set to 0.
  is_visible_BHL1 = term.mask.any(axis=-1, keepdims=True)
  term = term._replace(mask=term.mask | ~is_visible_BHL1)
  output_BLHK = kernel(q_BLHK, k_BMGK, v_BMGK, term)[..., :value_dim]
  return jnp.where(is_visible_BHL1.swapaxes(1, 2), output_BLHK, 0)


def _xla(q_BLHK, k_BMGK, v_BMGK, term):
  return jax.nn.dot_product_attention(
    q_BLHK,
    k_BMGK,
    v_BMGK,
    bias=term.all_biases(),
    mask=term.mask,
    scale=term.scale,
    implementation='xla',
  )


def _cudnn(q_BLHK, k_BMGK, v_BMGK, term):
  """A mask of pairs only where causal and the numbers of keys do not say it."""
  B, L, H, _ = q_BLHK.shape
  M = k_BMGK.shape[1]
  bias, mask, is_causal = term.all_biases(), term.mask, False
  query_lengths = key_lengths = None
  # The batching rule of cuDNN needs the axis of a vmap over queries in all
  # arrays. A term from the queries gives them this axis, and acts at NaN only.
  is_nan_BHL1 = jnp.isnan(q_BLHK[..., :1]).swapaxes(1, 2)
  if term.is_by_length() and (not term.by_token[2] or L == M):
    _, key, is_causal = term.by_token
    mask = None
    if key.padding_mask is not None:
      # Without keys, its weights are 0/0.
      num_keys_B1 = jnp.maximum(key.padding_mask.sum(axis=1, keepdims=True), 1)
      query_lengths, key_lengths = (
        jnp.where(is_nan_BHL1[:, 0, 0], 1, length)[:, 0].astype(jnp.int32)
        for length in (L, num_keys_B1)
      )
  # cuDNN broadcasts no bias or mask, and needs the bias in the queries' type.
  if bias is not None:
    bias = jnp.broadcast_to(bias, (B, H, L, M)).astype(q_BLHK.dtype)
    bias = jnp.where(is_nan_BHL1, 0, bias)
  if mask is not None:
    mask = jnp.broadcast_to(mask, (B, H, L, M)) | is_nan_BHL1
  return jax.nn.dot_product_attention(
    q_BLHK,
    k_BMGK,
    v_BMGK,
    bias=bias,
    mask=mask,
    scale=term.scale,
    is_causal=is_causal,
    query_seq_lengths=query_lengths,
    key_value_seq_lengths=key_lengths,
    implementation='cudnn',
  )


def _pallas_tpu(q_BLHK, k_BMGK, v_BMGK, term):
  """The TPU flash attention of jax, with inputs padded to its blocks."""
  from jax.experimental.pallas.ops.tpu import flash_attention

  B, L, H, _ = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  least = TPU_BLOCKS[-1]
  num_rows, num_keys = (-(-n // least) * least for n in (L, M))

  def padded(x_BNHK, length):
    x_BHNK = x_BNHK.swapaxes(1, 2)
    missing = length - x_BHNK.shape[2]
    return jnp.pad(x_BHNK, [(0, 0), (0, 0), (0, missing), (0, 0)])

  bias, is_causal = term.all_biases(), False
  if bias is not None:
    # The kernel scales the sum of scores and bias.
    bias = bias / term.scale
  query = key = Tokens()
  if term.by_token is not None:
    query, key, is_causal = term.by_token
  elif term.mask is not None:
    # Finite, or a fully masked block would be 0/0.
    hidden = flash_attention.DEFAULT_MASK_VALUE
    bias = jnp.where(term.mask, 0.0 if bias is None else bias, hidden)
  if bias is not None:
    bias = jnp.broadcast_to(bias, (B, H, L, M))
    bias = jnp.pad(bias, [(0, 0), (0, 0), (0, num_rows - L), (0, num_keys - M)])

  def segments(tokens, length, num_padded):
    ids = 0 if tokens.segments is None else tokens.segments
    if tokens.padding_mask is not None:
      ids = jnp.where(tokens.padding_mask, ids, _HIDDEN)
    ids = jnp.broadcast_to(jnp.asarray(ids, jnp.int32), (B, length))
    missing = [(0, 0), (0, num_padded - length)]
    return jnp.pad(ids, missing, constant_values=_HIDDEN)

  output_BHLK = flash_attention.flash_attention(
    padded(q_BLHK, num_rows),
    padded(jnp.repeat(k_BMGK, H // G, axis=2), num_keys),
    padded(jnp.repeat(v_BMGK, H // G, axis=2), num_keys),
    bias,
    flash_attention.SegmentIds(
      # Padding attends as other queries do.
      segments(query.replace(padding_mask=None), L, num_rows),
      segments(key, M, num_keys),
    ),
    causal=is_causal,
    sm_scale=term.scale,
    block_sizes=_block_sizes(flash_attention.BlockSizes, num_rows, num_keys),
  )
  return output_BHLK[:, :, :L].swapaxes(1, 2)


def _block_sizes(cls, num_rows: int, num_keys: int):
  """The largest of TPU_BLOCKS that divide the lengths.

  The gradient of queries has the smallest block of keys, because the kernel
  forms an array of queries times the size of that block.
  """
  q, k = (
    next(size for size in TPU_BLOCKS if n % size == 0)
    for n in (num_rows, num_keys)
  )
  return cls(
    block_q=q,
    block_k_major=k,
    block_k=k,
    block_b=1,
    block_q_major_dkv=q,
    block_k_major_dkv=k,
    block_k_dkv=k,
    block_q_dkv=q,
    block_k_major_dq=TPU_BLOCKS[-1],
    block_k_dq=TPU_BLOCKS[-1],
    block_q_dq=q,
  )


# From (q_BLHK, k_BMGK, v_BMGK, Term), without fully masked rows, to the
# output, (B, L, H, K).
KERNELS = {
  'xla': _xla,
  'cudnn': _cudnn,
  'pallas_tpu': _pallas_tpu,
}
