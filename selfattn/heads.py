"""Heads that say something of each token, for selfattn.classifier."""

from __future__ import annotations

import flax.linen as nn
import jax


class TiedHead(nn.Module):
  """Logits of all tokens of the vocabulary, tied to their embeddings.

  A transform (dense, gelu, layer norm), products with the embedding table, and
  a bias for each token (Devlin et al. 2019, 3.1, and their code; Press and Wolf
  2017 on tied embeddings).
  """

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits, float32 (B, L, V).

    Args:
      x_BLD: float32 vectors of the tokens asked about.
      embed: the model's embedding of tokens.
    """
    h_BLD = nn.Dense(x_BLD.shape[-1], name='dense')(x_BLD)
    h_BLD = nn.LayerNorm(name='norm')(nn.gelu(h_BLD, approximate=False))
    bias_V = self.param('bias', nn.initializers.zeros, (embed.num_embeddings,))
    return embed.attend(h_BLD) + bias_V[None, None]
