"""Position methods, each a frozen dataclass of pure functions.

A method may fill any of five hooks; attention and the encoder know the hooks
and no method by name:

  embed    added to the tokens
  rotate   turns queries and keys
  bias     added to the scores, a function of the two positions alone
  content  added to the scores, a function of queries or keys too
  value    added to the output, a function of the attention weights too

Every hook takes explicit integer positions, so that offsets, packed sequences
and decoding need nothing further. Positions known while tracing are NumPy
arrays: a hook may check them, and compute a table from them in float64.

To add a method: a class here with its options as fields, a line in POSITIONS,
a row in tests/test_positions.py.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Position:
  """The contract; every hook is absent until a method fills it.

  Attributes:
    embed_dim: D, width of a token.
    num_heads: H.
    Further fields are the method's options; each needs a default, and becomes
    a key of the config.
  """

  embed_dim: int
  num_heads: int

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """The method's parameters by name, for one model; {} if it has none."""
    del key
    return {}

  @property
  def has_parameters(self) -> bool:
    """Whether the method fills `init`."""
    return type(self).init is not Position.init

  def max_length(self) -> int | None:
    """Number of positions the method can tell apart; None: no limit."""
    return None

  def embed(self, params, positions_BL) -> jax.Array | None:
    """P, float32 (B, L, D), or None: nothing is added."""
    del params, positions_BL
    return None

  def rotate(self, params, x_BLHK, positions_BL) -> jax.Array:
    """Queries or keys, turned by their positions; the same shape."""
    del params, positions_BL
    return x_BLHK

  def bias(self, params, query_BL, key_BM) -> jax.Array | None:
    """Added to the scaled scores: float32 (1 or B, H, L, M), or None."""
    del params, query_BL, key_BM
    return None

  def content(self, params, q_BLHK, k_BMHK, query_BL, key_BM):
    """Added to the scores before scaling: (B, H, L, M), or None."""
    del params, q_BLHK, k_BMHK, query_BL, key_BM
    return None

  def value(self, params, weights_BHLM, query_BL, key_BM):
    """Added to the attention output: (B, L, H, K), or None."""
    del params, weights_BHLM, query_BL, key_BM
    return None


@dataclasses.dataclass(frozen=True)
class NoPosition(Position):
  """Nothing: an encoder that cannot tell one order from another."""


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Position):
  """Sines and cosines, interleaved (Vaswani et al. 2017, section 3.5).

  P[p, 2j] = sin(p / base^(2j/D)) and P[p, 2j+1] = cos(p / base^(2j/D)); an odd
  D drops the last cosine.
  """

  base: float = 10_000.0

  def embed(self, params, positions_BL):
    del params
    # Float64 where positions are known, else float32: an angle in bfloat16
    # cannot tell position 257 from 258.
    known = isinstance(positions_BL, np.ndarray)
    xp, dtype = (np, np.float64) if known else (jnp, jnp.float32)
    rates = self.base ** (-np.arange(0, self.embed_dim, 2) / self.embed_dim)
    rates = rates[None, None].astype(dtype)
    angles = positions_BL[..., None].astype(dtype) * rates
    pairs = xp.stack([xp.sin(angles), xp.cos(angles)], axis=-1)
    P_BLD = pairs.reshape(*angles.shape[:-1], -1)[..., : self.embed_dim]
    return jnp.asarray(P_BLD, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Learned(Position):
  """A row of a table for each position (Gehring et al. 2017, section 3.1).

  A position past the table is an error where it is known while tracing, and
  NaN where it is not: never the last row.
  """

  max_len: int = 512
  init_std: float = 0.02

  def init(self, key):
    shape = (self.max_len, self.embed_dim)
    return {'table': jax.random.normal(key, shape) * self.init_std}

  def max_length(self):
    return self.max_len

  def embed(self, params, positions_BL):
    check_positions(positions_BL, self.max_len)
    return (
      params['table']
      .at[positions_BL]
      .get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    )


def check_positions(positions, max_len: int) -> None:
  """Raises ValueError if a position known while tracing is past max_len."""
  if not isinstance(positions, np.ndarray) or positions.size == 0:
    return
  if positions.min() < 0 or positions.max() >= max_len:
    raise ValueError(
      f'positions {positions.min()}..{positions.max()} do not fit into '
      f'max_len = {max_len}; raise max_len or shorten the text'
    )


POSITIONS: dict[str, type[Position]] = {
  'none': NoPosition,
  'sinusoidal': Sinusoidal,
  'learned': Learned,
}
