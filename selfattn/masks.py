"""What attention reads of tokens beside their vectors, and masks.

Masks are boolean, True where a query may attend to a key, and are combined with
AND.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

# A bias below it masks a key.
_HIDDEN = float(jnp.finfo(jnp.float32).min) / 2


@struct.dataclass
class Tokens:
  """One side of attention; every array is (1 or B, L), or None.

  Attributes:
    padding_mask: boolean, True at tokens and False at padding (as an
      attention_mask; the opposite of a key_padding_mask). None: no padding.
    positions: position ids for the position method, integers below 2^31, or
      real numbers for a method that supports them.
      None: those of index.
    segments: segment ids, integers; a token attends to its own segment only.
      Positions should begin at 0 in each. None: one segment.
    index: integers, the order that `causal` and `window` use. None: 0, 1, ...
    ids: token ids, integers, for position methods that read them; in a
      classifier, [MASK] is V and [CLS] is V + 1. None: unknown.
    state: what the position method computed from a layer's input, see its
      contract.
    is_consecutive: whether positions of tokens that may attend to one another
      differ as much as their indices in the row, so that a relative method may
      count distances from 0; if it is True and they do not, terms are wrong.
      None: found out from positions that are known while tracing; distances
      of traced ones are computed for each pair.
  """

  padding_mask: jax.Array | None = None
  positions: jax.Array | np.ndarray | None = None
  segments: jax.Array | None = None
  index: jax.Array | np.ndarray | None = None
  ids: jax.Array | None = None
  state: Any = None
  is_consecutive: bool | None = struct.field(pytree_node=False, default=None)

  @classmethod
  def of(cls, tokens) -> Tokens:
    """From Tokens, a boolean (B, L) array, or None."""
    return tokens if isinstance(tokens, Tokens) else cls(tokens)

  def with_defaults(self, length: int, batch: int | None = None) -> Tokens:
    """With index and positions, and integers that are signed.

    Args:
      length: L.
      batch: B; None: whatever it is.

    Raises:
      ValueError: an array is not (1 or B, L).
    """
    given = {}
    for name in ('padding_mask', 'positions', 'segments', 'index', 'ids'):
      x = getattr(self, name)
      if x is None:
        continue
      x = x if hasattr(x, 'shape') else np.asarray(x)
      is_row = x.shape[1:] == (length,)
      if not is_row or (batch is not None and x.shape[0] not in (1, batch)):
        rows = 'B' if batch is None else f'B = {batch}'
        raise ValueError(
          f'{name} of shape {x.shape} must be (1 or {rows}, {length})'
        )
      given[name] = x.astype(bool) if name == 'padding_mask' else _signed(x)
    index = given.setdefault('index', np.arange(length)[None])
    given.setdefault('positions', index)
    return self.replace(**given)

  def has_consecutive_positions(self) -> bool:
    """Whether distances may be counted from 0; see is_consecutive."""
    if self.is_consecutive is not None:
      return self.is_consecutive
    positions = self.positions
    return isinstance(positions, np.ndarray) and bool(
      (np.diff(positions) == 1).all()
    )

  def is_in_order(self) -> bool:
    """Whether index is 0, 1, ..., known while tracing."""
    index = self.index
    return isinstance(index, np.ndarray) and bool(
      (index == np.arange(index.shape[1])[None]).all()
    )


def _signed(x):
  """Signed integers: differences of unsigned ones would wrap."""
  if isinstance(x, np.ndarray):
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else x
  return x.astype(jnp.int32) if jnp.issubdtype(x.dtype, jnp.integer) else x


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


def key_mask(padding_mask_BM: jax.Array) -> jax.Array:
  """Real tokens: boolean (B, M) to boolean (B, 1, 1, M)."""
  return padding_mask_BM[:, None, None, :]


def causal_mask(query_BL: jax.Array, key_BM: jax.Array) -> jax.Array:
  """Keys at or before the query in the index: boolean (B, 1, L, M)."""
  return (key_BM[:, None, :] <= query_BL[:, :, None])[:, None]


def window_mask(query_BL, key_BM, window: tuple[int, int]) -> jax.Array:
  """Keys near the query in the index: boolean (B, 1, L, M).

  Raises:
    ValueError: window is not two integers of at least -1.
  """
  if len(window) != 2 or any(type(n) is not int or n < -1 for n in window):
    raise ValueError(
      f'window = {window!r} must be (left, right), each at least -1'
    )
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
  given = [mask for mask in masks if mask is not None]
  rank = max((mask.ndim for mask in given), default=0)
  given = [mask.reshape(_in_rank(mask.shape, rank)) for mask in given]
  return functools.reduce(operator.and_, given) if given else None


def mask_and_bias(mask, bias, shape: tuple[int, int, int, int]):
  """Mask and bias with four axes each, with all that is masked in the mask.

  A bias of -inf masks a key, and so does the lowest finite float, of which
  additive masks are often made.

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
    # A row of -inf would be 0/0, or overflow, and kernels differ in what they
    # return for it. NaN is kept, so that it shows in the output.
    shows = ~(bias < _HIDDEN)
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
