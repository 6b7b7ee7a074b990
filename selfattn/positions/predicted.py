"""Rotary positions that a layer reads from its tokens: RePo."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles, without_turns
from selfattn.positions.contract import Position, require
from selfattn.positions.rotary import turned


@dataclasses.dataclass(frozen=True)
class RePo(Position):
  """Context re-positioning (Li et al. 2025, and their code).

  Each head of the later layers rotates a token x as `rotary` does at position
  z = w (silu(A x) * (B x)), a real number, w a vector of the head; A and B map
  to an eighth of the width. The first layers rotate as `rotary` does.

  Attributes:
    start: share of the layers that are the first ones, rounded: 5 of 16, as in
      the paper, and 1 of 2. Without any, the tokens of a bidirectional encoder
      have no order.
    base: base of the angles.
  """

  start: float = 1 / 3
  base: float = 10_000.0

  per_layer = True
  is_relative = True
  turns_pairs = True
  supports_real_positions = True

  def __post_init__(self):
    super().__post_init__()
    require(0 <= self.start <= 1, 'start', self.start, 'from 0 to 1')
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def init(self, key):
    """`gate` and `content`: `kernel` (D, D/8); `out`: `kernel` (D/8, H)."""
    lecun = jax.nn.initializers.lecun_normal()
    width = max(self.embed_dim // 8, 1)
    shapes = {
      'gate': (self.embed_dim, width),
      'content': (self.embed_dim, width),
      'out': (width, self.num_heads),
    }
    keys = jax.random.split(key, len(shapes))
    return {
      name: {'kernel': lecun(one, shape)}
      for one, (name, shape) in zip(keys, shapes.items(), strict=True)
    }

  def state(self, params, x_BLD, tokens):
    """z, float32 (B, L, H), 0 at padding."""
    gate, content, out = (
      params[name]['kernel'] for name in ('gate', 'content', 'out')
    )
    x_BLD = x_BLD.astype(jnp.float32)
    z_BLH = (jax.nn.silu(x_BLD @ gate) * (x_BLD @ content)) @ out
    if tokens.padding_mask is None:
      return z_BLH
    return jnp.where(jnp.asarray(tokens.padding_mask)[..., None], z_BLH, 0.0)

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    k_BMHK = jnp.repeat(k_BMGK, self.num_heads // k_BMGK.shape[2], axis=2)
    return self._turned(q_BLHK, query), self._turned(k_BMHK, key)

  def _turned(self, x_BLHK, tokens):
    count = self.head_dim // 2
    rates_R = self.base ** (-np.arange(count) / count)
    reads = self.layer.value(
      lambda n: n >= round(self.start * self.layer.count)
    )
    by_index = without_turns(angles(tokens.positions, rates_R))[:, :, None]
    by_text = tokens.state[..., None] * jnp.float32(rates_R)[None, None, None]
    return turned(x_BLHK, jnp.where(reads > 0, by_text, by_index))
