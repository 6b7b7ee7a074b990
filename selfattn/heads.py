"""Heads on each token, for selfattn.classifier."""

from __future__ import annotations

import flax.linen as nn
import jax


class TiedHead(nn.Module):
  """Logits over the vocabulary, from tied embeddings.

  A transform (dense, gelu, layer norm), a matmul with the embedding table, and
  a bias for each token of the vocabulary (Devlin et al. 2019, section 3.1, and
  their code; Press and Wolf 2017 on tied embeddings).
  """

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits, float32 (B, L, V).

    Args:
      x_BLD: float32 vectors of the tokens that have a label.
      embed: the token embedding of the model.
    """
    h_BLD = nn.Dense(x_BLD.shape[-1], name='dense')(x_BLD)
    h_BLD = nn.LayerNorm(name='norm')(nn.gelu(h_BLD, approximate=False))
    bias_V = self.param('bias', nn.initializers.zeros, (embed.num_embeddings,))
    return embed.attend(h_BLD) + bias_V[None, None]
