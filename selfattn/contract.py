"""The contract of an encoder: its call, and what it declares."""

from __future__ import annotations

import flax.linen as nn
import jax

from selfattn.choice import Choice
from selfattn.dropout import Dropout
from selfattn.masks import Tokens


class Encoder(nn.Module):
  """Token vectors in, token vectors out.

  Fields without a default, or with None, are sizes. They are passed by name, as
  far as a class declares them: num_layers, num_heads, embed_dim, mlp_dim,
  vocab_size, dtype, platform (that it is compiled for), position (a method of
  selfattn.positions, or a pattern of them over layers: every attention gets
  `position.of_layer(index)`), normaliser (one of selfattn.normalisers, or a
  tuple of them, a pattern over layers) and block (one of selfattn.blocks).
  Every other field is an option of the encoder, as in `rnn(cell=gru)`.

  An encoder with `position` makes its `init_model` a parameter named
  `position`, calls `embed` of each part (positions.calls.parts_with) and
  passes the parameters to selfattn.Attention, with in_encoder=True.

  An encoder with num_layers and num_heads has attention heads: D splits into
  them, attention dropout applies to their weights, or `check` refuses it, and
  every layer sows the weights, float32 (B, H, L, M), as `weights`.

  Attributes:
    causal: whether no vector depends on later tokens, as `causal` of its
      position method; a field or a property where it is a choice.
    keeps_order: whether attention gets the tokens as the encoder does, in their
      order and with none added, so that they may be marked is_right_padded.

  Examples:
    >>> class Doubled(selfattn.Encoder):
    ...   def __call__(self, x_BLD, *others):
    ...     return 2 * x_BLD
    >>> Doubled().apply({}, jnp.ones((2, 5, 12))).shape
    (2, 5, 12)
  """

  # No annotation: a subclass may make it a field, in any order.
  causal = False
  keeps_order = False

  def __call__(
    self,
    x_BLD: jax.Array,
    tokens: Tokens | jax.Array | None = None,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Contextual vectors (B, L, D).

    Args:
      x_BLD: the vectors of the tokens; those at padding change no other.
      tokens: see Tokens.of.
      dropout: of the encoder; None: evaluation.
      attention_dropout: of attention weights; None: evaluation.
    """
    raise NotImplementedError

  def check(
    self, embed_dim: int, *, drops_weights: bool, platform: str | None
  ) -> None:
    """Raises ValueError for fields that are invalid, or do not go together.

    The message names fields as `NAME = VALUE`, which become keys.

    Args:
      embed_dim: D.
      drops_weights: whether attention weights are dropped.
      platform: as of unsupported_reason.
    """

  def attention_choices(
    self, shape: tuple[int, int, int], *, drops_weights: bool
  ) -> list[Choice]:
    """The backend of attention of each layer; []: there is no choice.

    Args:
      shape: (B, L, D) of the token vectors.
      drops_weights: whether attention weights are dropped.
    """
    del shape, drops_weights
    return []

  def window_of(self, index: int) -> tuple[int, int] | None:
    """The window of a layer, as of selfattn.Attention; None: all tokens."""
    del index
    return None

  def unsupported_cls(self, num_tokens: int) -> str | None:
    """Why [CLS], put before the tokens, does not attend to all; or None.

    Args:
      num_tokens: after [CLS], at most.

    Returns:
      A phrase with [CLS] as its subject, such as `attends to itself alone`.
    """
    del num_tokens
    return 'attends to no token'


def has_heads(encoder: nn.Module) -> bool:
  """Whether an encoder, or a class of encoders, has attention heads."""
  fields = encoder.__dataclass_fields__
  return 'num_heads' in fields and 'num_layers' in fields


def check_heads(embed_dim: int, num_heads: int) -> None:
  """Raises ValueError if embed_dim does not split into heads."""
  if embed_dim % num_heads:
    below = embed_dim - embed_dim % num_heads
    near = [n for n in (below, below + num_heads) if n]
    raise ValueError(
      f'embed_dim = {embed_dim} does not split into num_heads = {num_heads}; '
      f'try {" or ".join(map(str, near))}'
    )
