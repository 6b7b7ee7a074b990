"""What a position method is: five hooks, and when it has which parameters."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Position:
  """The contract; every hook is absent until a method fills it.

  Hooks take positions as integers of shape (1 or B, L): NumPy arrays where
  they are known while tracing, so that a hook may check them, and compute a
  table from them in float64; traced ones otherwise. `params` holds what `init`
  made.

  Attributes:
    embed_dim: D, width of a token.
    num_heads: H.
    causal: whether a query sees only itself and what stands before it.
    per_layer: whether every attention layer has parameters of its own, rather
      than all layers the same.
    is_relative: whether bias, content and value depend on positions through
      key - query alone; they may then be asked for other positions with the
      same differences.
    Further fields are the method's options; each needs a default, and becomes
    a key of the config.
  """

  embed_dim: int
  num_heads: int
  causal: bool

  per_layer: ClassVar[bool] = False
  is_relative: ClassVar[bool] = False

  @property
  def head_dim(self) -> int:
    """K."""
    return self.embed_dim // self.num_heads

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """The method's parameters by name; {} if it has none."""
    del key
    return {}

  def init_model(self, key: jax.Array) -> dict:
    """Parameters that the encoder owns, one set for all layers."""
    return {} if self.per_layer else self.init(key)

  def init_layer(self, key: jax.Array) -> dict:
    """Parameters that each attention layer owns."""
    return self.init(key) if self.per_layer else {}

  def max_length(self) -> int | None:
    """Number of positions the method can tell apart; None: no limit."""
    return None

  def embed(self, params, positions_BL) -> jax.Array | None:
    """Added to the tokens: float32 (1 or B, L, D), or None."""
    del params, positions_BL
    return None

  def rotate(self, params, x_BLHK, positions_BL) -> jax.Array:
    """Queries or keys for their product, turned; the same shape."""
    del params, positions_BL
    return x_BLHK

  def bias(self, params, query_BL, key_BM) -> jax.Array | None:
    """Added to the scaled scores: float32 (1 or B, H, L, M), or None."""
    del params, query_BL, key_BM
    return None

  def content(self, params, q_BLHK, query_BL, key_BM) -> jax.Array | None:
    """Added to the scores before scaling: (B, H, L, M), or None.

    Reads queries as they were before any rotation, so that what is relative
    stays so beside a method that rotates.
    """
    del params, q_BLHK, query_BL, key_BM
    return None

  def value(self, params, weights_BHLM, query_BL, key_BM) -> jax.Array | None:
    """Added to the output, linear in the weights: (B, L, H, K), or None."""
    del params, weights_BHLM, query_BL, key_BM
    return None

  @property
  def has_value(self) -> bool:
    """Whether `value` adds anything."""
    return False

  def encoding(self, params, positions_BL):
    """What is sown as `P`: the term of this method for these positions."""
    return self.embed(params, positions_BL)

  def encoding_model(self, params, positions_BL):
    """What the encoder sows: the term that is the same for all layers."""
    return None if self.per_layer else self.encoding(params, positions_BL)

  def encoding_layer(self, params, positions_BL, is_alone: bool = False):
    """What each attention layer sows.

    Args:
      is_alone: whether no encoder around it embeds, and sows what all layers
        have in common.
    """
    embeds = type(self).embed is not Position.embed
    if self.per_layer or (is_alone and not embeds):
      return self.encoding(params, positions_BL)
    return None


@dataclasses.dataclass(frozen=True)
class NoPosition(Position):
  """Nothing: an encoder that cannot tell one order from another."""

  is_relative = True


@dataclasses.dataclass(frozen=True)
class Combined(Position):
  """Several methods at once: `sinusoidal+t5` is one to embed and one to bias.

  Their terms are added, their rotations applied one after another, and their
  parameters kept under the names of the parts.
  """

  parts: tuple[tuple[str, Position], ...]

  @property
  def is_relative(self):
    """Whether every part is, or plays no role in attention."""
    return all(part.is_relative for _, part in self.parts)

  @property
  def has_value(self):
    """Whether any part has a value term."""
    return any(part.has_value for _, part in self.parts)

  def init_model(self, key):
    return self._init(key, 'init_model')

  def init_layer(self, key):
    return self._init(key, 'init_layer')

  def _init(self, key, which):
    keys = jax.random.split(key, len(self.parts))
    made = {
      name: getattr(part, which)(key)
      for (name, part), key in zip(self.parts, keys, strict=True)
    }
    return {name: params for name, params in made.items() if params}

  def max_length(self):
    limits = [part.max_length() for _, part in self.parts]
    return min((n for n in limits if n is not None), default=None)

  def embed(self, params, positions_BL):
    return self._sum('embed', params, positions_BL)

  def rotate(self, params, x_BLHK, positions_BL):
    for name, part in self.parts:
      x_BLHK = part.rotate(params.get(name, {}), x_BLHK, positions_BL)
    return x_BLHK

  def bias(self, params, query_BL, key_BM):
    return self._sum('bias', params, query_BL, key_BM)

  def content(self, params, q_BLHK, query_BL, key_BM):
    return self._sum('content', params, q_BLHK, query_BL, key_BM)

  def value(self, params, weights_BHLM, query_BL, key_BM):
    return self._sum('value', params, weights_BHLM, query_BL, key_BM)

  def _sum(self, hook, params, *arguments):
    total = None
    for name, part in self.parts:
      term = getattr(part, hook)(params.get(name, {}), *arguments)
      if term is not None:
        total = term if total is None else total + term
    return total

  def encoding_model(self, params, positions_BL):
    """By the name of the part, where it has one."""
    return self._encodings('encoding_model', params, positions_BL)

  def encoding_layer(self, params, positions_BL, is_alone=False):
    """By the name of the part, where it has one."""
    return self._encodings('encoding_layer', params, positions_BL, is_alone)

  def _encodings(self, which, params, *arguments):
    terms = {
      name: getattr(part, which)(params.get(name, {}), *arguments)
      for name, part in self.parts
    }
    return {name: P for name, P in terms.items() if P is not None} or None


def check_positions(positions, max_len: int) -> None:
  """Raises ValueError if a position known while tracing is past max_len."""
  if not isinstance(positions, np.ndarray) or positions.size == 0:
    return
  if positions.min() < 0 or positions.max() >= max_len:
    raise ValueError(
      f'positions {positions.min()}..{positions.max()} do not fit into '
      f'max_len = {max_len}; raise max_len or shorten the text'
    )


def require(holds: bool, option: str, value, allowed: str) -> None:
  """Raises ValueError that names an option, its value and what is allowed."""
  if not holds:
    raise ValueError(f'{option} = {value!r} must be {allowed}')


def distances(query_BL, key_BM):
  """key - query, (1 or B, L, M); NumPy where both are."""
  return key_BM[:, None, :] - query_BL[:, :, None]
