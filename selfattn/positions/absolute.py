"""Methods that add a vector to every token."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import Position, check_positions, require

LAYOUTS = ('interleaved', 'concatenated', 'tensor2tensor')


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Position):
  """Sines and cosines (Vaswani et al. 2017, section 3.5).

  The angle of pair j at position p is p / base^(2j/D). Three layouts are in
  use, and they are not the same encoding:

    interleaved    sin, cos, sin, cos, ... as in the paper; an odd D drops the
                   last cosine
    concatenated   all sines, then all cosines: the same up to the order of
                   the columns
    tensor2tensor  concatenated, with exponent j / (D/2 - 1) instead of
                   2j / D, and a zero for the last column of an odd D
  """

  layout: str = 'interleaved'
  base: float = 10_000.0

  is_relative = True

  def __post_init__(self):
    require(self.layout in LAYOUTS, 'layout', self.layout, f'one of {LAYOUTS}')
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def embed(self, params, positions_BL):
    del params
    angle = angles(positions_BL, self._rates())
    xp = np if isinstance(angle, np.ndarray) else jnp
    sin, cos = xp.sin(angle), xp.cos(angle)
    if self.layout == 'interleaved':
      pairs = xp.stack([sin, cos], axis=-1)
      P_BLD = pairs.reshape(*angle.shape[:-1], -1)[..., : self.embed_dim]
    elif self.layout == 'concatenated':
      P_BLD = xp.concatenate([sin, cos], axis=-1)[..., : self.embed_dim]
    else:
      missing = self.embed_dim - 2 * angle.shape[-1]
      P_BLD = xp.concatenate([sin, cos], axis=-1)
      P_BLD = xp.pad(P_BLD, ((0, 0), (0, 0), (0, missing)))
    return jnp.asarray(P_BLD, jnp.float32)

  def _rates(self):
    if self.layout == 'tensor2tensor':
      count = self.embed_dim // 2
      return self.base ** (-np.arange(count) / max(count - 1, 1))
    return self.base ** (-np.arange(0, self.embed_dim, 2) / self.embed_dim)


@dataclasses.dataclass(frozen=True)
class Learned(Position):
  """A row of a table for each position (Gehring et al. 2017, section 3.1).

  A position past the table is an error where it is known while tracing, and
  NaN where it is not: never the last row. With stretch s > 1, position p reads
  the table at p / s, between two rows on the straight line that joins them, so
  that a table trained on short texts serves texts s times as long.
  """

  max_len: int = 512
  init_std: float = 0.02
  stretch: float = 1.0

  is_relative = True

  def __post_init__(self):
    require(self.max_len >= 1, 'max_len', self.max_len, 'at least 1')
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')
    require(self.stretch >= 1, 'stretch', self.stretch, 'at least 1')

  def init(self, key):
    shape = (self.max_len, self.embed_dim)
    return {'table': jax.random.normal(key, shape) * self.init_std}

  def max_length(self):
    return int((self.max_len - 1) * self.stretch) + 1

  def embed(self, params, positions_BL):
    check_positions(positions_BL, self.max_length())
    if self.stretch == 1:
      return self._rows(params, positions_BL)
    place = positions_BL / self.stretch
    below = jnp.floor(place).astype(jnp.int32)
    part = (place - below)[..., None]
    above = jnp.minimum(below + 1, self.max_len - 1)
    rows_below, rows_above = (
      self._rows(params, below),
      self._rows(params, above),
    )
    is_inside = (positions_BL < self.max_length())[..., None]
    mixed = rows_below * (1 - part) + rows_above * part
    return jnp.where(is_inside, mixed, jnp.nan)

  def _rows(self, params, index):
    return (
      params['table']
      .at[index]
      .get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    )
