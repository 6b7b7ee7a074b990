"""Norms of vectors, chosen by name.

'layer' subtracts the mean and divides by the standard deviation (Ba et al.
2016); 'rms' divides by the root mean square alone (Zhang and Sennrich 2019).
Both multiply by a scale, and 'layer' adds a bias. A suffix says what differs:

  plain      neither a scale nor a bias
  unbiased   a scale without a bias
  offset     multiplies by 1 + scale; the scale is 0 at initialisation
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp


class Offset(nn.Module):
  """A norm whose scale is stored without the 1 that is added to it.

  Attributes:
    centers: whether the mean is subtracted, and a bias added.
    epsilon: added to the variance or the mean square.
    dtype: of the result; None: that of the vectors.
  """

  centers: bool
  epsilon: float = 1e-6
  dtype: jnp.dtype | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalised vectors, of the shape of `x`."""
    options = {'epsilon': self.epsilon, 'use_scale': False}
    options |= {'use_bias': False} if self.centers else {}
    norm = nn.LayerNorm if self.centers else nn.RMSNorm
    dtype, zeros = self.dtype or x.dtype, nn.initializers.zeros
    shape, axes = x.shape[-1:], (1,) * (x.ndim - 1)
    scale = self.param('scale', zeros, shape, jnp.float32).reshape(*axes, -1)
    x = norm(dtype=jnp.float32, **options)(x) * (1 + scale)
    if self.centers:
      bias = self.param('bias', zeros, shape, jnp.float32)
      x += bias.reshape(*axes, -1)
    return x.astype(dtype)


# Each is called with `epsilon`, `dtype` and `name`.
NORMS: dict[str, Callable[..., nn.Module]] = {
  'layer': nn.LayerNorm,
  'layer_unbiased': functools.partial(nn.LayerNorm, use_bias=False),
  'layer_plain': functools.partial(
    nn.LayerNorm, use_bias=False, use_scale=False
  ),
  'layer_offset': functools.partial(Offset, True),
  'rms': nn.RMSNorm,
  'rms_plain': functools.partial(nn.RMSNorm, use_scale=False),
  'rms_offset': functools.partial(Offset, False),
}
