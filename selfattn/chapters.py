"""The names and calls of the two chapters that this package implements.

`from selfattn import chapters as d2l` is the one line to change in a notebook
of Dive into Deep Learning, "Self-Attention and Positional Encoding". The
classes wrap functions of this package, with two tested differences from the
notebook: odd widths work, and only the rows in use are sown.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.numpy import arange, zeros

from selfattn.arrays import as_floats
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.dropout import MAX_RATE, Dropout
from selfattn.masks import combine
from selfattn.plots import plot, show_heatmaps
from selfattn.positions import check_positions
from selfattn.positions.absolute import Sinusoidal
from selfattn.tokens import Tokens

__all__ = [
  'MultiHeadAttention',
  'PositionalEncoding',
  'SelfAttention',
  'arange',
  'check_shape',
  'get_key',
  'plot',
  'scaled_dot_product_attention',
  'show_heatmaps',
  'zeros',
]


def get_key() -> jax.Array:
  """A random key that is not reproducible, for notebooks only.

  Examples:
    >>> jax.random.normal(selfattn.chapters.get_key(), (2, 5)).shape
    (2, 5)
  """
  return jax.random.key(np.random.randint(2**31))


def check_shape(x: jax.Array, shape: tuple[int, ...]) -> None:
  """Raises ValueError unless x has exactly this shape.

  Examples:
    >>> selfattn.chapters.check_shape(jnp.ones((2, 5)), (2, 5))
    >>> selfattn.chapters.check_shape(jnp.ones((2, 5)), (5, 2))
    Traceback (most recent call last):
    ValueError: shape (2, 5) is not (5, 2)
  """
  if tuple(x.shape) != tuple(shape):
    raise ValueError(f'shape {tuple(x.shape)} is not {tuple(shape)}')


def scaled_dot_product_attention(
  queries: jax.Array, keys: jax.Array, values: jax.Array, mask=None
) -> tuple[jax.Array, jax.Array]:
  """softmax(Q K^T / sqrt(d)) V (Vaswani et al. 2017, equation 1).

  Args:
    queries: (B, L, d).
    keys: (B, M, d).
    values: (B, M, d_v).
    mask: broadcasting to (B, L, M); zero or False where masked. Values there
      have a weight of 0, and must be finite.

  Returns:
    Output (B, L, d_v) and weights (B, L, M), float32. A fully masked row is
    zero.

  Examples:
    >>> queries, keys = jnp.ones((2, 3, 4)), jnp.ones((2, 5, 4))
    >>> values = jnp.ones((2, 5, 7))
    >>> output, weights = selfattn.scaled_dot_product_attention(
    ...   queries, keys, values
    ... )
    >>> output.shape, weights.shape
    ((2, 3, 7), (2, 3, 5))
  """
  if mask is not None:
    mask = jnp.atleast_2d(jnp.asarray(mask) != 0)[..., None, :, :]
  output, weights = attend(
    queries[:, :, None],
    keys[:, :, None],
    values[:, :, None],
    mask=mask,
    return_weights=True,
  )
  assert weights is not None  # with return_weights
  return output[:, :, 0], weights[:, 0]


class SelfAttention(nn.Module):
  """One head, no bias, no output projection: section 1.2 of the tutorial.

  Attributes:
    d_model: width of the input.
    d_k: width of queries and keys.
    d_v: width of values and of the output.

  Examples:
    >>> X = jnp.ones((2, 5, 12))
    >>> layer = selfattn.SelfAttention(d_model=12, d_k=4, d_v=7)
    >>> (output, weights), _ = layer.init_with_output(jax.random.key(0), X)
    >>> output.shape, weights.shape
    ((2, 5, 7), (2, 5, 5))
  """

  d_model: int
  d_k: int
  d_v: int

  @nn.compact
  def __call__(self, X: jax.Array, mask=None) -> tuple[jax.Array, jax.Array]:
    """(B, L, d_model) to output (B, L, d_v) and weights (B, L, L)."""
    if X.shape[-1] != self.d_model:
      raise ValueError(f'input width {X.shape[-1]} is not {self.d_model = }')
    queries = nn.Dense(self.d_k, use_bias=False, name='query')(X)
    keys = nn.Dense(self.d_k, use_bias=False, name='key')(X)
    values = nn.Dense(self.d_v, use_bias=False, name='value')(X)
    return scaled_dot_product_attention(queries, keys, values, mask)


class MultiHeadAttention(nn.Module):
  """Multi-head attention that returns its weights beside its output.

  Attributes:
    num_hiddens: width of the output; num_heads must divide it.
    num_heads: number of heads.
    dropout: rate on the weights, in training.
    bias: whether the four projections have one: not in the chapter, but in the
      tutorial, whose parameter count leaves it out.

  Examples:
    >>> X, valid_lens = jnp.ones((2, 5, 12)), jnp.array([5, 3])
    >>> layer = selfattn.MultiHeadAttention(num_hiddens=12, num_heads=3)
    >>> variables = layer.init(jax.random.key(0), X, X, X)
    >>> output, weights = layer.apply(variables, X, X, X, valid_lens)
    >>> output.shape, weights.shape
    ((2, 5, 12), (2, 3, 5, 5))
  """

  num_hiddens: int
  num_heads: int
  dropout: float = 0.0
  bias: bool = False

  @nn.compact
  def __call__(
    self,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    valid_lens: jax.Array | None = None,
    training: bool = False,
    mask: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Attends from queries (B, L, D) to keys and values (B, M, D).

    Args:
      valid_lens: (B,) or (B, L), number of visible keys of each sequence or
        query. Others have a weight of 0, and must be finite.
      training: whether to drop; needs a 'dropout' key.
      mask: boolean, broadcasting to (B, H, L, M), combined with valid_lens.

    Returns:
      Output (B, L, num_hiddens), and weights (B, H, L, M) before dropout.

    Raises:
      ValueError: valid_lens is neither (B,) nor (B, L).
    """
    if valid_lens is not None:
      mask = combine(mask, _valid_mask(valid_lens, keys.shape[1]))
    output, weights = Attention(
      self.num_hiddens,
      self.num_heads,
      use_bias=self.bias,
      name='attention',
    )(
      queries,
      keys,
      values,
      mask=mask,
      dropout=_dropout(self, training),
      return_weights=True,
    )
    assert weights is not None  # with return_weights
    return output, weights


class PositionalEncoding(nn.Module):
  """Adds sines and cosines to its input, and sows what it added as `P`.

  Attributes:
    num_hiddens: width of the input, odd or even.
    dropout: rate on the sum, in training.
    max_len: number of supported positions.

  Examples:
    >>> X = jnp.zeros((2, 5, 12))
    >>> encoding = selfattn.PositionalEncoding(num_hiddens=12, dropout=0.0)
    >>> encoding.apply({}, X).shape
    (2, 5, 12)
  """

  num_hiddens: int
  dropout: float
  max_len: int = 1000

  @nn.compact
  def __call__(
    self, X: jax.Array, training: bool = False, offset: jax.Array | int = 0
  ) -> jax.Array:
    """X (B, L, num_hiddens) plus P, whose first row is position `offset`.

    Raises:
      ValueError: offset + L exceeds max_len. If offset is traced, or L is not
        known, rows beyond it are NaN instead.
    """
    if X.shape[-1] != self.num_hiddens:
      raise ValueError(f'width {X.shape[-1]} is not {self.num_hiddens = }')
    length = X.shape[1]
    # A symbolic length, as of jax.export, is not known while tracing.
    is_traced = isinstance(offset, core.Tracer) or not isinstance(length, int)
    array = jnp if is_traced else np
    positions = array.arange(length)[None]
    positions = positions + (offset if is_traced else int(offset))
    check_positions(positions, self.max_len)
    method = Sinusoidal(self.num_hiddens, 1, False)
    P = method.encoding({}, Tokens(positions=positions))
    if is_traced:
      is_inside = (positions >= 0) & (positions < self.max_len)
      P = jnp.where(is_inside[..., None], P, jnp.nan)
    self.sow('intermediates', 'P', P)
    X = as_floats(X)
    X = X + P.astype(X.dtype)
    dropout = _dropout(self, training)
    return X if dropout is None else dropout(X)


def _valid_mask(valid_lens, num_keys: int) -> jax.Array:
  """Keys before each valid length, (B, 1, 1 or L, M)."""
  valid_lens = jnp.asarray(valid_lens)
  if valid_lens.ndim not in (1, 2):
    raise ValueError(
      f'valid_lens of shape {valid_lens.shape} must be (batch,) or '
      '(batch, queries)'
    )
  keys = jnp.arange(num_keys)[None, None, None]
  queries = valid_lens.shape[1] if valid_lens.ndim == 2 else 1
  return keys < valid_lens.reshape(valid_lens.shape[0], 1, queries, 1)


def _dropout(module: nn.Module, training: bool) -> Dropout | None:
  if not 0 <= module.dropout <= MAX_RATE:
    raise ValueError(f'dropout = {module.dropout} is not in [0, {MAX_RATE}]')
  if not training or module.dropout == 0:
    return None
  if not module.has_rng('dropout'):
    raise ValueError(
      "training with dropout needs a key: apply(..., rngs={'dropout': key})"
    )
  return Dropout.create(module.make_rng('dropout'), module.dropout)
