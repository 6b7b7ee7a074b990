"""Token ids to logits: embedding, encoder, pooling and one linear layer.

Or, in place of the last two, a head that gives each token logits of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout, drop
from selfattn.pools import POOLS, Pool
from selfattn.positions.sampling import Consecutive


def embed(params, tokens_BL: jax.Array) -> jax.Array:
  """Vectors of tokens (B, L, D), with the parameters of a TextClassifier."""
  return jnp.take(params['embed']['embedding'], tokens_BL, axis=0)


class TextClassifier(nn.Module):
  """A classifier of token sequences around any encoder.

  Attributes:
    vocab_size: V.
    num_classes: C.
    embed_dim: D.
    encoder: a module of selfattn.encoders.
    pool: one of selfattn.pools, or its name. For one that reads_first, a
      learned vector `cls` is put before the tokens.
    embed_init_std: standard deviation of a fresh embedding.
    sampling: one of selfattn.positions.sampling, which decides where the
      tokens stand.
    dtype: of the encoder; logits are float32.
    token_head: {name: module}, from vectors of tokens, float32 (B, L, D), and
      the nn.Embed of all tokens to logits (B, L, ...), in place of pooling and
      the linear layer; None: those. Its parameters are under token_head_NAME.
    has_mask: whether there is one more token, of id V, which stands for one
      that is hidden; its vector is a parameter of its own.
  """

  vocab_size: int
  num_classes: int
  embed_dim: int
  encoder: nn.Module
  pool: Pool | str = 'mean'
  embed_init_std: float = 0.1
  sampling: Consecutive = Consecutive()
  dtype: jnp.dtype = jnp.float32
  token_head: Mapping[str, nn.Module] | None = None
  has_mask: bool = False

  @property
  def has_cls(self) -> bool:
    """Whether a vector that is no token stands before them."""
    pool = POOLS[self.pool] if isinstance(self.pool, str) else self.pool
    return pool.reads_first

  @nn.compact
  def __call__(
    self,
    tokens_BL: jax.Array,
    padding_mask_BL: jax.Array,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
    position_stream: Dropout | None = None,
    *,
    embedded_BLD: jax.Array | None = None,
    places_BK: jax.Array | None = None,
    **for_encoder,
  ) -> jax.Array:
    """Logits, float32 (B, C); of a head that gives C each, (B, L, C).

    Args:
      tokens_BL: integer ids, each below vocab_size.
      padding_mask_BL: boolean, False at padding, which changes no logit.
      dropout: on embeddings, branches and the pooled vector; None: evaluation.
      attention_dropout: on attention weights; None: none.
      position_stream: the random bits of `sampling`; None: evaluation.
      embedded_BLD: what `embed` returns, to derive by it; None: that.
      places_BK: the tokens that a head is asked about; None: all L of them.
      for_encoder: further arguments of the encoder's.
    """
    init = nn.initializers.normal(self.embed_init_std)
    table = nn.Embed(
      self.vocab_size, self.embed_dim, embedding_init=init, name='embed'
    )
    x_BLD = table(tokens_BL) if embedded_BLD is None else embedded_BLD
    length = x_BLD.shape[1]
    if self.has_mask:
      mask_D = self.param('mask', init, (self.embed_dim,))
      is_hidden_BL = tokens_BL == self.vocab_size
      x_BLD = jnp.where(is_hidden_BL[..., None], mask_D[None, None], x_BLD)
    if self.has_cls:
      cls_D = self.param('cls', init, (self.embed_dim,))
      cls_B1D = jnp.broadcast_to(cls_D, (len(x_BLD), 1, self.embed_dim))
      x_BLD = jnp.concatenate([cls_B1D, x_BLD], axis=1)
      padding_mask_BL = jnp.pad(
        padding_mask_BL, ((0, 0), (1, 0)), constant_values=True
      )
      tokens_BL = jnp.pad(
        tokens_BL, ((0, 0), (1, 0)), constant_values=self.vocab_size + 1
      )
    inner = None if dropout is None else dropout.at(0)
    x_BLD = self.encoder(
      x_BLD.astype(self.dtype),
      self.sampling.tokens(padding_mask_BL, position_stream).replace(
        ids=tokens_BL
      ),
      inner,
      attention_dropout,
      **for_encoder,
    )
    if self.token_head is not None:
      x_BLD = x_BLD[:, -length:].astype(jnp.float32)
      if places_BK is not None:
        x_BLD = jnp.take_along_axis(x_BLD, places_BK[..., None], axis=1)
      (head,) = self.token_head.values()
      return head(x_BLD, table)
    named = isinstance(self.pool, str)
    pool = POOLS[self.pool](name='pool') if named else self.pool
    pooled_BP = drop(pool(x_BLD, padding_mask_BL), dropout, 1)
    return nn.Dense(self.num_classes, name='head')(pooled_BP)
