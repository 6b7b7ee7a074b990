"""Biases that are a small network of the distance."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.positions.biases import Bias, by_head
from selfattn.positions.contract import distances, require


@dataclasses.dataclass(frozen=True)
class Fire(Bias):
  """A small network of the relative distance (Li et al. 2024, equation 5).

  f(psi(i - j) / psi(max(threshold, i))) for a query i and keys j <= i, where
  psi(x) = log(1 + |c x|), f has one hidden layer of relu, and c and the
  threshold are learned. Our extension to keys on both sides: the quotient has
  the sign of i - j, and its denominator is psi(max(threshold, i, j)); for
  j <= i this is the same. Depends on positions, not only on their difference.

  Attributes:
    hidden_dim: width of the hidden layer of f.
    threshold: the threshold at initialisation; a quarter of the longest text,
      as in the paper, where that is 512 of 2048. A larger one flattens the bias
      of short texts.
    shared: whether all layers share one network, or have one each.
  """

  hidden_dim: int = 32
  threshold: float = 16.0
  shared: bool = False

  supports_real_positions = True

  def __post_init__(self):
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')
    require(self.threshold > 0, 'threshold', self.threshold, 'greater than 0')

  @property
  def per_layer(self):
    """Whether each layer has a network of its own."""
    return not self.shared

  def init(self, key):
    network = _init_network(key, self.hidden_dim, self.num_heads)
    return network | {
      'c': jnp.full((1,), 0.1),
      'threshold_scale': jnp.ones((1,)),
    }

  def bias(self, params, query, key):
    past = -jnp.asarray(distances(query, key)).astype(jnp.float32)
    c, scale = params['c'][None, None], params['threshold_scale'][None, None]
    last = jnp.maximum(query.positions[:, :, None], key.positions[:, None, :])
    last = jnp.maximum(last.astype(jnp.float32), abs(scale * self.threshold))
    return _network(params, jnp.sign(past) * _quotient(c, abs(past), last))


def _quotient(c, size, last):
  """log(1 + |c| size) / log(1 + |c| last), and size / last where c is 0.

  At c = 0, the derivative with respect to c is that of positive c, not 0.
  """
  c = jnp.where(c < 0, -c, c)
  last = jnp.where(last > 0, last, 1.0)  # where size is 0, and so the quotient
  is_flat = c * last < 0.01
  steep = jnp.where(is_flat, 1.0, c)
  quotient = jnp.log1p(steep * size) / jnp.log1p(steep * last)

  def flat(x):
    return 1 - x / 2 + x**2 / 3 - x**3 / 4  # log(1 + x) / x

  limit = size / last * flat(c * size) / flat(c * last)
  return jnp.where(is_flat, limit, quotient)


@dataclasses.dataclass(frozen=True)
class Continuous(Bias):
  """A small network of the signed log distance, sign(d) log(1 + |d|).

  The continuous relative position bias of Liu et al. 2022 (Swin V2, equations 3
  and 4), in one dimension.

  Attributes:
    hidden_dim: width of its hidden layer.
    shared: whether all layers share one network, or have one each.
  """

  hidden_dim: int = 32
  shared: bool = True

  is_relative = True
  supports_real_positions = True

  def __post_init__(self):
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')

  @property
  def per_layer(self):
    """Whether each layer has a network of its own."""
    return not self.shared

  def init(self, key):
    return _init_network(key, self.hidden_dim, self.num_heads)

  def bias(self, params, query, key):
    distance = jnp.asarray(distances(query, key)).astype(jnp.float32)
    return _network(params, jnp.sign(distance) * jnp.log1p(abs(distance)))


def _init_network(key, hidden_dim, num_heads):
  """Parameters: one input, a hidden layer, a scalar per head."""
  key_in, key_out = jax.random.split(key)
  init = jax.nn.initializers.lecun_normal()
  return {
    'in_kernel': init(key_in, (1, hidden_dim)),
    'in_bias': jnp.zeros(hidden_dim),
    'out_kernel': init(key_out, (hidden_dim, num_heads)),
    'out_bias': jnp.zeros(num_heads),
  }


def _network(params, x_BLM):
  """relu network from (B, L, M) to (B, H, L, M)."""
  lead = (None,) * x_BLM.ndim
  hidden = x_BLM[..., None] * params['in_kernel'].reshape(1, 1, 1, -1)
  hidden = jax.nn.relu(hidden + params['in_bias'][*lead])
  out = jnp.einsum('BLMN,NH->BHLM', hidden, params['out_kernel'])
  return out + by_head(params['out_bias'])
