"""Rotations that are learned: positions as elements of a Lie group."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.contract import Position, require


@dataclasses.dataclass(frozen=True)
class LieRe(Position):
  """LieRE (Ostmeier et al. 2024, equations 3 and 4), along one axis.

  A query or key at position p is multiplied with exp(p A), a rotation, where A
  is skew-symmetric and learned: exp(p A)^T exp(q A) = exp((q - p) A), so that a
  score depends on the difference alone. RoPE is the case of 2 x 2 blocks with
  fixed rates.

  exp(p A) is applied as the product of exp(2^b A) over the bits b of p, so
  that no position has a matrix of its own. In float32, its phase is off by up
  to 1e-4 at position 1,000 and 1e-2 at 10^5. Positions are at least 0: a
  ValueError where they are known while tracing, and NaN where they are not.

  Attributes:
    block_dim: channels of a head that one block of A joins; 0: all.
    init_std: standard deviation of A at initialisation, times sqrt(block_dim).
  """

  block_dim: int = 0
  init_std: float = 1.0

  per_layer = True
  is_relative = True
  turns_pairs = True

  def __post_init__(self):
    super().__post_init__()
    require(
      self.block_dim == 0
      or (self.block_dim >= 2 and self.head_dim % self.block_dim == 0),
      'block_dim',
      self.block_dim,
      f'0, or at least 2 and a divisor of the {self.head_dim} channels of a '
      'head',
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  @property
  def _width(self) -> int:
    return self.block_dim or self.head_dim

  def init(self, key):
    """`generator`: (H, K/N, N(N-1)/2), the entries of A above its diagonal."""
    width = self._width
    shape = (self.num_heads, self.head_dim // width, width * (width - 1) // 2)
    std = self.init_std * width**-0.5
    return {'generator': std * jax.random.normal(key, shape)}

  def encoding(self, params, tokens):
    """Cosines, then sines, of the turns of all planes: float32 (1 or B, L, D).

    Plane by plane, from the slowest, of one block after another. Their rates
    are the eigenvalues of A, of which A^T A has the squares, each twice.
    """
    A = self._generator(params)
    squares = jnp.linalg.eigvalsh(A.swapaxes(-1, -2) @ A)[..., 1::2]
    rates = jnp.sqrt(jnp.maximum(squares, 0.0)).reshape(1, 1, -1)
    angle = jnp.asarray(tokens.positions, jnp.float32)[..., None] * rates
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)

  def _generator(self, params):
    """A: (H, K/N, N, N)."""
    entries, width = params['generator'], self._width
    upper = jnp.zeros((*entries.shape[:2], width, width), entries.dtype)
    row, column = np.triu_indices(width, 1)
    upper = upper.at[..., row, column].set(entries)
    return upper - upper.swapaxes(-1, -2)

  def rotations(self, params, count: int) -> jax.Array:
    """exp(2^b A) for b below count: float32 (count, H, K/N, N, N)."""
    first = _exponential(self._generator(params))

    def square(rotation, _):
      twice = _multiply(rotation, rotation)
      # Back towards a rotation (a Newton-Schulz step): rounding errors double
      # with every square, and would overflow.
      excess = _multiply(twice.swapaxes(-1, -2), twice)
      return 1.5 * twice - 0.5 * _multiply(twice, excess), rotation

    return jax.lax.scan(square, first, length=count)[1]

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    count = max(_num_bits(query.positions), _num_bits(key.positions))
    rotations = self.rotations(params, count)
    # Heads that share a key turn it each by its own matrix.
    shared = self.num_heads // k_BMGK.shape[2]
    k_BMHK = k_BMGK if shared == 1 else jnp.repeat(k_BMGK, shared, axis=2)
    return (
      self._turn(q_BLHK, rotations, query.positions),
      self._turn(k_BMHK, rotations, key.positions),
    )

  def _turn(self, x_BLHK, rotations, positions_BL):
    bits = (
      jnp.asarray(positions_BL)[None]
      >> jnp.arange(len(rotations))[:, None, None]
    )
    num_blocks = self.head_dim // self._width
    blocks = x_BLHK.astype(jnp.float32).reshape(
      *x_BLHK.shape[:3], num_blocks, self._width
    )

    def step(x, now):
      rotation, is_set_BL = now
      turned = jnp.einsum('HNij,BLHNj->BLHNi', rotation, x, precision='highest')
      return jnp.where(is_set_BL[..., None, None, None], turned, x), None

    is_supported = jnp.asarray(positions_BL >= 0)[..., None, None, None]
    blocks = jnp.where(is_supported, blocks, jnp.nan)
    blocks, _ = jax.lax.scan(step, blocks, (rotations, bits % 2 == 1))
    return blocks.reshape(x_BLHK.shape).astype(x_BLHK.dtype)


def _exponential(A):
  """exp(A), by 18 terms of its series for A / 8, squared three times.

  Accurate for norms up to 32, in radians per position. jax.scipy.linalg.expm
  would solve equations in every step.
  """
  A = A / 8
  eye = jnp.eye(A.shape[-1], dtype=A.dtype)
  result = term = jnp.broadcast_to(eye, A.shape)
  for n in range(1, 19):
    term = _multiply(term, A) / n
    result = result + term
  for _ in range(3):
    result = _multiply(result, result)
  return result


def _multiply(a, b):
  return jnp.matmul(a, b, precision='highest')


def _num_bits(positions_BL) -> int:
  """Bits of the largest position; 31 where it is traced."""
  if isinstance(positions_BL, np.ndarray):
    first = int(positions_BL.min(initial=0))
    if first < 0:
      raise ValueError(f'lie_re supports positions from 0 on, not {first}')
    return max(int(positions_BL.max(initial=0)).bit_length(), 1)
  return 31
