"""Boolean masks, True where a query may look; combined with AND alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def valid_lens_mask(valid_lens: jax.Array, num_keys: int) -> jax.Array:
  """Keys before each valid length.

  Args:
    valid_lens: (B,), one length a sequence, or (B, L), one a query.
    num_keys: M.

  Returns:
    Boolean (B, 1, 1, M) or (B, 1, L, M).

  Raises:
    ValueError: valid_lens is neither (B,) nor (B, L).
  """
  valid_lens = jnp.asarray(valid_lens)
  if valid_lens.ndim not in (1, 2):
    raise ValueError(
      f'valid_lens has shape {valid_lens.shape}; '
      'give (batch,) or (batch, queries)'
    )
  if valid_lens.ndim == 1:
    valid_lens = valid_lens[:, None]
  keys = jnp.arange(num_keys)[None, None]
  return (keys < valid_lens[..., None])[:, None]


def padding_mask(is_token_BM: jax.Array) -> jax.Array:
  """Real tokens: boolean (B, M) to boolean (B, 1, 1, M)."""
  return is_token_BM[:, None, None, :]


def causal_mask(query_BL: jax.Array, key_BM: jax.Array) -> jax.Array:
  """Keys at or before the query's own position: boolean (B, 1, L, M)."""
  return (key_BM[:, None, :] <= query_BL[:, :, None])[:, None]


def combine(*masks: jax.Array | None) -> jax.Array | None:
  """AND of the masks that are not None; None if there are none."""
  combined = None
  for mask in masks:
    if mask is not None:
      combined = mask if combined is None else combined & mask
  return combined
