"""Biases of distance that depend on the text: GRAPE-A, GRAPE-AP, Inkling."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.order import later_sum
from selfattn.positions.angles import angles, without_turns
from selfattn.positions.biases import slopes
from selfattn.positions.contract import (
  Position,
  distances,
  require,
  require_one_of,
)
from selfattn.positions.distances import distance_scores

GATES = ('query', 'key', 'both')


@dataclasses.dataclass(frozen=True)
class GrapeA(Position):
  """Gated GRAPE-A (Zhang et al. 2025, and their code): slopes from the text.

  The bias is -|d| w_h s_h (softplus(a_h q_i / K^1/2) + softplus(b_h k_j /
  K^1/2)), s_h the slope of `alibi`, w_h > 0, and a_h and b_h of length 1; or
  that of one of the two gates. Without a bound on distances, later keys of
  bidirectional encoders are our extension.

  Attributes:
    gate: which of the two a slope reads: 'query', 'key' or 'both'.
  """

  gate: str = 'both'

  per_layer = True
  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require_one_of(GATES, 'gate', self.gate)

  def init(self, key):
    """`scale` (H,), softplus^-1(w) for w = 1; `query`, `key`: (H, K)."""
    sides = GATES[:2] if self.gate == 'both' else (self.gate,)
    shape = (self.num_heads, self.head_dim)
    keys = jax.random.split(key, len(sides))
    vectors = (jax.random.normal(one, shape) for one in keys)
    return {'scale': jnp.full(self.num_heads, math.log(math.expm1(1)))} | {
      side: vector / self.head_dim**0.5
      for side, vector in zip(sides, vectors, strict=True)
    }

  def content(self, params, q_BLHK, k_BMHK, query, key):
    rate = 0.0
    if 'query' in params:
      rate += self._gate(params['query'], q_BLHK)[..., None]
    if 'key' in params:
      rate += self._gate(params['key'], k_BMHK)[:, :, None]
    scale_H = jax.nn.softplus(params['scale']) * jnp.asarray(
      slopes(self.num_heads), jnp.float32
    )
    far_BLM = jnp.abs(jnp.asarray(distances(query, key), jnp.float32))
    bias = -far_BLM[:, None] * scale_H[None, :, None, None] * rate
    # It is scaled with the scores.
    return bias * self.head_dim**0.5

  def _gate(self, vector_HK, x_BLHK):
    """(B, H, L)."""
    square = (vector_HK**2).sum(axis=-1, keepdims=True)
    unit_HK = vector_HK * jax.lax.rsqrt(jnp.maximum(square, 1e-12))
    x_BLHK = x_BLHK.astype(jnp.float32)
    logits = jnp.einsum('BLHK,HK->BHL', x_BLHK, unit_HK)
    return jax.nn.softplus(logits * self.head_dim**-0.5)


@dataclasses.dataclass(frozen=True)
class GrapeAp(Position):
  """Path-integral GRAPE-AP (Zhang et al. 2025, and their code).

  The bias of an earlier key j is the sum over the tokens l after it, up to the
  query i, of s_h log sigmoid(p_i . r_l / P): p = W x for each head, r_l is p_l
  over its root mean square, each pair of channels rotated by -l radians, and
  s_h the slope of `alibi`. Defined for causal encoders alone.

  Attributes:
    width: P, channels of p, an even number.
  """

  width: int = 8

  per_layer = True
  causal_only = True
  supports_real_positions = True

  def __post_init__(self):
    require(
      self.width >= 2 and self.width % 2 == 0,
      'width',
      self.width,
      'even and at least 2',
    )

  def init(self, key):
    """`kernel` (D, HP)."""
    shape = (self.embed_dim, self.num_heads * self.width)
    return {'kernel': jax.nn.initializers.lecun_normal()(key, shape)}

  def state(self, params, x_BLD, tokens):
    """`vectors`, p (B, L, H, P); `is_token`, 1 or 0 at padding, (B, L)."""
    p_BLN = x_BLD.astype(jnp.float32) @ params['kernel']
    is_token = jnp.ones(x_BLD.shape[:2])
    if tokens.padding_mask is not None:
      is_token = is_token * jnp.asarray(tokens.padding_mask)
      p_BLN = jnp.where(is_token[..., None] > 0, p_BLN, 0.0)
    vectors = p_BLN.reshape(*p_BLN.shape[:2], self.num_heads, self.width)
    return {'vectors': vectors, 'is_token': is_token}

  def bias(self, params, query, key):
    steps = jnp.einsum(
      'BLHP,BMHP->BHLM', query.state['vectors'], self._turned(key)
    )
    steps = jax.nn.log_sigmoid(steps / self.width)
    steps *= jnp.asarray(slopes(self.num_heads), jnp.float32)[
      None, :, None, None
    ]
    until_BLM = jnp.asarray(key.index)[:, None] <= query.index[:, :, None]
    if query.segments is not None and key.segments is not None:
      until_BLM &= key.segments[:, None] == query.segments[:, :, None]
    until_BLM = until_BLM & (key.state['is_token'][:, None] > 0)
    return later_sum(jnp.where(until_BLM[:, None], steps, 0.0), key.index)

  def _turned(self, tokens):
    p_BMHP = tokens.state['vectors']
    mean = (p_BMHP**2).mean(axis=-1, keepdims=True)
    # The smallest difference from 1 in float32, as in PyTorch.
    p_BMHP = p_BMHP * jax.lax.rsqrt(mean + jnp.finfo(jnp.float32).eps)
    angle = without_turns(angles(tokens.positions, np.ones(1)))[..., None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(p_BMHP, 2, axis=-1)
    return jnp.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1)


@dataclasses.dataclass(frozen=True)
class Inkling(Position):
  """A mix of learned curves of distance (Inkling, Thinking Machines 2026).

  The bias is w_h(x_i) . c[i - j], w a linear function of the query's vector for
  each head and c[n] the values of all curves at distance n; 0 from
  max_distance on. There is no paper: this is the relative basis of
  x-transformers, whose form for images has, as here, later keys in
  bidirectional encoders.

  Attributes:
    num_curves: number of curves.
    max_distance: distance from which on the bias is 0.
    init_std: standard deviation of the curves at initialisation.
  """

  num_curves: int = 16
  max_distance: int = 1024
  init_std: float = 0.02

  per_layer = True
  is_relative = True

  def __post_init__(self):
    for option in ('num_curves', 'max_distance'):
      value = getattr(self, option)
      require(value >= 1, option, value, 'at least 1')
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  def init(self, key):
    """`kernel` (D, HC), `bias` (HC,), and `table`, (max_distance, C), from 0 to
    the farthest earlier key; then, of later ones, from 1 to the farthest."""
    keys = jax.random.split(key)
    lecun = jax.nn.initializers.lecun_normal()
    width = self.num_heads * self.num_curves
    shape = (self.num_rows, self.num_curves)
    return {
      'kernel': lecun(keys[0], (self.embed_dim, width)),
      'bias': jnp.zeros(width),
      'table': self.init_std * jax.random.normal(keys[1], shape),
    }

  def state(self, params, x_BLD, tokens):
    """The weights of the curves, float32 (B, L, H, C), 0 at padding."""
    w_BLN = x_BLD.astype(jnp.float32) @ params['kernel']
    w_BLN += params['bias'][None, None]
    if tokens.padding_mask is not None:
      mask = jnp.asarray(tokens.padding_mask)[..., None]
      w_BLN = jnp.where(mask, w_BLN, 0.0)
    return w_BLN.reshape(*w_BLN.shape[:2], self.num_heads, self.num_curves)

  def bias(self, params, query, key):
    # The last row is of the distances without a curve.
    table = jnp.pad(params['table'], ((0, 1), (0, 0)))
    return distance_scores(
      query.state, table, self.index, query, key, self.causal
    )

  @property
  def num_rows(self) -> int:
    """Number of distances with a row of the table each."""
    return self.max_distance * (1 if self.causal else 2) - (not self.causal)

  def index(self, distance):
    """Row of each distance, of any shape; num_rows: it has none."""
    xp = np if isinstance(distance, np.ndarray) else jnp
    last = self.max_distance - 1
    row = xp.where(distance > 0, distance + last, -distance)
    is_near = (-last <= distance) & (distance <= (0 if self.causal else last))
    return xp.where(is_near, row, self.num_rows)
