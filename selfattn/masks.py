"""Masks: boolean, True where a query may attend to a key, combined with AND."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.tokens import Tokens


def visible(
  query: Tokens,
  key: Tokens,
  causal: bool = False,
  window: tuple[int, int] | None = None,
) -> jax.Array | None:
  """Mask of keys: (1 or B, 1, 1 or L, 1 or M), or None: all are visible.

  Args:
    query, key: from `with_defaults`.
    causal: only keys at or before the query in the index.
    window: (left, right): only keys at most so far before or after the query
      in the index; -1: any number.

  Raises:
    ValueError: only one side has segments.
  """
  masks = []
  if key.padding_mask is not None:
    masks.append(key_mask(key.padding_mask))
  if query.segments is not None or key.segments is not None:
    if query.segments is None or key.segments is None:
      raise ValueError('segments are needed on both sides of attention')
    same = query.segments[:, :, None] == key.segments[:, None, :]
    masks.append(same[:, None])
  if causal:
    masks.append(causal_mask(query.index, key.index))
  if window is not None:
    masks.append(window_mask(query.index, key.index, window))
  return combine(*masks)


def has_pairs(
  query: Tokens,
  key: Tokens,
  causal: bool,
  window: tuple[int, int] | None,
  mask: jax.Array | None,
) -> bool:
  """Whether masks need more than padding, segments and the order of the row.

  Args:
    query, key, causal, window: see `visible`.
    mask: further one, or None.
  """
  in_order = query.is_in_order() and key.is_in_order()
  return mask is not None or window is not None or (causal and not in_order)


def key_mask(padding_mask_BM) -> jax.Array:
  """Real tokens: boolean (B, M) to boolean (B, 1, 1, M)."""
  return padding_mask_BM[:, None, None, :]


def causal_mask(query_BL, key_BM) -> jax.Array:
  """Keys at or before the query in the index: boolean (B, 1, L, M)."""
  return (key_BM[:, None, :] <= query_BL[:, :, None])[:, None]


def check_window(window: tuple[int, int] | None) -> None:
  """Raises ValueError unless it is None or two integers of at least -1."""
  if window is None:
    return
  is_pair = isinstance(window, tuple | list) and len(window) == 2
  if not is_pair or any(not _is_integer(n) or n < -1 for n in window):
    raise ValueError(
      f'window = {window!r} must be (left, right), each at least -1'
    )


def _is_integer(n) -> bool:
  return isinstance(n, int | np.integer) and not isinstance(n, bool)


def window_mask(query_BL, key_BM, window: tuple[int, int]) -> jax.Array:
  """Keys near the query in the index: boolean (B, 1, L, M).

  Args:
    query_BL, key_BM: index of the tokens.
    window: from `check_window`.
  """
  left, right = window
  ahead = (key_BM[:, None, :] - query_BL[:, :, None])[:, None]
  is_near = jnp.ones(ahead.shape, bool)
  if left >= 0:
    is_near &= ahead >= -left
  if right >= 0:
    is_near &= ahead <= right
  return is_near


def combine(*masks: jax.Array | None) -> jax.Array | None:
  """AND of the masks that are not None, of any ranks; None if all are None."""
  present = [mask for mask in masks if mask is not None]
  rank = max((mask.ndim for mask in present), default=0)
  present = [mask.reshape(_in_rank(mask.shape, rank)) for mask in present]
  return functools.reduce(operator.and_, present) if present else None


def mask_and_bias(mask, bias, shape: tuple[int, int, int, int]):
  """Mask and bias with four axes each, with all that is masked in the mask.

  A bias of -inf masks a key, and so does the lowest finite number of its type,
  of which additive masks are often made.

  Args:
    mask: boolean, or None.
    bias: floats, or None.
    shape: (B, H, L, M), which both have to broadcast to.

  Raises:
    ValueError: one of them does not, or the mask is not boolean.
  """
  if mask is not None:
    mask = _in_full_rank(mask, 'mask', shape)
    if mask.dtype != bool:
      raise ValueError(
        f'mask of {mask.dtype} must be boolean; an additive mask is a bias'
      )
  if bias is not None:
    bias = _in_full_rank(bias, 'bias', shape)
    if bias.dtype == bool:
      raise ValueError('bias of bool must be floats; a boolean one is a mask')
    if jnp.issubdtype(bias.dtype, jnp.integer):
      bias = bias.astype(jnp.float32)
    # A row of -inf would be 0/0, or overflow, and kernels differ in what they
    # return for it. NaN is kept, so that it shows in the output. Float32 holds
    # the lowest number of every type but float64, whose is -inf in it.
    lowest = max(
      float(jnp.finfo(kind).min) for kind in (bias.dtype, jnp.float32)
    )
    shows = ~(bias.astype(jnp.float32) <= lowest)
    mask, bias = combine(mask, shows), jnp.where(shows, bias, 0)
  return mask, bias


def _in_full_rank(x, name, shape):
  x = jnp.asarray(x)
  axes = zip(x.shape[::-1], shape[::-1], strict=False)
  if x.ndim > 4 or any(size not in (1, full) for size, full in axes):
    raise ValueError(
      f'{name} of shape {x.shape} does not broadcast to (B, H, L, M) = {shape}'
    )
  return x.reshape(_in_rank(x.shape, 4))


def _in_rank(shape, rank):
  return (1,) * (rank - len(shape)) + shape
