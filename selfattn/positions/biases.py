"""Methods that add a bias, a function of positions, to every score."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.angles import angles
from selfattn.positions.contract import (
  Position,
  distances,
  require,
  require_one_of,
)


@dataclasses.dataclass(frozen=True)
class Bias(Position):
  """A method with a bias, which is also what it sows as `P`."""

  def encoding(self, params, tokens):
    """The bias of a sequence that attends to itself: (1 or B, H, L, L)."""
    return self.bias(params, tokens, tokens)


@dataclasses.dataclass(frozen=True)
class T5(Bias):
  """A scalar per head and bucket of distances (Raffel et al. 2020, 2.1).

  Half of the buckets of a side have one distance each; those of the other half
  grow logarithmically; distances from max_distance on share the last one. Each
  side has half of the buckets; in a causal encoder, earlier keys have all.

  T5 does not scale scores. Here they are scaled by K^-1/2, and the bias is
  added after that, so that it has the same effect.

  Attributes:
    num_buckets: rows of the table.
    max_distance: distance from which on all share the last bucket of a side.
    shared: whether all layers share one table, as in T5, or have one each.
    init_std: standard deviation at initialisation. As large as a score: heads
      that begin with equal biases are slow to break symmetry.
  """

  num_buckets: int = 32
  max_distance: int = 128
  shared: bool = True
  init_std: float = 1.0

  is_relative = True

  def __post_init__(self):
    fewest = 2 if self.causal else 4
    require(
      self.num_buckets >= fewest and self.num_buckets % fewest == 0,
      'num_buckets',
      self.num_buckets,
      f'a positive multiple of {fewest}',
    )
    require(
      self.max_distance > self._exact,
      'max_distance',
      self.max_distance,
      f'greater than {self._exact}, which have a bucket each',
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  @property
  def per_layer(self):
    """Whether each layer has a table of its own."""
    return not self.shared

  @property
  def _one_side(self) -> int:
    return self.num_buckets if self.causal else self.num_buckets // 2

  @property
  def _exact(self) -> int:
    return self._one_side // 2

  def init(self, key):
    shape = (self.num_buckets, self.num_heads)
    return {'table': self.init_std * jax.random.normal(key, shape)}

  def bounds(self) -> np.ndarray:
    """Smallest distance of each bucket of a side, but for the first.

    Exact, in integers: bucket b = exact + t begins at the first n for which
    (n / exact)^(side - exact) >= (max_distance / exact)^t. Logarithms in
    float32 differ between devices.
    """
    exact, grown = self._exact, self._one_side - self._exact
    bounds = list(range(1, exact + 1))
    n = exact
    for t in range(1, grown):
      while n**grown * exact**t < self.max_distance**t * exact**grown:
        n += 1
      bounds.append(n)
    return np.array(bounds)

  def buckets(self, distance):
    """Bucket of each distance key - query; any shape of integers."""
    size = -distance if self.causal else abs(distance)
    bounds = self.bounds().reshape(*(1,) * distance.ndim, -1)
    bucket = (jnp.asarray(size)[..., None] >= bounds).sum(axis=-1)
    if self.causal:
      return bucket
    return bucket + self._one_side * (distance > 0)

  def bias(self, params, query, key):
    bucket_BLM = self.buckets(distances(query, key))
    return jnp.moveaxis(params['table'][bucket_BLM], -1, 1)


VARIANTS = ('symmetric', 'asymmetric', 'learned')


@dataclasses.dataclass(frozen=True)
class Alibi(Bias):
  """A penalty linear in distance (Press et al. 2022, section 3).

  Head h subtracts m_h |key - query|; the slopes m_h are those of the paper, and
  of its code where H is not a power of two. A causal encoder with it is the
  method of the paper. In a bidirectional one:

    symmetric   equal on both sides, so that with a symmetric pool a text and
                its reverse have the same logits
    asymmetric  half a slope less for earlier keys (Ruoss et al. 2023)
    learned     a slope per head and side, initialised to those of the paper

  Attributes:
    variant: whether the two sides of a query are symmetric, asymmetric or
      learned.
    slope_scale: factor of all slopes, 1 in the paper.
  """

  variant: str = 'symmetric'
  slope_scale: float = 1.0

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require_one_of(VARIANTS, 'variant', self.variant)
    is_factor = 0 < self.slope_scale < float('inf')
    require(is_factor, 'slope_scale', self.slope_scale, 'above 0 and finite')

  def init(self, key):
    if self.variant != 'learned':
      return super().init(key)
    log_slopes = jnp.log(jnp.asarray(slopes(self.num_heads), jnp.float32))
    return {'log_left': log_slopes, 'log_right': log_slopes}

  def bias(self, params, query, key):
    bias_BHLM = self._of_the_paper(params, query, key)
    factor = self.slope_scale
    return bias_BHLM if factor == 1 else factor * bias_BHLM

  def _of_the_paper(self, params, query, key):
    distance = jnp.asarray(distances(query, key))[:, None]
    size, is_left = abs(distance), distance < 0
    if self.variant == 'learned':
      left, right = jnp.exp(params['log_left']), jnp.exp(params['log_right'])
      return -jnp.where(is_left, by_head(left), by_head(right)) * size
    penalty = size - 0.5 * is_left if self.variant == 'asymmetric' else size
    return -by_head(jnp.asarray(slopes(self.num_heads), jnp.float32)) * penalty


def slopes(num_heads: int) -> np.ndarray:
  """2^(-8h/H) for h = 1 ... H, if H is a power of two.

  Otherwise those of the power of two below H, then every other one of twice
  that power.
  """
  power = 2 ** int(np.log2(num_heads))
  exact = 2.0 ** (-8 * np.arange(1, power + 1) / power)
  between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
  return np.concatenate([exact, between[: num_heads - power]])


def by_head(x_H: jax.Array) -> jax.Array:
  """A scalar per head, (H,), as (1, H, 1, 1)."""
  return x_H[None, :, None, None]


FORMS = ('log', 'power')
# Lower bound of the parameters of KERPLE, in its authors' code.
_SMALLEST = 0.01


@dataclasses.dataclass(frozen=True)
class Kerple(Bias):
  """Kernels of the distance (Chi et al. 2022, equations 3 and 4).

  'log' is -r1 log(1 + r2 |d|), 'power' is -r1 |d|^r2 with r2 at most 2, with
  r1 and r2 learned for each head and shared by all layers. The
  same on both sides of a query.

  Attributes:
    form: the kernel, a logarithm of the distance or a power.
  """

  form: str = 'log'

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require_one_of(FORMS, 'form', self.form)

  def init(self, key):
    key_1, key_2 = jax.random.split(key)
    return {
      'r1': _stratified(key_1, self.num_heads, 2.0),
      'r2': _stratified(key_2, self.num_heads, 1.0),
    }

  def bias(self, params, query, key):
    distance = jnp.asarray(distances(query, key))[:, None]
    size = abs(distance).astype(jnp.float32)
    r1 = by_head(jnp.maximum(params['r1'], _SMALLEST))
    r2 = by_head(jnp.maximum(params['r2'], _SMALLEST))
    if self.form == 'log':
      return -r1 * jnp.log1p(r2 * size)
    # The gradient of 0^r2 would be 0 log 0.
    power = jnp.where(size > 0, size, 1.0) ** jnp.minimum(r2, 2.0)
    return -r1 * jnp.where(size > 0, power, 0.0)


def _stratified(key, count, top):
  """Stratified uniform samples: one from each of `count` parts of [0, top).

  Independent samples, as the authors draw them, may be nearly equal for few
  heads, and such heads are slow to break symmetry.
  """
  key_order, key_within = jax.random.split(key)
  part = jax.random.permutation(key_order, count)
  within = jax.random.uniform(key_within, (count,))
  return jnp.maximum((part + within) * top / count, _SMALLEST)


@dataclasses.dataclass(frozen=True)
class Sandwich(Bias):
  """Products of sinusoids (Chi et al. 2023, equation 6).

  Head h adds (sum_j cos((i - j) / base^(2j/D')) - D'/2) H / 8h over the D'/2
  pairs j = 1, 2, ..., the products of sinusoids with each other: 0 at the
  query, falling as a logarithm, steeper in the first heads. Symmetric, so it
  cannot tell left from right.

  Attributes:
    num_channels: D', channels of the sinusoids.
    base: base of the angles.
  """

  num_channels: int = 128
  base: float = 10_000.0

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require(
      self.num_channels >= 2 and self.num_channels % 2 == 0,
      'num_channels',
      self.num_channels,
      'even and at least 2',
    )
    require(self.base > 1, 'base', self.base, 'greater than 1')

  def bias(self, params, query, key):
    pairs = np.arange(1, self.num_channels // 2 + 1)
    rates = self.base ** (-2 * pairs / self.num_channels)
    # A sum over pairs, one after another: no array has an axis of pairs.
    distance = distances(query, key)
    total = jnp.zeros(distance.shape, jnp.float32)
    for rate in rates:
      angle = jnp.asarray(angles(distance, rate[None])[..., 0], jnp.float32)
      total = total + jnp.cos(angle)
    compression = 8 * np.arange(1, self.num_heads + 1) / self.num_heads
    fallen = (total - len(rates))[:, None]
    return fallen / by_head(jnp.asarray(compression, jnp.float32))
