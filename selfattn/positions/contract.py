"""The contract of a position method: a frozen dataclass with nine hooks.

Attention and encoders call hooks, and refer to no method by name. A hook that a
method does not implement costs nothing; `hooks` has those that it implements.

  embed    token vectors with positions in them
  state    arrays per token from a layer's input, cached with its keys
  rows     a table of relative position embeddings, which a layer projects by
           its own query and key matrices
  rotate   queries and keys for their matmul
  content  added to the scores before scaling, from queries and keys
  bias     added to the scaled scores, from positions and state
  scores   added to the scaled scores, from the scores of all keys
  value    added to the output, from the weights
  scale    a factor of K^-1/2
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.layers import InLayers
from selfattn.tokens import Tokens

HOOKS = (
  'embed', 'state', 'rows', 'rotate', 'content', 'bias', 'scores', 'value',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Position(InLayers):
  """The contract; a subclass implements some of the hooks.

  Hooks get tokens as `Tokens`. Their `positions` and `index` are (1 or B, L):
  NumPy arrays where they are known while tracing, so that a hook may check
  them, and compute a table from them in float64; traced arrays otherwise. Their
  `state` is what `state` of this method returned, or None.
  Padding and segments are for hooks that mix tokens; attention masks scores
  itself. `params` are those of `init`, x_BLD token vectors, and weights_BHLM
  attention weights, float32. Queries, q_BLHK, have H heads, and keys as many,
  k_BMHK, or in `rotate` G, k_BMGK, each of which is used by H / G of queries.
  Attention checks the shapes that hooks return. Every hook may read
  `self.layer`, the Layer that it is called in (the first, in `embed` of an
  encoder); `init` may not.

  Attributes:
    embed_dim: D.
    num_heads: H; of a method for some heads, their number alone.
    causal: whether a token attends only to itself and earlier tokens; that of
      the attention it is used in.
    vocab_size: V, for methods that read `tokens.ids`; None: unknown.
    heads: number of heads that it acts on, after those of methods it is joined
      with; 0: all, which a method needs that changes embeddings or the scale.
    layer_heads: heads of the layer, where num_heads are some of them; None:
      num_heads are all.
    head_width: K, where it is not embed_dim over the heads of the layer, or
      embed_dim is the width of token embeddings alone; None: it is that.
    per_layer: whether every attention layer has parameters of its own and
      embeds its own input; otherwise, the encoder embeds once.
    is_relative: whether bias, content, scores and value depend on positions
      through key - query alone; they may then be called with other positions
      that have the same differences.
    uses_positions: whether position ids change anything. Methods that read the
      order of the row and the text alone do not use them.
    causal_only: whether it is defined only where later keys are masked.
    supports_real_positions: whether position ids need not be integers.
    turns_pairs: whether it turns pairs of channels, of which each head needs
      one.
    supports_cache: whether the hooks need of earlier tokens only what a cache
      keeps: positions, state, key and value. False where `embed` mixes tokens.
    length_option: the option to increase for more positions than max_length.
    Further fields are the method's options; each needs a default.

  Examples:
    >>> class Nearer(selfattn.Position):
    ...   def bias(self, params, query, key):
    ...     ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    ...     return -1.0 * abs(ahead_BLM)[:, None].repeat(self.num_heads, axis=1)
    >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
    >>> nearer = Nearer(embed_dim=12, num_heads=3, causal=False)
    >>> selfattn.attend(q_BLHK, k_BMHK, v_BMHK, position=nearer)[0].shape
    (2, 5, 3, 4)
  """

  embed_dim: int
  num_heads: int
  causal: bool
  vocab_size: int | None = dataclasses.field(default=None, kw_only=True)
  heads: int = dataclasses.field(default=0, kw_only=True)
  # An int or None; of no type that a config reads, so that it is no option.
  layer_heads: Any = dataclasses.field(default=None, kw_only=True)
  head_width: Any = dataclasses.field(default=None, kw_only=True)

  per_layer: ClassVar[bool] = False
  is_relative: ClassVar[bool] = False
  uses_positions: ClassVar[bool] = True
  causal_only: ClassVar[bool] = False
  supports_real_positions: ClassVar[bool] = False
  turns_pairs: ClassVar[bool] = False
  supports_cache: ClassVar[bool] = True
  length_option: ClassVar[str | None] = None

  def __post_init__(self):
    if self.turns_pairs:
      require(
        self.head_dim >= 2,
        'head_dim',
        self.head_dim,
        'at least 2: a rotation turns pairs of the channels of a head',
      )

  @property
  def head_dim(self) -> int:
    """K."""
    of_all = self.embed_dim // (self.layer_heads or self.num_heads)
    return self.head_width or of_all

  @property
  def rotated_dim(self) -> int:
    """Width of queries and keys after `rotate`; not all kernels support any."""
    return self.head_dim

  def rotated_dtype(self, dtype) -> Any:
    """Type of queries and keys of `dtype` after `rotate`."""
    return jnp.dtype(dtype)

  @property
  def hooks(self) -> frozenset[str]:
    """Names of the hooks that are implemented."""
    return frozenset(
      name
      for name in HOOKS
      if getattr(type(self), name) is not getattr(Position, name)
    )

  @property
  def has_encoding(self) -> bool:
    """Whether `encoding`, a function of positions, is implemented and sown.

    Not where terms depend on the text, through `state`.
    """
    is_implemented = type(self).encoding is not Position.encoding
    return is_implemented and 'state' not in self.hooks

  @property
  def parts(self) -> tuple[tuple[str, Position], ...]:
    """(name, method) of each part of a join; of a single one: ('', itself).

    The parts of `rotary+t5` are the two methods, by the names that they have in
    the config.
    """
    return (('', self),)

  @property
  def period(self) -> int:
    """After how many layers a pattern of methods begins anew; 1: no pattern."""
    return 1

  def of_layer(self, index: int) -> Position:
    """The method of one layer, of a pattern; itself otherwise."""
    del index
    return self

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Parameters by name; {} if there are none."""
    del key
    return {}

  def init_model(self, key: jax.Array) -> dict:
    """Parameters of the encoder, shared by all layers."""
    return {} if self.per_layer else self.init(key)

  def init_layer(self, key: jax.Array) -> dict:
    """Parameters of each attention layer."""
    return self.init(key) if self.per_layer else {}

  def max_length(self) -> int | None:
    """Number of supported positions; None: no limit."""
    return None

  def embed(self, params, x_BLD: jax.Array, tokens: Tokens) -> jax.Array:
    """Vectors with positions in them, of the same shape and dtype.

    Called once, by the encoder; with `per_layer`, by every attention layer on
    its input. Vectors at padding may have any value, NaN included, and must
    change no other.
    """
    del params, tokens
    return x_BLD

  def state(self, params, x_BLD: jax.Array, tokens: Tokens):
    """A tree of arrays (B, L, ...), a row per token, from a layer's input.

    Other hooks read it as `query.state` and `key.state`; the latter has all
    keys, with those of the cache, so sums over tokens belong there.
    """
    del params, x_BLD, tokens

  def rows(self, params) -> Any:
    """Rows of a table, (N, D), for the query and key projections of each layer.

    For methods whose vectors, such as those of distances, share the matrices
    (and biases) of tokens. Later hooks find the results in `params`, as
    `query_rows` and `key_rows`: float32 (H, N, K), without `qk_norm`.
    """
    del params

  def rotate(
    self, params, q_BLHK, k_BMGK, query: Tokens, key: Tokens
  ) -> tuple[jax.Array, jax.Array]:
    """Queries and keys for their matmul, `rotated_dim` wide, `rotated_dtype`.

    Keys may become those of all H heads.
    """
    del params, query, key
    return q_BLHK, k_BMGK

  def content(
    self, params, q_BLHK, k_BMHK, query: Tokens, key: Tokens
  ) -> jax.Array | None:
    """Added to the scores before scaling: (B, H, L, M), or None.

    Queries and keys are those before rotation, so that a relative term stays
    relative beside a method that rotates.
    """
    del params, q_BLHK, k_BMHK, query, key

  def bias(self, params, query: Tokens, key: Tokens) -> jax.Array | None:
    """Added to the scaled scores: float32 (1 or B, H, L, M), or None.

    Finite. That of a relative method without state is computed once per
    distance in self-attention, so it may read `positions` alone, or `index`,
    which is the same there.
    """
    del params, query, key

  def scores(
    self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key
  ) -> jax.Array | None:
    """Added to the sum of scores and biases: (B, H, L, M), or None.

    Args:
      q_BLHK: queries before rotation.
      content_BHLM: scaled and capped scores, float32.
      bias_BHLM: all biases (1 or B, 1 or H, 1 or L, 1 or M), or None.
      mask: boolean, likewise, False where masked; None: no mask.
      query, key: Tokens; those of `query` may be a chunk of the rows.
    """
    del params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key

  def value(
    self, params, weights_BHLM, query: Tokens, key: Tokens
  ) -> jax.Array | None:
    """Added to the output, linear in the weights: (B, L, H, K), or None."""
    del params, weights_BHLM, query, key

  @property
  def scale(self) -> float:
    """Factor of K^-1/2 in the scaling of scores."""
    return 1.0

  def encoding(self, params, tokens: Tokens) -> Any:
    """The encoding of these positions, an array, which is sown as `P`.

    P is the matrix of position encodings in Dive into Deep Learning, section
    11.6, which is added to the embeddings. Other methods return their own table
    or term.

    Sown once, as that of the first layer, unless the method is `per_layer`.

    Not implemented where it depends on more than positions: then what `embed`
    added, or what was added to the scores, is sown; nothing of a rotation.
    """
    del params, tokens


@dataclasses.dataclass(frozen=True)
class NoPosition(Position):
  """No positions: attention without a mask is equivariant to permutations.

  Examples:
    >>> none = selfattn.positions.NoPosition(12, num_heads=3, causal=False)
    >>> none.hooks
    frozenset()
  """

  is_relative = True
  uses_positions = False


def add(terms: Iterable, first: Any = None) -> Any:
  """`first` and the terms, added where they are not None; None if all are."""
  total = first
  for term in terms:
    if term is not None:
      total = term if total is None else total + term
  return total


def check_positions(positions, max_len: int) -> None:
  """Raises ValueError if a position known while tracing is past max_len.

  Examples:
    >>> import numpy as np
    >>> selfattn.positions.check_positions(np.arange(5)[None], max_len=5)
    >>> selfattn.positions.check_positions(np.arange(5)[None], max_len=4)
    Traceback (most recent call last):
    ValueError: positions 0..4 do not fit into max_len = 4; raise max_len or ...
  """
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


def require_one_of(allowed: Collection[str], option: str, value) -> None:
  """Raises ValueError unless an option is one of several names."""
  among = f'one of {", ".join(sorted(allowed))}'
  require(value in allowed, option, value, among)


def distances(query: Tokens, key: Tokens):
  """key - query, (1 or B, L, M); NumPy where both are."""
  return key.positions[:, None, :] - query.positions[:, :, None]
