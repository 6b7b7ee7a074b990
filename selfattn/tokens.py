"""Tokens: what attention knows about a row beside its vectors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import core


class Tokens(struct.PyTreeNode):
  """One side of attention; every array is (1 or B, L), or None.

  Padding changes no token: its vectors, ids and positions may be anything, NaN
  included.

  Attributes:
    padding_mask: boolean, True at tokens and False at padding (as an
      attention_mask; the opposite of a key_padding_mask). Integers are read as
      booleans. None: no padding.
    positions: position ids for the position method, integers below 2^31, or
      real numbers for a method that supports them. They move no causal mask,
      as position_ids may elsewhere: that is `index`.
      None: those of index, which counts padding, too.
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
    is_right_padded: whether padding stands after the tokens of each row
      (padding_side='right'), so that a kernel needs no more than their number;
      if it is True and padding stands elsewhere, weights are wrong. False: it
      stands anywhere.

  Examples:
    >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
    >>> tokens = selfattn.Tokens(padding_mask=jnp.arange(5)[None] < 3)
    >>> _, weights_BHLM = selfattn.attend(
    ...   q_BLHK, k_BMHK, v_BMHK, query_tokens=tokens, return_weights=True
    ... )
    >>> (weights_BHLM[0, 0, 0] > 0).tolist()
    [True, True, True, False, False]
  """

  padding_mask: jax.Array | np.ndarray | None = None
  # Arrays of JAX or NumPy, which `with_defaults` makes of None.
  positions: Any = None
  segments: jax.Array | np.ndarray | None = None
  index: Any = None
  ids: jax.Array | np.ndarray | None = None
  state: Any = None
  is_consecutive: bool | None = struct.field(pytree_node=False, default=None)
  is_right_padded: bool = struct.field(pytree_node=False, default=False)

  @classmethod
  def of(cls, tokens: Tokens | jax.Array | None) -> Tokens:
    """Tokens from Tokens, from a padding mask (B, L), or from None."""
    if isinstance(tokens, Tokens):
      return tokens
    return cls(padding_mask=tokens)

  def with_defaults(self, length: int, batch: int | None = None) -> Tokens:
    """Tokens with index and positions, in the types that hooks rely on.

    Integers are signed, a padding mask is boolean, and positions at padding are
    some that any method supports. Known positions other than the index stay
    known while tracing unless the padding mask is traced.

    Args:
      length: L.
      batch: B; None: whatever it is.

    Raises:
      ValueError: an array is not (1 or B, L), or has another type.
    """
    arrays = {}
    for name, kinds in _KINDS.items():
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
      if not any(jnp.issubdtype(x.dtype, kind) for kind in kinds):
        allowed = ' or '.join(_SAID[kind] for kind in kinds)
        raise ValueError(f'{name} of {x.dtype} must be {allowed}')
      arrays[name] = x.astype(bool) if name == 'padding_mask' else _widened(x)
    mask, positions = arrays.get('padding_mask'), arrays.get('positions')
    if 'index' not in arrays:
      # A symbolic length, as of jax.export, is not known while tracing.
      array = np if isinstance(length, int) else jnp
      arrays['index'] = array.arange(length)[None]
    index = arrays['index']
    arrays.setdefault('positions', index)
    if mask is not None and positions is not None:
      arrays['positions'] = _at_tokens(positions, mask, index)
    return self.replace(**arrays)

  def has_lengths_alone(self) -> bool:
    """Whether the number of tokens of each row says all of its masks."""
    has_padding = self.padding_mask is not None and not self.is_right_padded
    return not has_padding and self.segments is None

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


# Types of the arrays of Tokens, and how a message names them.
_KINDS = {
  'padding_mask': (jnp.bool_, jnp.integer),
  'positions': (jnp.integer, jnp.floating),
  'segments': (jnp.integer,),
  'index': (jnp.integer,),
  'ids': (jnp.integer,),
}
_SAID = {
  jnp.bool_: 'booleans',
  jnp.integer: 'integers',
  jnp.floating: 'real numbers',
}


def _at_tokens(positions, mask, index):
  """Positions that are harmless at padding, and known if all are."""
  is_known = all(isinstance(x, np.ndarray) for x in (positions, index))
  if is_known and np.array_equal(positions, index):
    return positions
  if is_known and not isinstance(mask, core.Tracer):
    return np.where(np.asarray(mask), positions, 0)
  return jnp.where(mask, positions, 0)


def _widened(x):
  """Signed integers, whose differences do not wrap, or float32.

  NumPy arrays, which are known while tracing, keep 64 bits.
  """
  is_integer = jnp.issubdtype(x.dtype, jnp.integer)
  if isinstance(x, np.ndarray):
    return x.astype(np.int64 if is_integer else np.float64)
  return x.astype(jnp.int32 if is_integer else jnp.float32)


def sides(
  query_tokens: Tokens | jax.Array | None,
  key_tokens: Tokens | jax.Array | None,
  is_self: bool,
) -> tuple[Tokens, Tokens]:
  """Tokens of queries and of keys; one object where one side is given for both.

  Args:
    query_tokens, key_tokens: Tokens, a padding mask, or None.
    is_self: whether queries and keys are the same tokens; Tokens of one side
      are then used for both.

  Raises:
    ValueError: in cross-attention, queries have Tokens and keys have none.
  """
  is_one = query_tokens is None or key_tokens is None
  if is_self and (is_one or query_tokens is key_tokens):
    tokens = Tokens.of(key_tokens if query_tokens is None else query_tokens)
    return tokens, tokens
  if query_tokens is not None and key_tokens is None:
    raise ValueError(
      'query_tokens without key_tokens in cross-attention: padding, segments '
      'and positions of the keys are not known; give key_tokens, Tokens() if '
      'they have none'
    )
  query, key = Tokens.of(query_tokens), Tokens.of(key_tokens)
  # One object would say that they are the same tokens.
  return query, key.replace() if key is query else key


def without_padding(x: jax.Array, tokens: Tokens) -> jax.Array:
  """Vectors (B, L, ...), zero at padding.

  A weight of 0 does not hide a NaN, and neither does a gradient of 0.
  """
  if tokens.padding_mask is None:
    return x
  mask = jnp.asarray(tokens.padding_mask)
  return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, 0)
