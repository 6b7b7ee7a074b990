"""Random bits as a hash of (key, row, index), and dropout by them.

`nn.Dropout` samples its mask from a generator that the compiler cannot fuse,
so that random numbers are written and read. Here a mask bit is a pure function
of the key and of the index of the element. The compiler fuses it into its
consumer, it is the same under every sharding, and microbatches have the bits
that they have in the whole batch.
"""

from __future__ import annotations

import math
from typing import Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from selfattn.arrays import as_floats

# Multipliers of MurmurHash3's 32-bit finalizer (Appleby, 2011), and the odd
# number nearest 2^32 over the golden ratio, which spreads consecutive integers.
_MIX_1 = 0x85EBCA6B
_MIX_2 = 0xC2B2AE35
_GOLDEN = 0x9E3779B1
# The float32 below 1; elements that are kept are then scaled by 2^24.
MAX_RATE = 1 - 2.0**-24


def _mix(bits) -> jax.Array:
  bits = (bits ^ (bits >> 16)) * jnp.uint32(_MIX_1)
  bits = (bits ^ (bits >> 13)) * jnp.uint32(_MIX_2)
  return bits ^ (bits >> 16)


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
  return lax.broadcasted_iota(jnp.uint32, shape, axis)


class Bits(struct.PyTreeNode):
  """Random integers, a hash of key, row and index.

  Attributes:
    key_data: uint32 (2,), from `create`.
    first_row: index in the global batch of this batch's first row; see also
      `of_texts`.

  Examples:
    >>> bits = selfattn.Bits.create(jax.random.key(0))
    >>> bits.bits((2, 5)).shape
    (2, 5)
    >>> bool((bits.at(0).bits((2, 5)) == bits.at(1).bits((2, 5))).any())
    False
  """

  key_data: jax.Array
  first_row: jax.Array | int = 0

  @classmethod
  def create(cls, key: jax.Array, first_row: jax.Array | int = 0) -> Bits:
    """Bits from a JAX key (typed or raw)."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      key = jax.random.key_data(key)
    # Wider keys (rbg has four integers) are folded, so that all of them count;
    # the odd constants map the key of seed 0, all zeros, to something else.
    key_data = jnp.array([_GOLDEN, _MIX_2], jnp.uint32)
    for pair in key.astype(jnp.uint32).reshape(-1, 2):
      key_data = _mix(key_data * jnp.uint32(_MIX_1) + pair)
    return Bits(key_data, first_row)

  @classmethod
  def of_texts(cls, key: jax.Array, tokens_BL, padding_mask_BL) -> Bits:
    """Bits (B, ...) that depend on a text alone, not on its row or batch.

    The row is a hash of its tokens without padding.
    """
    index_1L = _iota((1, tokens_BL.shape[1]), 1)
    hash_BL = _mix(tokens_BL.astype(jnp.uint32) * jnp.uint32(_GOLDEN))
    hash_BL = _mix(hash_BL + _mix(index_1L + jnp.uint32(1)))
    hash_BL = jnp.where(padding_mask_BL, hash_BL, jnp.uint32(0))
    row_B1 = hash_BL.sum(axis=1, keepdims=True, dtype=jnp.uint32)
    return Bits.create(key, row_B1 - _iota(row_B1.shape, 0))

  def at(self, site: jax.Array | int) -> Self:
    """An independent stream for one use, as jax.random.fold_in makes a key.

    Args:
      site: an integer for each use, such as a layer or a branch; may be traced.
    """
    site = jnp.asarray(site, jnp.uint32) * jnp.uint32(_GOLDEN) + jnp.uint32(1)
    first = _mix(self.key_data[0] ^ _mix(site))
    second = _mix(self.key_data[1] + first)
    return self.replace(key_data=jnp.stack([first, second]))

  def bits(
    self, shape: tuple[int, ...], *, full_shape=None, origin=None
  ) -> jax.Array:
    """Uniform uint32 of `shape`; axis 0 is the row of the batch.

    A scalar, of shape (), is the first element of the row.

    Args:
      full_shape: of the array that this is a slice of, if it is one; the slice
        then has the bits that it has in the full array.
      origin: index of the slice in the full array; integers, may be traced.
    """
    if not shape:
      return self.bits((1,))[0]
    full_shape = full_shape or shape
    origin = origin or (0,) * len(shape)
    rank = len(shape)
    first_row = jnp.asarray(self.first_row)
    if first_row.ndim:
      # Of texts, each of which has its own.
      first_row = first_row.reshape(-1, *(1,) * (rank - 1))
    origin = (first_row + origin[0], *origin[1:])

    def index_along(shape, axis):
      return _iota(shape, axis) + jnp.asarray(origin[axis], jnp.uint32)

    # An index of 32 bits may overflow: leading axes then belong to the row.
    first = next(
      n for n in range(1, rank + 1) if math.prod(full_shape[n:]) <= 2**32
    )
    rows = shape[:first] + (1,) * (rank - first)
    row = index_along(rows, 0)
    for axis in range(1, first):
      row = row * jnp.uint32(full_shape[axis]) + index_along(rows, axis)
    # With one integer of a key, two keys would permute the same sequence.
    row_1 = _mix(row * jnp.uint32(_GOLDEN) + self.key_data[0])
    row_2 = _mix(row_1 ^ self.key_data[1])
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(rank - 1, first - 1, -1):
      stride = math.prod(full_shape[axis + 1 :])
      index += index_along(shape, axis) * jnp.uint32(stride % 2**32)
    bits = index * jnp.uint32(_GOLDEN) + row_1
    bits = (bits ^ (bits >> 16)) * jnp.uint32(_MIX_1)
    return _mix(bits ^ row_2)


class Dropout(Bits):
  """Random bits and rate of the dropout of one forward pass.

  Models have an argument `dropout: Dropout | None` and pass `dropout.at(site)`
  to submodules, with a different integer for each use; None: evaluation.

  Attributes:
    rate: probability of dropping an element, from 0 to MAX_RATE; may be a
      traced array, and is then not checked.

  Examples:
    >>> x_BLD = jnp.ones((2, 5, 12))
    >>> dropout = selfattn.Dropout.create(jax.random.key(0), rate=0.5)
    >>> dropped_BLD = dropout(x_BLD)
    >>> dropped_BLD.shape, sorted(set(dropped_BLD.ravel().tolist()))
    ((2, 5, 12), [0.0, 2.0])
  """

  rate: jax.Array | float = 0.0

  @classmethod
  def create(
    cls, key: jax.Array, rate, first_row: jax.Array | int = 0
  ) -> Dropout:
    """Dropout from a JAX key (typed or raw) and a rate."""
    bits = Bits.create(key, first_row)
    return Dropout(bits.key_data, bits.first_row, rate)

  def keep(self, shape: tuple[int, ...], **part) -> jax.Array:
    """Boolean of `shape`, True where an element is kept; see `bits`."""
    # 24 bits, so that the bound is exact in float32 for a traced rate; compared
    # as integers, since a conversion costs as much as the hash.
    bound = jnp.ceil(self._checked_rate() * 2**24)
    return self.bits(shape, **part) >= bound.astype(jnp.uint32) << 8

  def __call__(self, x: jax.Array, keep: jax.Array | None = None) -> jax.Array:
    """Sets elements of x to zero with probability `rate`, scales the others.

    Args:
      keep: which elements are kept; None: `self.keep(x.shape)`.

    Raises:
      ValueError: the rate is out of range, and not traced.
    """
    x = as_floats(x)
    keep = self.keep(x.shape) if keep is None else keep
    scale = 1 / (1 - self._checked_rate())
    return jnp.where(keep, x * scale.astype(x.dtype), 0)

  def _checked_rate(self):
    is_known = not isinstance(self.rate, jax.Array)
    if is_known and not 0 <= self.rate <= MAX_RATE:
      raise ValueError(f'rate = {self.rate} must be from 0 to {MAX_RATE}')
    return jnp.asarray(self.rate, jnp.float32)


def check_dropout(dropout: Dropout | None) -> None:
  """Raises ValueError unless it is a Dropout or None."""
  if dropout is not None and not isinstance(dropout, Dropout):
    raise ValueError(
      f'dropout = {dropout!r} must be a Dropout, such as '
      'Dropout.create(jax.random.key(0), 0.1), or None'
    )


def drop(x: jax.Array, dropout: Dropout | None, site: int) -> jax.Array:
  """`x` in evaluation (dropout None), else `x` dropped at `site`."""
  return x if dropout is None else dropout.at(site)(x)
