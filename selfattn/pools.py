"""Pools: token vectors in, one vector out, chosen by name."""

from __future__ import annotations

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.positions.contract import require
from selfattn.simplex import masked_softmax


class Pool(nn.Module):
  """The contract: `pool(x_BLD, padding_mask_BL)` returns (B, P).

  The result is float32, does not depend on vectors at padding, and is zero for
  an empty text. Fields are options, each with a default.

  Attributes:
    uses_cls: whether it reads the vector of [CLS], a learned vector that is put
      before the tokens; the encoder has to let it attend to them.

  Examples:
    >>> class Sum(selfattn.Pool):
    ...   def __call__(self, x_BLD, padding_mask_BL):
    ...     return jnp.where(padding_mask_BL[..., None], x_BLD, 0).sum(axis=1)
    >>> Sum().apply({}, jnp.ones((2, 5, 12)), jnp.ones((2, 5), bool)).shape
    (2, 12)
  """

  uses_cls: ClassVar[bool] = False

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""

  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """The vectors of the texts.

    Args:
      x_BLD: those of the tokens.
      padding_mask_BL: boolean, False at padding.
    """
    raise NotImplementedError


class Mean(Pool):
  """Mean over tokens.

  Attributes:
    hidden_dim: width of a dense layer with GELU whose outputs are averaged, as
      the `late` pooling of EuroBERT has it; 0: the vectors are.
  """

  hidden_dim: int = 0

  def check(self):
    require(self.hidden_dim >= 0, 'hidden_dim', self.hidden_dim, 'at least 0')

  @nn.compact
  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, D), or (B, hidden_dim)."""
    if self.hidden_dim:
      x_BLD = _without_padding(x_BLD, padding_mask_BL)
      h_BLS = nn.Dense(self.hidden_dim, name='dense')(x_BLD)
      x_BLD = nn.gelu(h_BLS, approximate=False)
    x_BLD = _without_padding(x_BLD, padding_mask_BL)
    count_B1 = padding_mask_BL.sum(axis=1, keepdims=True)
    return x_BLD.sum(axis=1) / jnp.maximum(count_B1, 1)


class Max(Pool):
  """Maximum over tokens."""

  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, D)."""
    lowest = jnp.finfo(jnp.float32).min
    x_BLD = jnp.where(
      padding_mask_BL[..., None], x_BLD.astype(jnp.float32), lowest
    )
    if not x_BLD.shape[1]:
      return jnp.zeros((x_BLD.shape[0], x_BLD.shape[2]), jnp.float32)
    # The gradient of max compares x with its maximum. XLA may compute x once
    # for each side, with another rounding, so that none is equal: 0/0.
    index_B1D = x_BLD.argmax(axis=1, keepdims=True)
    max_BD = jnp.take_along_axis(x_BLD, index_B1D, axis=1)[:, 0]
    return jnp.where(padding_mask_BL.any(axis=1)[:, None], max_BD, 0.0)


class Cls(Pool):
  """The vector of [CLS], which is the first."""

  uses_cls = True

  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, D); of an empty text, the output of the encoder for [CLS] alone."""
    del padding_mask_BL
    # A sum of one vector, or of none.
    return x_BLD[:, :1].astype(jnp.float32).sum(axis=1)


class First(Pool):
  """The vector of the first token, such as the [CLS] of a tokenizer."""

  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, D)."""
    count_BL = jnp.cumsum(padding_mask_BL, axis=1)
    return _vector_where(x_BLD, padding_mask_BL & (count_BL == 1))


class Last(Pool):
  """The vector of the last token, which has seen all in a causal encoder."""

  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, D)."""
    count_BL = jnp.cumsum(padding_mask_BL[:, ::-1], axis=1)[:, ::-1]
    return _vector_where(x_BLD, padding_mask_BL & (count_BL == 1))


def _vector_where(x_BLD: jax.Array, is_chosen_BL: jax.Array) -> jax.Array:
  """The vector of each text that is chosen, (B, D), or zero without one."""
  return _without_padding(x_BLD, is_chosen_BL).sum(axis=1)


class Attentive(Pool):
  """Structured self-attention (Lin et al. 2017, equations 5 and 6).

  A = softmax(W_s2 tanh(W_s1 H^T)), one row of weights per hop; the result is
  the rows of A H, concatenated. The penalty |A A^T - I|^2 of the paper is left
  out. Sows A, float32 (B, N, L), as `pool_weights`.

  Attributes:
    hidden_dim: width of the hidden layer, rows of W_s1.
    num_hops: rows of weights N, those of W_s2; their vectors are concatenated.
  """

  hidden_dim: int = 64
  num_hops: int = 4

  def check(self):
    for option in ('hidden_dim', 'num_hops'):
      value = getattr(self, option)
      require(value >= 1, option, value, 'at least 1')

  @nn.compact
  def __call__(self, x_BLD: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
    """(B, ND)."""
    x_BLD = _without_padding(x_BLD, padding_mask_BL)
    h_BLS = nn.tanh(nn.Dense(self.hidden_dim, use_bias=False, name='in')(x_BLD))
    scores_BLN = nn.Dense(self.num_hops, use_bias=False, name='out')(h_BLS)
    weights_BNL = masked_softmax(
      scores_BLN.swapaxes(1, 2), padding_mask_BL[:, None]
    )
    self.sow('intermediates', 'pool_weights', weights_BNL)
    pooled_BND = weights_BNL @ x_BLD
    B, N, D = pooled_BND.shape
    return pooled_BND.reshape(B, N * D)


def _without_padding(x_BLD, padding_mask_BL):
  """Vectors in float32, zero at padding."""
  return jnp.where(padding_mask_BL[..., None], x_BLD.astype(jnp.float32), 0.0)


POOLS: dict[str, type[Pool]] = {
  'mean': Mean,
  'max': Max,
  'cls': Cls,
  'first': First,
  'last': Last,
  'attentive': Attentive,
}
"""Pools by name.

Examples:
  >>> x_BLD, padding_mask_BL = jnp.ones((2, 5, 12)), jnp.ones((2, 5), bool)
  >>> selfattn.POOLS['max']().apply({}, x_BLD, padding_mask_BL).shape
  (2, 12)
"""
