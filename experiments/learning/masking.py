"""Which tokens of a text are chosen and masked, for `masked_tokens`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments.data.batches import Batch
from experiments.data.vocabularies import SPECIAL_TOKENS
from selfattn.dropout import Bits

# Tokens of a word beyond the share, after which it is cut.
_LONGEST_WORD = 16


def choose(
  batch: Batch,
  mask,
  share: float,
  bits: Bits,
  begins_word: tuple[bool, ...] | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Indices of tokens that may be predicted, and which of them are.

  Both are (rows, most), where `most` depends on the length of the batch alone.

  Args:
    batch: any number of rows.
    mask: boolean (rows, length), False at padding.
    share: share of the tokens that are chosen.
    bits: their sites 0 and 1 are used.
    begins_word: whether each token id begins a word, where all tokens of a word
      are chosen together; None: each token is chosen by itself.
  """
  shape = batch.tokens.shape
  order = bits.at(0).bits(shape) >> 1
  most = int(share * shape[1]) + 1
  first = size = None
  if begins_word is not None:
    first, size = _words(batch, begins_word)
    # The sort is stable, so the tokens of a word stay in their order.
    order = jnp.take_along_axis(order, first, axis=1)
    most += _LONGEST_WORD
  most = min(most, shape[1])
  order = jnp.where(mask, order, jnp.uint32(2**32 - 1))
  index = jnp.argsort(order, axis=1)[:, :most]
  rank = jnp.arange(most)[None]
  rounding = _uniform(bits.at(1).bits((shape[0], 1)))
  count = share * batch.lengths[:, None]
  if first is None or size is None:
    is_chosen = rank < jnp.floor(count + rounding)
  else:
    size = jnp.take_along_axis(size, index, axis=1)
    begin = rank - (index - jnp.take_along_axis(first, index, axis=1))
    is_chosen = begin + size <= count + rounding * size
    is_chosen &= rank <= jnp.floor(count) + _LONGEST_WORD
  return index, is_chosen & (rank < batch.lengths[:, None])


def _words(batch: Batch, begins_word) -> tuple[jax.Array, jax.Array]:
  """First index and size of the word of each token, both (B, L)."""
  length = batch.tokens.shape[1]
  index = jnp.arange(length)[None]
  begins = jnp.asarray(begins_word)[batch.tokens]
  first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
  ends = jnp.where(begins, index, length)
  ends = jax.lax.cummin(ends, axis=1, reverse=True)
  ends = jnp.pad(ends[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  # Padding is of no word.
  ends = jnp.minimum(ends, batch.lengths[:, None])
  return first, ends - first


def replacements(
  labels,
  index,
  shape: tuple[int, int],
  vocab_size: int,
  bits: Bits,
  mask: float,
  random: float,
) -> jax.Array:
  """What stands in place of chosen tokens: [MASK], another one, or the same.

  Args:
    labels: the tokens, (rows, most).
    index: where they stand in a batch of this shape.
    vocab_size: V, which is the id of [MASK].
    bits: their sites 2 and 3 are used.
    mask, random: fractions that become [MASK], and tokens drawn uniformly.
  """

  def bits_of(site):
    return jnp.take_along_axis(bits.at(site).bits(shape), index, axis=1)

  # Special tokens are not drawn.
  first = min(len(SPECIAL_TOKENS), vocab_size - 1)
  drawn = first + bits_of(2) % jnp.uint32(vocab_size - first)
  kind = _uniform(bits_of(3))
  new = jnp.where(kind < mask + random, drawn, labels)
  return jnp.where(kind < mask, vocab_size, new).astype(jnp.int32)


def _uniform(bits: jax.Array) -> jax.Array:
  """Float32 in [0, 1), from the 24 bits that it can represent."""
  return (bits >> 8).astype(jnp.float32) * 2.0**-24
