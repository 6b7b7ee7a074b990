"""What a position method is: a frozen dataclass that fills some of eight hooks.

Attention and the encoder know the hooks and no method. A hook that a method
does not fill costs nothing; which ones it fills, `hooks` says.

  embed    the tokens' vectors, with positions in them
  state    what each token brings to its layer, kept in the cache with its key
  rotate   queries and keys, for their matmul
  content  added to the scores before scaling, from queries and keys
  bias     added to the scaled scores, from positions and state
  scores   added to them, from the scores of all keys
  value    added to the output, from the weights
  scale    a factor of the scaling by K^-1/2
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import ClassVar

import jax
import numpy as np

from selfattn.masks import Tokens

HOOKS = ('embed', 'state', 'rotate', 'content', 'bias', 'scores', 'value')


@dataclasses.dataclass(frozen=True)
class Position:
  """The contract; every hook is absent until a method fills it.

  Hooks see tokens as `Tokens`: their `positions` are integers (1 or B, L),
  NumPy arrays where they are known while tracing, so that a hook may check
  them, and compute a table from them in float64; traced ones otherwise. Padding
  and segments are there for hooks that mix tokens: attention masks scores by
  itself. `params` holds what `init` made.

  Attributes:
    embed_dim: D, width of a token.
    num_heads: H.
    causal: whether a query sees only itself and what stands before it.
    vocab_size: V, for methods that read `tokens.ids`; None: unknown.
    per_layer: whether every attention layer has parameters of its own, and
      embeds its own input, rather than the encoder once for all.
    is_relative: whether bias, content, scores and value depend on positions
      through key - query alone; they may then be asked for other positions
      with the same differences.
    causal_only: whether it is defined for keys before their query alone.
    supports_cache: whether each hook needs of earlier tokens only what a cache
      keeps: positions, state, key and value. False where embed mixes tokens.
    length_option: the option to raise for more positions than max_length.
    Further fields are the method's options; each needs a default, and becomes
    a key of the config.
  """

  embed_dim: int
  num_heads: int
  causal: bool
  vocab_size: int | None = dataclasses.field(default=None, kw_only=True)

  per_layer: ClassVar[bool] = False
  is_relative: ClassVar[bool] = False
  causal_only: ClassVar[bool] = False
  supports_cache: ClassVar[bool] = True
  length_option: ClassVar[str | None] = None

  @property
  def head_dim(self) -> int:
    """K."""
    return self.embed_dim // self.num_heads

  @property
  def rotated_dim(self) -> int:
    """Width of queries and keys after `rotate`, which not all kernels take."""
    return self.head_dim

  @property
  def hooks(self) -> frozenset[str]:
    """Names of the hooks that are filled."""
    return frozenset(
      name
      for name in HOOKS
      if getattr(type(self), name) is not getattr(Position, name)
    )

  @property
  def has_encoding(self) -> bool:
    """Whether what is sown is a function of positions: `encoding` is filled."""
    return type(self).encoding is not Position.encoding

  @property
  def parts(self) -> tuple[tuple[str, Position], ...]:
    """The methods that are joined, by name; of a single one: ('', itself)."""
    return (('', self),)

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
    """Number of positions the method supports; None: no limit."""
    return None

  def embed(self, params, x_BLD: jax.Array, tokens: Tokens) -> jax.Array:
    """Vectors with positions in them, of the same shape and dtype.

    Called by the encoder, once; with `per_layer`, by every attention layer on
    its input. Vectors at padding may be anything, and must change no other.
    """
    del params, tokens
    return x_BLD

  def state(self, params, x_BLD: jax.Array, tokens: Tokens):
    """A tree of arrays (B, L, ...), one row a token, from a layer's input.

    Hooks find it as `query.state` and `key.state`, of all keys, those of a
    cache included; what sums over tokens is summed there.
    """
    del params, x_BLD, tokens

  def rotate(
    self, params, q_BLHK, k_BMGK, query: Tokens, key: Tokens
  ) -> tuple[jax.Array, jax.Array]:
    """Queries and keys for their matmul.

    K may become another width, and keys may become those of all heads.
    """
    del params, query, key
    return q_BLHK, k_BMGK

  def content(
    self, params, q_BLHK, k_BMHK, query: Tokens, key: Tokens
  ) -> jax.Array | None:
    """Added to the scores before scaling: (B, H, L, M), or None.

    Reads queries and keys as they were before any rotation, so that what is
    relative stays so beside a method that rotates.
    """
    del params, q_BLHK, k_BMHK, query, key

  def bias(self, params, query: Tokens, key: Tokens) -> jax.Array | None:
    """Added to the scaled scores: float32 (1 or B, H, L, M), or None.

    That of a relative method without state is computed once per distance, where
    a sequence attends to itself: it reads `positions` alone. Finite.
    """
    del params, query, key

  def scores(
    self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key
  ) -> jax.Array | None:
    """Added to the sum of both: (B, H, L, M), or None.

    Args:
      q_BLHK: queries before any rotation.
      content_BHLM: scaled and capped scores, float32.
      bias_BHLM: all biases (1 or B, 1 or H, 1 or L, 1 or M), or None.
      mask: boolean, likewise: where a query may look; None: anywhere.
      query, key: Tokens; those of `query` may be a part of the rows.
    """
    del params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key

  def value(
    self, params, weights_BHLM, query: Tokens, key: Tokens
  ) -> jax.Array | None:
    """Added to the output, linear in the weights: (B, L, H, K), or None."""
    del params, weights_BHLM, query, key

  @property
  def scale(self) -> float:
    """Factor of K^-1/2, by which scores are scaled."""
    return 1.0

  def encoding(self, params, tokens: Tokens) -> jax.Array | None:
    """What is sown as `P`: the term of this method for these positions.

    None where it depends on more than positions: then what `embed` added is
    sown, or what was added to the scores.
    """
    del params, tokens


@dataclasses.dataclass(frozen=True)
class NoPosition(Position):
  """Nothing: an encoder that cannot tell one order from another."""

  is_relative = True


def filling(position: Position, hook: str, params):
  """(name, part, its parameters) of each part that fills a hook.

  Of a single method too, whose name is then ''.
  """
  return [
    (name, part, params.get(name, {}) if name else params)
    for name, part in position.parts
    if hook in part.hooks
  ]


def with_state(position: Position, params, x_BLD, tokens: Tokens) -> Tokens:
  """Tokens with what the parts make of a layer's input, by their names."""
  state = {
    name: part.state(its, x_BLD, tokens)
    for name, part, its in filling(position, 'state', params)
  }
  return tokens.replace(state=state or None)


def add(terms):
  """Sum of those that are not None; None if all are."""
  given = [term for term in terms if term is not None]
  return functools.reduce(operator.add, given) if given else None


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


def distances(query: Tokens, key: Tokens):
  """key - query, (1 or B, L, M); NumPy where both are."""
  return key.positions[:, None, :] - query.positions[:, :, None]
