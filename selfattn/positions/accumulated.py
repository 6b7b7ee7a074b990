"""Rotations by phases that accumulate along the text, token by token.

The phase of a token is a sum over the tokens up to it of what each one's vector
adds, so that the distance between two tokens is measured by what is between
them. Later and earlier keys differ by the sign of the angle, so the methods are
defined for bidirectional encoders, too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.order import prefix_sums
from selfattn.positions.contract import Position, require
from selfattn.positions.local import windows
from selfattn.positions.rotary import turned


@dataclasses.dataclass(frozen=True)
class Accumulated(Position):
  """A method whose `steps` are what each token adds to the phases.

  Channels j and j + R of a head, R = K/2 rounded down, are a pair. Phases are
  sums in float32, with an error of 1e-7 of the sum over all texts of a row.

  Attributes:
    steps_itself: whether the phase of a token has its own step.
  """

  steps_itself: ClassVar[bool] = True

  per_layer = True
  is_relative = True
  turns_pairs = True
  uses_positions = False

  @property
  def num_pairs(self) -> int:
    """R."""
    return self.head_dim // 2

  def steps(self, params, x_BLD: jax.Array, tokens) -> jax.Array:
    """Radians that tokens add to the pairs, (B, L, H or 1, R)."""
    raise NotImplementedError

  def state(self, params, x_BLD, tokens):
    """The steps, float32, 0 at padding."""
    steps_BLHR = self.steps(params, x_BLD.astype(jnp.float32), tokens)
    if tokens.padding_mask is None:
      return steps_BLHR
    mask = jnp.asarray(tokens.padding_mask)[..., None, None]
    return jnp.where(mask, steps_BLHR, 0.0)

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    shape = key.state.shape[2:]
    steps_BMN = key.state.reshape(*key.state.shape[:2], -1)
    of_query, of_key = (
      sums.reshape(*sums.shape[:2], *shape)
      for sums in prefix_sums(steps_BMN, query, key)
    )
    if not self.steps_itself:
      of_query, of_key = of_query - query.state, of_key - key.state
    if shape[0] > 1:  # Every query head turns the keys its own way.
      k_BMGK = jnp.repeat(k_BMGK, shape[0] // k_BMGK.shape[2], axis=2)
    return turned(q_BLHK, of_query), turned(k_BMGK, of_key)

  def _rates(self, base: float) -> np.ndarray:
    """The rates of `rotary`: base^(-n/R) of pair n."""
    return base ** (-np.arange(self.num_pairs) / self.num_pairs)


@dataclasses.dataclass(frozen=True)
class Selective(Accumulated):
  """Selective RoPE (Movahedi et al. 2025, and their code).

  A token adds base^(-n/R) phi_n to pair n of a head. phi is linear in the
  vector, of which the part of each head has length 1, through a matrix of a low
  rank and a convolution over the last tokens.

  Attributes:
    rank: of the matrix.
    kernel_size: tokens that the convolution reads, up to each one, neighbours
      in the row, whatever their index; 1: none, and a cache is supported.
    gated: whether a sigmoid of the vector scales the steps of each head.
    base: base of the rates.
  """

  rank: int = 16
  kernel_size: int = 4
  gated: bool = False
  base: float = 500_000.0

  def __post_init__(self):
    super().__post_init__()
    require(self.rank >= 1, 'rank', self.rank, 'at least 1')
    require(
      self.kernel_size >= 1, 'kernel_size', self.kernel_size, 'at least 1'
    )
    require(self.base > 1, 'base', self.base, 'greater than 1')

  @property
  def supports_cache(self):
    """Whether a step reads its own token alone."""
    return self.kernel_size == 1

  def init(self, key):
    """`down` and `up`: `kernel` (D, rank) and (rank, H R); `filter` (T, H R)
    from the farthest before; `gate`: `kernel` (D, H) and `bias` (H,)."""
    keys = jax.random.split(key, 4)
    lecun = jax.nn.initializers.lecun_normal()
    width = self.num_heads * self.num_pairs
    params: dict[str, Any] = {
      'down': {'kernel': lecun(keys[0], (self.embed_dim, self.rank))},
      'up': {'kernel': lecun(keys[1], (self.rank, width))},
    }
    if self.kernel_size > 1:
      params['filter'] = lecun(keys[2], (self.kernel_size, width))
    if self.gated:
      kernel = lecun(keys[3], (self.embed_dim, self.num_heads))
      params['gate'] = {'kernel': kernel, 'bias': jnp.zeros(self.num_heads)}
    return params

  def steps(self, params, x_BLD, tokens):
    B, L, D = x_BLD.shape
    parts = x_BLD.reshape(B, L, D // self.head_dim, self.head_dim)
    square = (parts**2).sum(axis=-1, keepdims=True)
    x_BLD = (parts * jax.lax.rsqrt(square + 1e-6)).reshape(B, L, D)
    phi_BLN = x_BLD @ params['down']['kernel'] @ params['up']['kernel']
    if self.kernel_size > 1:
      near_BLTN, _ = windows(phi_BLN, tokens, self.kernel_size - 1, 0)
      phi_BLN = jnp.einsum('BLTN,TN->BLN', near_BLTN, params['filter'])
    phi_BLHR = phi_BLN.reshape(B, L, self.num_heads, self.num_pairs)
    if self.gated:
      gate = params['gate']
      gate_BLH = x_BLD @ gate['kernel'] + gate['bias'][None, None]
      phi_BLHR = phi_BLHR * jax.nn.sigmoid(gate_BLH)[..., None]
    rates_R = jnp.asarray(self._rates(self.base), jnp.float32)
    return phi_BLHR * rates_R[None, None, None]


@dataclasses.dataclass(frozen=True)
class Grape(Accumulated):
  """Contextual GRAPE-M (Zhang et al. 2025, and their code).

  A token adds -sigmoid((w x + b) / 16) f_n to pair n, for the tokens after it,
  with frequencies f that all heads share, learned from base^(-n/R) on.

  Attributes:
    by_head: whether each head has its own w and b.
    base: base of the frequencies at initialisation.
  """

  by_head: bool = False
  base: float = 10_000.0

  steps_itself = False

  def __post_init__(self):
    super().__post_init__()
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def init(self, key):
    """`kernel` (D, H or 1), 0; `bias`, softplus^-1(1e-3); `log_rates` (R,)."""
    del key
    count = self.num_heads if self.by_head else 1
    return {
      'kernel': jnp.zeros((self.embed_dim, count)),
      'bias': jnp.full(count, math.log(math.expm1(1e-3))),
      'log_rates': jnp.log(jnp.asarray(self._rates(self.base), jnp.float32)),
    }

  def steps(self, params, x_BLD, tokens):
    logits = x_BLD @ params['kernel'] + params['bias'][None, None]
    step_BLH = jax.nn.sigmoid(logits / 16)
    rates_R = jnp.exp(params['log_rates'])
    return -step_BLH[..., None] * rates_R[None, None, None]


@dataclasses.dataclass(frozen=True)
class Carope(Accumulated):
  """CARoPE: rates that depend on tokens (Veisi et al. 2025).

  A token adds f^n to pair n of a head, n from 0, with f = 1 / (1 + softplus(w x
  + b)) of the head; the abstract has the accumulation and bounded rates of each
  head, and b, which makes it `rotary` of the order of tokens for w = 0, where
  training begins, is ours.

  Attributes:
    base: that of `rotary` at initialisation.
  """

  base: float = 10_000.0

  def __post_init__(self):
    super().__post_init__()
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def init(self, key):
    """`kernel` (D, H), 0; `bias` (H,)."""
    del key
    # softplus(b) = base^(1/R) - 1 = x; its inverse, without an overflow.
    x = self.base ** (1 / self.num_pairs) - 1
    bias = x + math.log(-math.expm1(-x))
    return {
      'kernel': jnp.zeros((self.embed_dim, self.num_heads)),
      'bias': jnp.full(self.num_heads, bias),
    }

  def steps(self, params, x_BLD, tokens):
    logits = x_BLD @ params['kernel'] + params['bias'][None, None]
    rate_BLH = 1 / (1 + jax.nn.softplus(logits))
    powers_R = jnp.arange(self.num_pairs, dtype=jnp.float32)
    return rate_BLH[..., None] ** powers_R[None, None, None]
