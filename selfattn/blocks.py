"""One block of a stack: self-attention and a feed-forward network."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from selfattn.attention import Attention
from selfattn.dropout import Dropout, drop
from selfattn.masks import Tokens

NORMS = ('pre', 'post')
ACTIVATIONS = {'relu': nn.relu, 'gelu': nn.gelu}


class Block(nn.Module):
  """Attention and a feed-forward network, each with a residual connection.

  'post' normalises after each sum (Vaswani et al. 2017, section 3.1), 'pre'
  the input of each branch (Xiong et al. 2020, figure 1b).
  """

  attention: Attention
  mlp_dim: int
  norm: str
  activation: str
  dtype: jnp.dtype
  cache_len: int | None

  @nn.compact
  def __call__(
    self,
    x_BLD,
    layer,
    tokens: Tokens,
    position_params,
    dropout: Dropout | None,
    attention_dropout: Dropout | None,
  ):
    """Returns (x_BLD, None): the carry and the output of a scan over layers."""
    is_pre = self.norm == 'pre'
    if dropout is not None:
      dropout = dropout.at(layer)
    if attention_dropout is not None:
      attention_dropout = attention_dropout.at(layer)

    normalise = nn.LayerNorm(dtype=self.dtype, name='norm_attention')
    h_BLD = normalise(x_BLD) if is_pre else x_BLD
    h_BLD, _ = self.attention(
      h_BLD,
      query=tokens,
      position_params=position_params,
      dropout=attention_dropout,
      cache_len=self.cache_len,
    )
    x_BLD = x_BLD + drop(h_BLD, dropout, 0)
    x_BLD = x_BLD if is_pre else normalise(x_BLD)

    normalise = nn.LayerNorm(dtype=self.dtype, name='norm_mlp')
    h_BLD = normalise(x_BLD) if is_pre else x_BLD
    h_BLF = self._dense('mlp_in', self.mlp_dim)(h_BLD)
    h_BLF = drop(ACTIVATIONS[self.activation](h_BLF), dropout, 1)
    h_BLD = self._dense('mlp_out', x_BLD.shape[-1])(h_BLF)
    x_BLD = x_BLD + drop(h_BLD, dropout, 2)
    return x_BLD if is_pre else normalise(x_BLD), None

  def _dense(self, name, features):
    return nn.Dense(
      features,
      dtype=self.dtype,
      kernel_init=nn.initializers.xavier_uniform(),
      name=name,
    )
