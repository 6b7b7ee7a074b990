"""Position as what the tokens on the way do to a query: PaTH."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.positions.contract import Position, require
from selfattn.positions.local import windows
from selfattn.tokens import Tokens

# Rows of a block of the triangular solver.
_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Path(Position):
  """PaTH (Yang et al. 2025, equations 3 and 5).

  Between a key j and a query i, every token t after the key, up to the query,
  reflects: the score is k_j (I - b_{j+1} w_{j+1} w_{j+1}^T) ... (I - b_i w_i
  w_i^T) q_i, with |w_t| = 1 and b_t from 0 to 2 read from the layer's input.
  Defined for causal encoders alone.

  All products at once are q_i . k_j - (q w^T) (I + b w w^T)^-1 b (w k^T), with
  the lower triangles of the brackets (the UT transform of the paper).

  Attributes:
    rank: rank of the map from the layer's input to w.
    kernel_size: tokens of the short convolution over w, which silu follows; 1:
      neither. A cache holds no neighbours, so it needs 1.
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
    order_BM = jnp.argsort(jnp.asarray(key.index), axis=-1)
    w, b, k = (
      _take(x, order_BM).swapaxes(1, 2).astype(jnp.float32)
      for x in (key.state['direction'], key.state['strength'], k_BMHK)
    )
    q = q_BLHK.swapaxes(1, 2).astype(jnp.float32)
    ordered = jax.tree.map(
      lambda x: _take(jnp.asarray(x), order_BM),
      Tokens(index=key.index, segments=key.segments),
    )
    before_MM = _is_before(ordered, ordered, strict=True)
    until_LM = _is_before(ordered, query, strict=False)
    wk = jnp.where(before_MM, _dots(w, k), 0.0) * b[..., None]
    ww = jnp.where(before_MM, _dots(w, w), 0.0) * b[..., None]
    # From the queries on: there may be a few of them, of a chunk.
    term = -_solve(ww, jnp.where(until_LM, _dots(q, w), 0.0)) @ wk
    back_BM = jnp.argsort(order_BM, axis=-1)
    back = jnp.broadcast_to(back_BM[:, None, None], term.shape)
    return jnp.take_along_axis(term, back, axis=-1)


def _solve(lower, b):
  """x (B, H, L, M) with x (I + lower) = b, lower (B, H, M, M) strictly so.

  Not by the triangular solver of LAPACK, which, called for many matrices at
  once on a CPU of two cores, never returns (jaxlib 0.10.2).
  """

  def multiply(x):
    return x + x @ lower

  def solve(_, b):
    # From the last row to the first, the transpose is lower, too.
    x = _by_blocks(lower[..., ::-1, ::-1].mT, b[..., ::-1].mT)
    return x.mT[..., ::-1]

  return jax.lax.custom_linear_solve(
    multiply, b, solve, lambda _, b: _by_blocks(lower, b.mT).mT
  )


def _by_blocks(lower, b):
  """x with (I + lower) x = b.

  Blocks of rows are solved one after another, by products with what is solved
  already.
  """
  B, H, M, N = b.shape
  if M <= _ROWS:
    return _by_rows(lower, b)
  rows = _ROWS
  count = -(-M // rows)
  more = count * rows - M
  lower = jnp.pad(lower, ((0, 0), (0, 0), (0, more), (0, more)))
  b = jnp.pad(b, ((0, 0), (0, 0), (0, more), (0, 0)))
  lower = lower.reshape(B, H, count, rows, count * rows)
  lower_CBHRM = jnp.moveaxis(lower, 2, 0)
  b_CBHRN = jnp.moveaxis(b.reshape(B, H, count, rows, N), 2, 0)
  starts_C = jnp.arange(count) * rows
  diagonal_CBHRR = jax.vmap(
    lambda block, start: jax.lax.dynamic_slice_in_dim(block, start, rows, -1)
  )(lower_CBHRM, starts_C)
  # Of the type of the blocks, and varying over devices as they do.
  identity_CBHRR = jnp.zeros_like(diagonal_CBHRR)
  identity_CBHRR += jnp.eye(rows, dtype=lower.dtype)[None, None, None]
  inverse_CBHRR = _by_rows(diagonal_CBHRR, identity_CBHRR)

  def block(x, now):
    start, lower_BHRM, inverse_BHRR, b_BHRN = now
    solved = inverse_BHRR @ (b_BHRN - lower_BHRM @ x)
    return jax.lax.dynamic_update_slice_in_dim(x, solved, start, 2), None

  blocks = (starts_C, lower_CBHRM, inverse_CBHRR, b_CBHRN)
  x, _ = jax.lax.scan(block, jnp.zeros_like(b), blocks)
  return x[:, :, :M]


def _by_rows(lower, b):
  """The solution row by row, with any leading axes."""

  def row(x, now):
    index, lower_M, b_N = now
    row = b_N - jnp.einsum('...M,...MN->...N', lower_M, x)
    return x.at[..., index, :].set(row), None

  rows = (
    jnp.arange(b.shape[-2]),
    *(jnp.moveaxis(y, -2, 0) for y in (lower, b)),
  )
  return jax.lax.scan(row, jnp.zeros_like(b), rows)[0]


def _dots(a_BHLK, b_BHMK):
  return jnp.einsum('BHLK,BHMK->BHLM', a_BHLK, b_BHMK)


def _take(x, order_BM):
  """Rows (1 or B, M, ...) in an order (1 or B, M)."""
  order = order_BM.reshape(order_BM.shape + (1,) * (x.ndim - 2))
  return jnp.take_along_axis(x, order, axis=1)


def _is_before(first: Tokens, second: Tokens, strict: bool):
  """Whether a token of `first` stands before one of `second`, in the same
  segment: boolean (1 or B, 1, L of second, M of first)."""
  ahead = jnp.asarray(second.index)[:, :, None] - first.index[:, None]
  is_before = ahead > 0 if strict else ahead >= 0
  if first.segments is not None and second.segments is not None:
    is_before &= second.segments[:, :, None] == first.segments[:, None]
  return is_before[:, None]
