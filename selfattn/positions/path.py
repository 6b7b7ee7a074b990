"""Position as what the tokens on the way do to a query: PaTH."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.order import columns_back, ordered, ranks
from selfattn.positions.contract import Position, require
from selfattn.positions.local import windows

# Keys of a block.
_BLOCK = 32


@dataclasses.dataclass(frozen=True)
class Path(Position):
  """PaTH (Yang et al. 2025, equations 3 and 5).

  Between a key j and a query i, every token t after the key, up to the query,
  reflects: the score is k_j (I - b_{j+1} w_{j+1} w_{j+1}^T) ... (I - b_i w_i
  w_i^T) q_i, with |w_t| = 1 and b_t from 0 to 2 read from the layer's input.
  Defined for causal encoders alone.

  All products of a block of keys at once are q_i . k_j - (q w^T) (I + b w
  w^T)^-1 b (w k^T), with the lower triangles of the brackets (the UT transform
  of the paper). Blocks follow one another from the last one on; each reflects
  the queries after it for the blocks before.

  Attributes:
    rank: rank of the map from the layer's input to w.
    kernel_size: tokens of the short convolution over w, which silu follows; 1:
      neither. They are neighbours in the row, whatever their index. A cache
      holds no neighbours, so it needs 1.
  """

  rank: int = 32
  kernel_size: int = 3

  per_layer = True
  is_relative = True
  causal_only = True
  supports_real_positions = True
  uses_positions = False

  def __post_init__(self):
    require(self.rank >= 1, 'rank', self.rank, 'at least 1')
    require(
      self.kernel_size >= 1, 'kernel_size', self.kernel_size, 'at least 1'
    )

  @property
  def supports_cache(self):
    """Whether w reads its own token alone."""
    return self.kernel_size == 1

  def init(self, key):
    """`down` and `up`: `kernel` (D, R) and (R, HK); `filter` (T, HK) from the
    farthest before; `gate`: `kernel` (D, H) and `bias` (H,), for b."""
    keys = jax.random.split(key, 4)
    kernel = jax.nn.initializers.lecun_normal()
    taps = self.kernel_size
    width = self.num_heads * self.head_dim
    filters = {} if taps == 1 else {'filter': kernel(keys[3], (taps, width))}
    return filters | {
      'down': {'kernel': kernel(keys[0], (self.embed_dim, self.rank))},
      'up': {'kernel': kernel(keys[1], (self.rank, width))},
      'gate': {
        'kernel': kernel(keys[2], (self.embed_dim, self.num_heads)),
        'bias': jnp.zeros(self.num_heads),
      },
    }

  def state(self, params, x_BLD, tokens):
    """`direction`, w (B, L, H, K); `strength`, b (B, L, H), 0 at padding."""
    x_BLD = x_BLD.astype(jnp.float32)
    w_BLD = x_BLD @ params['down']['kernel'] @ params['up']['kernel']
    if self.kernel_size > 1:
      near_BLTD, _ = windows(w_BLD, tokens, self.kernel_size - 1, 0)
      w_BLD = jnp.einsum('BLTD,TD->BLD', near_BLTD, params['filter'])
      w_BLD = jax.nn.silu(w_BLD)
    w_BLHK = w_BLD.reshape(*w_BLD.shape[:2], self.num_heads, self.head_dim)
    square = (w_BLHK**2).sum(axis=-1, keepdims=True)
    strength = 2 * jax.nn.sigmoid(
      x_BLD @ params['gate']['kernel'] + params['gate']['bias'][None, None]
    )
    if tokens.padding_mask is not None:
      strength = jnp.where(tokens.padding_mask[..., None], strength, 0.0)
    return {
      'direction': w_BLHK * jax.lax.rsqrt(square + 1e-6),
      'strength': strength,
    }

  def content(self, params, q_BLHK, k_BMHK, query, key):
    order_BM, until_BL = ranks(query, key, k_BMHK.shape[0])
    w, b, k = (
      ordered(x, order_BM).swapaxes(1, 2).astype(jnp.float32)
      for x in (key.state['direction'], key.state['strength'], k_BMHK)
    )
    q = q_BLHK.swapaxes(1, 2).astype(jnp.float32)
    M, count = k.shape[2], -(-k.shape[2] // _BLOCK)
    w, b, k = (_blocks(x, count) for x in (w, b[..., None], k))
    slots_CN = jnp.arange(count * _BLOCK).reshape(count, _BLOCK)
    until_CBLN = slots_CN[:, None, None] < until_BL[None, ..., None]
    strict = jnp.tri(_BLOCK, k=-1, dtype=w.dtype)[None, None, None]
    inverse = _inverse(_dots(w, w) * strict * b)
    wk, wb = _dots(w, k) * strict * b, w * b

    def block(turned, now):
      w, k, until, inverse, wk, wb = now
      x = jnp.where(until[:, None], _dots(turned, w), 0.0) @ inverse
      term = _dots(turned - q, k) - x @ wk
      return turned - x @ wb, term

    blocks = w, k, until_CBLN, inverse, wk, wb
    _, terms = jax.lax.scan(block, q, blocks, reverse=True)
    term = jnp.moveaxis(terms, 0, 3)
    term = term.reshape(*term.shape[:3], count * _BLOCK)[..., :M]
    return columns_back(term, order_BM)


def _blocks(x_BHMK, count: int):
  """(blocks, B, H, rows of a block, K), with zeros in the rest of the last."""
  B, H, M, K = x_BHMK.shape
  rest = ((0, 0), (0, 0), (0, count * _BLOCK - M), (0, 0))
  x_BHMK = jnp.pad(x_BHMK, rest).reshape(B, H, count, _BLOCK, K)
  return jnp.moveaxis(x_BHMK, 2, 0)


@jax.custom_jvp
def _inverse(lower):
  """Inverse of I + lower, strictly lower triangular matrices, row by row.

  Not by the triangular solver of LAPACK, which, called for many matrices at
  once on a CPU of two cores, never returns (jaxlib 0.10.2).
  """
  # Of the type of the matrices, and varying over devices as they do.
  eye = jnp.eye(lower.shape[-1], dtype=lower.dtype)
  identity = jnp.zeros_like(lower) + jnp.expand_dims(eye, range(lower.ndim - 2))

  def row(x, now):
    index, lower_M, identity_M = now
    row = identity_M - jnp.einsum('...M,...MN->...N', lower_M, x)
    return x.at[..., index, :].set(row), None

  rows = (
    jnp.arange(lower.shape[-1]),
    *(jnp.moveaxis(x, -2, 0) for x in (lower, identity)),
  )
  return jax.lax.scan(row, jnp.zeros_like(lower), rows)[0]


@_inverse.defjvp
def _slope(given, slope):
  inverse = _inverse(*given)
  return inverse, -inverse @ slope[0] @ inverse


def _dots(a, b):
  return jnp.einsum('...LK,...MK->...LM', a, b)
