"""The cache of an attention layer: keys, values and Tokens of earlier calls."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from selfattn.positions.contract import Position
from selfattn.tokens import Tokens


def check_cache(
  method: Position, is_self: bool, query: Tokens, cache_len: int | None
) -> int:
  """cache_len; ValueError for what a cache does not support."""
  if not is_self:
    raise ValueError('a cache is for self-attention: key_BMD must be None')
  if not method.supports_cache:
    without = [part for _, part in method.parts if not part.supports_cache]
    raise ValueError(
      'a cache keeps no input vectors of earlier tokens, which are needed by '
      + ', '.join(type(part).__name__ for part in without)
    )
  if cache_len is None:
    raise ValueError('a mutable cache needs cache_len, the keys it holds')
  if query.segments is not None:
    raise ValueError('a cache holds one segment a row; segments must be None')
  index = query.index
  if index is not None and not isinstance(index, core.Tracer) and len(index[0]):
    index = np.asarray(index)
    first = index[:, :1]
    is_row = (first == first[0]).all() and (np.diff(index) == 1).all()
    if not is_row or index.min() < 0 or index.max() >= cache_len:
      raise ValueError(
        f'index {index.min()}..{index.max()} must be consecutive, the same for '
        f'all rows, from 0 and below cache_len = {cache_len}'
      )
  return cache_len


def continued(
  module: nn.Module, tokens: Tokens, length: int, cache_len: int
) -> tuple[Tokens, jax.Array]:
  """Tokens with an index, and whether they fit into the cache.

  Tokens without an index follow those of earlier calls, whose number the cache
  of the module keeps as `end`.

  Raises:
    ValueError: they do not fit, and that is known.
  """
  end = module.variable('cache', 'end', jnp.zeros, (), jnp.int32)
  begin = end.value
  if tokens.index is None:
    tokens = tokens.replace(index=begin + jnp.arange(length)[None])
  elif length:
    begin = jnp.asarray(tokens.index)[0, 0].astype(jnp.int32)
  end.value = jnp.asarray(begin + length, jnp.int32)
  fits = jnp.logical_and(begin >= 0, end.value <= cache_len)
  fits &= (tokens.index == begin + jnp.arange(length)[None]).all()
  if not isinstance(fits, core.Tracer) and not fits:
    raise ValueError(
      f'{int(end.value)} tokens do not fit into cache_len = {cache_len}'
    )
  return tokens, fits


def cached(
  module: nn.Module, k_BMGK, v_BMGK, query: Tokens, cache_len: int
) -> tuple[jax.Array, jax.Array, Tokens]:
  """All keys and values so far, these included, and their Tokens.

  Raises:
    ValueError: Tokens have ids, or a state, in some calls and not in others, or
      the cache is of another length or batch.
  """
  B, L = k_BMGK.shape[:2]
  padding_mask = (
    jnp.ones((1, L), bool) if query.padding_mask is None else query.padding_mask
  )
  new = {
    'keys': k_BMGK,
    'values': v_BMGK,
    'positions': query.positions,
    'padding_mask': padding_mask,
    'ids': query.ids,
    'state': query.state,
  }
  begin = query.index[0, 0] if L else 0
  is_first = not module.has_variable('cache', 'keys')
  for name, tree in new.items():
    is_kept = module.has_variable('cache', name)
    if not is_first and is_kept != (tree is not None):
      raise ValueError(
        f'{name} of tokens were given in some calls and not in others: a cache '
        'needs them in all or in none'
      )
    if tree is None:
      continue
    rows = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (B, *jnp.shape(x)[1:])), tree
    )
    kept = module.variable('cache', name, _zeros, rows, cache_len)
    count, size = jax.tree.leaves(kept.value)[0].shape[:2]
    if size != cache_len:
      raise ValueError(f'cache_len = {cache_len}, and the cache holds {size}')
    if count != B:
      raise ValueError(f'{B} rows, and the cache holds {count}')
    kept.value = new[name] = jax.tree.map(
      lambda old, x: _written(old, x, begin), kept.value, rows
    )
  keys, values = new.pop('keys'), new.pop('values')
  return keys, values, Tokens(**new).with_defaults(cache_len)


def _written(old, x, begin):
  """Kept rows with new ones, in a type that holds both."""
  kind = jnp.promote_types(old.dtype, x.dtype)
  old, x = old.astype(kind), x.astype(kind)
  return jax.lax.dynamic_update_slice_in_dim(old, x, begin, axis=1)


def _zeros(rows, cache_len: int):
  return jax.tree.map(
    lambda x: jnp.zeros((x.shape[0], cache_len, *x.shape[2:]), x.dtype), rows
  )
