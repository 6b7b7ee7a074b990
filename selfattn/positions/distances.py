"""Scores and sums by distance, for methods with a vector for each distance.

Where a sequence attends to itself and its positions are consecutive, the
matmul is with all distances and its result is then shifted row by row, which
is data movement only ("skewing", Huang et al. 2018, section 3.4.1); elsewhere
the distance of each pair of query and key is gathered.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.contract import distances
from selfattn.tokens import Tokens


def distance_scores(
  q_BLHK: jax.Array,
  table: jax.Array,
  row_of: Callable,
  query: Tokens,
  key: Tokens,
  causal: bool = False,
) -> jax.Array:
  """q . table[row_of(key - query)] for each pair, float32 (B, H, L, M).

  Args:
    q_BLHK: queries.
    table: vectors by distance, (N, K) for all heads or (H, N, K).
    row_of: from integer distances, of any shape, to rows of the table.
    query, key: Tokens of both sides.
    causal: whether later keys are masked; their scores may then be anything.
  """
  q_BHLK = q_BLHK.swapaxes(1, 2)
  table = table.astype(q_BHLK.dtype)
  distance_N = distance_range(query, key)
  if distance_N is None:
    return gather(row_scores(q_BHLK, table), row_of(distances(query, key)))
  used_N, by_index_N = distance_N, _range(query.index, key.index)
  if causal and by_index_N is not None and (by_index_N == distance_N).all():
    # Half of the matmul: keys that are masked are those of later positions.
    used_N = distance_N[distance_N <= 0]
  scores = row_scores(q_BHLK, table[..., row_of(used_N), :])
  num_masked = len(distance_N) - len(used_N)
  return skew(jnp.pad(scores, [(0, 0)] * 3 + [(0, num_masked)]))


def distance_sums(
  weights_BHLM: jax.Array,
  table_NK: jax.Array,
  row_of: Callable,
  query: Tokens,
  key: Tokens,
) -> jax.Array:
  """Sums over keys of weight times table[row_of(key - query)], (B, L, H, K).

  Args:
    weights_BHLM: attention weights.
    table_NK: vectors by distance, of all heads.
    row_of, query, key: see distance_scores.
  """
  table = table_NK.astype(weights_BHLM.dtype)
  distance_N = distance_range(query, key)
  if distance_N is None:
    row_BLM = row_of(distances(query, key))
    by_row = scatter_add(weights_BHLM, row_BLM, len(table))
  else:
    by_row, table = unskew(weights_BHLM), table[row_of(distance_N)]
  return jnp.einsum('BHLN,NK->BLHK', by_row, table)


def distance_range(query: Tokens, key: Tokens):
  """All distances key - query in order, NumPy (L + M - 1,).

  None where a side is traced, differs between rows or is not consecutive.
  """
  return _range(query.positions, key.positions)


def _range(query_1L, key_1M):
  for side in (query_1L, key_1M):
    if not isinstance(side, np.ndarray) or len(side) > 1:
      return None
    if (np.diff(side) != 1).any():
      return None
  query_L, key_M = query_1L[0], key_1M[0]
  # Not the range from first to last, which for real numbers may be one longer.
  return key_M[0] - query_L[-1] + np.arange(len(query_L) + len(key_M) - 1)


def row_scores(q_BHLK: jax.Array, table: jax.Array) -> jax.Array:
  """Matmul of queries and the rows of a table, float32 (B, H, L, N).

  Args:
    q_BHLK: queries.
    table: (N, K) for all heads or (H, N, K).
  """
  axes = 'NK' if table.ndim == 2 else 'HNK'
  return jnp.einsum(
    f'BHLK,{axes}->BHLN', q_BHLK, table, preferred_element_type=jnp.float32
  )


def gather(x_BHLN: jax.Array, row_BLM) -> jax.Array:
  """x[b, h, l, row[b, l, m]], (B, H, L, M)."""
  shape = (*x_BHLN.shape[:3], row_BLM.shape[-1])
  row = jnp.broadcast_to(jnp.asarray(row_BLM)[:, None], shape)
  return jnp.take_along_axis(x_BHLN, row, axis=-1)


def scatter_add(weights_BHLM: jax.Array, row_BLM, num_rows: int) -> jax.Array:
  """The transpose of `gather`: sums of weights by row, (B, H, L, N)."""
  shape = weights_BHLM.shape
  row = jnp.broadcast_to(jnp.asarray(row_BLM)[:, None], shape)
  zeros = jnp.zeros((*shape[:3], num_rows), weights_BHLM.dtype)
  batch, head, query = jnp.ogrid[: shape[0], : shape[1], : shape[2]]
  where = (batch[..., None], head[..., None], query[..., None], row)
  return zeros.at[where].add(weights_BHLM)


def skew(x: jax.Array) -> jax.Array:
  """From columns that are distances to columns that are keys.

  Args:
    x: (..., L, L + M - 1); column c of every row is distance c - (L - 1).

  Returns:
    (..., L, M), where row l, column m is distance m - l of row l.
  """
  num_rows, width = x.shape[-2:]
  num_keys = width - num_rows + 1
  if num_rows == 1:
    return x
  # Read with rows one element shorter, every row starts one distance earlier.
  flat = x.reshape(*x.shape[:-2], num_rows * width)
  flat = flat[..., num_rows - 1 :][..., : num_rows * (width - 1)]
  return flat.reshape(*x.shape[:-1], width - 1)[..., :num_keys]


def unskew(x: jax.Array) -> jax.Array:
  """The transpose of `skew`: (..., L, M) to (..., L, L + M - 1)."""
  num_rows, num_keys = x.shape[-2:]
  width = num_rows + num_keys - 1
  if num_rows == 1:
    return x
  before = [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, [*before, (0, 0), (0, width - 1 - num_keys)])
  flat = x.reshape(*x.shape[:-2], num_rows * (width - 1))
  flat = jnp.pad(flat, [*before, (num_rows - 1, 1)])
  return flat.reshape(*x.shape[:-2], num_rows, width)
