"""Dropout as a hash of (key, row, index): no generator state, no stored mask.

`nn.Dropout` draws its mask from a generator that the compiler cannot fuse
with anything; on a CPU that doubles a small training step. Here a mask bit is
a pure function of the key and of where the element stands, so the compiler
folds it into whatever reads it, it is the same under every sharding, and
micro-batches draw exactly the bits that the whole batch would have drawn.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

# Multipliers of MurmurHash3's 32-bit finalizer (Appleby, 2011), and the odd
# number nearest 2^32 over the golden ratio, which spreads consecutive integers.
_MIX_1 = 0x85EBCA6B
_MIX_2 = 0xC2B2AE35
_GOLDEN = 0x9E3779B1
# The float32 next to 1, of which what survives is scaled up by 2^24.
MAX_RATE = 1 - 2.0**-24


def _mix(bits: jax.Array) -> jax.Array:
  bits = (bits ^ (bits >> 16)) * jnp.uint32(_MIX_1)
  bits = (bits ^ (bits >> 13)) * jnp.uint32(_MIX_2)
  return bits ^ (bits >> 16)


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
  return lax.broadcasted_iota(jnp.uint32, shape, axis)


@struct.dataclass
class Dropout:
  """The randomness of one forward pass, and how much of it.

  Models take `dropout: Dropout | None` and pass `dropout.at(site)` down, one
  integer for every place that drops something; None means evaluation.

  Attributes:
    words: uint32 (2,), made by `Dropout.create`.
    rate: probability of dropping an element, from 0 to MAX_RATE; may be a
      traced array, and is then not checked.
    first_row: index in the global batch of this batch's first row; see also
      `of_texts`.
  """

  words: jax.Array
  rate: jax.Array | float
  first_row: jax.Array | int = 0

  @classmethod
  def create(cls, key: jax.Array, rate, first_row=0) -> Dropout:
    """From a JAX key (typed or raw) and a rate."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
      key = jax.random.key_data(key)
    # Wider keys (rbg has four words) are folded, so that no word is ignored;
    # the odd numbers keep the key of seed 0, all zeros, from staying zero.
    words = jnp.array([_GOLDEN, _MIX_2], jnp.uint32)
    for pair in key.astype(jnp.uint32).reshape(-1, 2):
      words = _mix(words * jnp.uint32(_MIX_1) + pair)
    return cls(words, rate, first_row)

  @classmethod
  def of_texts(cls, key: jax.Array, tokens_BL, padding_mask_BL) -> Dropout:
    """Bits (B, L) that a text has wherever it stands, in any batch.

    The row is a hash of its tokens, of which padding is none.
    """
    place_1L = _iota((1, tokens_BL.shape[1]), 1)
    words_BL = _mix(tokens_BL.astype(jnp.uint32) * jnp.uint32(_GOLDEN))
    words_BL = _mix(words_BL + _mix(place_1L + jnp.uint32(1)))
    words_BL = jnp.where(padding_mask_BL, words_BL, jnp.uint32(0))
    row_B1 = words_BL.sum(axis=1, keepdims=True, dtype=jnp.uint32)
    return cls.create(key, 0.0, row_B1 - _iota(row_B1.shape, 0))

  def at(self, site: jax.Array | int) -> Dropout:
    """An independent stream for one place; `site` may be traced."""
    site = jnp.asarray(site, jnp.uint32) * jnp.uint32(_GOLDEN) + jnp.uint32(1)
    first = _mix(self.words[0] ^ _mix(site))
    second = _mix(self.words[1] + first)
    return self.replace(words=jnp.stack([first, second]))

  def bits(
    self, shape: tuple[int, ...], *, full_shape=None, origin=None
  ) -> jax.Array:
    """Uniform uint32 of `shape`; axis 0 is the row of the batch.

    Of shape (), it is the one element of the row.

    Args:
      full_shape: of the array this is a part of, if it is one; the part then
        has the bits that it has in the whole.
      origin: where in the whole the part begins; integers, may be traced.
    """
    if not shape:
      return self.bits((1,))[0]
    full_shape = full_shape or shape
    origin = origin or (0,) * len(shape)
    rank = len(shape)
    origin = (self.first_row + origin[0], *origin[1:])

    def place(shape, axis):
      return _iota(shape, axis) + jnp.asarray(origin[axis], jnp.uint32)

    # Leading axes that an index of 32 bits has no room for belong to the row.
    first = next(
      n for n in range(1, rank + 1) if math.prod(full_shape[n:]) <= 2**32
    )
    rows = shape[:first] + (1,) * (rank - first)
    row = place(rows, 0)
    for axis in range(1, first):
      row = row * jnp.uint32(full_shape[axis]) + place(rows, axis)
    # Two words keep streams apart: with one, two keys would walk through the
    # same permutation in another order.
    row_1 = _mix(row * jnp.uint32(_GOLDEN) + self.words[0])
    row_2 = _mix(row_1 ^ self.words[1])
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(rank - 1, first - 1, -1):
      stride = math.prod(full_shape[axis + 1 :])
      index += place(shape, axis) * jnp.uint32(stride % 2**32)
    bits = index * jnp.uint32(_GOLDEN) + row_1
    bits = (bits ^ (bits >> 16)) * jnp.uint32(_MIX_1)
    return _mix(bits ^ row_2)

  def keep(self, shape: tuple[int, ...], **part) -> jax.Array:
    """Boolean of `shape`, True where an element survives; see `bits`."""
    # 24 bits, so that the bound is exact in float32 for a traced rate; and of
    # integers, because converting every element costs as much as its hash.
    bound = jnp.ceil(self._checked_rate() * 2**24)
    return self.bits(shape, **part) >= bound.astype(jnp.uint32) << 8

  def __call__(self, x: jax.Array, keep: jax.Array | None = None) -> jax.Array:
    """Zeros elements of x with probability `rate`, scales up the others.

    Args:
      keep: which ones survive, if not those of `self.keep(x.shape)`.

    Raises:
      ValueError: the rate is out of range, and not traced.
    """
    keep = self.keep(x.shape) if keep is None else keep
    scale = 1 / (1 - self._checked_rate())
    return jnp.where(keep, x * scale.astype(x.dtype), 0)

  def _checked_rate(self):
    is_known = not isinstance(self.rate, jax.Array)
    if is_known and not 0 <= self.rate <= MAX_RATE:
      raise ValueError(f'rate = {self.rate} must be from 0 to {MAX_RATE}')
    return jnp.asarray(self.rate, jnp.float32)


def drop(x: jax.Array, dropout: Dropout | None, site: int) -> jax.Array:
  """`x` in evaluation (dropout None), else `x` dropped at `site`."""
  return x if dropout is None else dropout.at(site)(x)
