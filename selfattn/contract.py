"""What an encoder is, and what it declares so that nobody asks its name."""

from __future__ import annotations

import flax.linen as nn


class Encoder(nn.Module):
  """Token vectors in, token vectors out.

  It is called as `encoder(x_BLD, tokens, dropout, attention_dropout)`, and
  returns (B, L, D); what stands in the padding changes no other vector.

  Fields without a default, or with None, are sizes, handed over by name as far
  as a class has them: num_layers, num_heads, embed_dim, mlp_dim, vocab_size,
  dtype, position (a method of selfattn.positions) and normaliser (one of
  selfattn.normalisers). Every other field is an option, and becomes a key of
  the config. Of what a class does not declare, nothing is read.

  One with a position makes `position.init_model` a parameter named `position`,
  calls `embed` of each part (selfattn.positions.contract.filling), and hands
  the parameters on to selfattn.Attention.

  One with num_layers and num_heads has heads: they split D, their weights may
  be dropped, and every layer sows what it attends to, float32 (B, H, L, M), as
  `weights`.

  Attributes:
    causal: whether no vector depends on later tokens, which its position
      method is told; a field or a property where that is a choice.
  """

  # No annotation: an encoder may make it a field, in its own place.
  causal = False

  def check(
    self, embed_dim: int, *, drops_weights: bool, platform: str | None
  ) -> None:
    """Raises ValueError for fields that cannot be, or do not go together.

    The message names fields as `NAME = VALUE`, which become keys.

    Args:
      embed_dim: D.
      drops_weights: whether attention weights are dropped.
      platform: 'cpu', 'gpu' or 'tpu'; None: whichever it needs.
    """

  def unsupported_first(self, num_tokens: int) -> str | None:
    """Why a vector before the tokens gathers nothing of them, or None.

    Args:
      num_tokens: after it, at most.

    Returns:
      What the first vector does instead, as `sees only itself`.
    """
    del num_tokens
    return 'gathers nothing'


def has_heads(encoder: nn.Module) -> bool:
  """Whether there are heads to look at, and weights to drop; or of a class."""
  fields = encoder.__dataclass_fields__
  return 'num_heads' in fields and 'num_layers' in fields


def check_heads(embed_dim: int, num_heads: int) -> None:
  """Raises ValueError where heads do not split the width."""
  if embed_dim % num_heads:
    below = embed_dim - embed_dim % num_heads
    near = [n for n in (below, below + num_heads) if n]
    raise ValueError(
      f'embed_dim = {embed_dim} does not split into num_heads = {num_heads}; '
      f'try {" or ".join(map(str, near))}'
    )
