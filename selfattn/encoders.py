"""Encoders: token vectors in, token vectors out, one dict to choose from.

Every encoder is called as `encoder(x_BLD, is_token_BL, dropout,
attention_dropout)`. To add one: a Flax module here with its options as fields
that have defaults, a line in ENCODERS, a row in tests/test_encoders.py.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from selfattn import masks
from selfattn.attention import Attention
from selfattn.dropout import Dropout, drop
from selfattn.positions import Position

NORMS = ('pre', 'post')
ACTIVATIONS = {'relu': nn.relu, 'gelu': nn.gelu}


class Block(nn.Module):
  """Attention and a two-layer network, each with a residual connection.

  'post' normalises after each sum (Vaswani et al. 2017, section 3.1), 'pre'
  the input of each branch (Xiong et al. 2020, figure 1b).
  """

  num_heads: int
  mlp_dim: int
  norm: str
  activation: str
  position: Position
  backend: str
  dtype: jnp.dtype

  @nn.compact
  def __call__(
    self,
    x_BLD,
    layer,
    mask,
    positions_BL,
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
    h_BLD, _ = Attention(
      x_BLD.shape[-1],
      self.num_heads,
      position=self.position,
      backend=self.backend,
      dtype=self.dtype,
      name='attention',
    )(
      h_BLD,
      h_BLD,
      h_BLD,
      mask=mask,
      query_positions=positions_BL,
      key_positions=positions_BL,
      position_params=position_params,
      dropout=attention_dropout,
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


class AttentionEncoder(nn.Module):
  """Positions, then `num_layers` residual blocks of self-attention.

  Sows what the position method added to the tokens as `P`, float32 (1, L, D).
  Parameters are one subtree a layer, `block_0`, `block_1`, ..., whatever
  `scan` and `remat` say.

  Attributes:
    num_layers, num_heads, mlp_dim: depth, H and F.
    position: a method of selfattn.positions.
    dtype: of the computation.
    norm: 'pre' or 'post'.
    activation: 'relu' or 'gelu'.
    causal: whether a token sees only itself and those before it.
    backend: one of selfattn.attention.BACKENDS.
    scan: compile one block and loop over it; for deep stacks.
    remat: recompute a block in the backward pass; for memory.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  position: Position
  dtype: jnp.dtype
  norm: str = 'pre'
  activation: str = 'gelu'
  causal: bool = False
  backend: str = 'auto'
  scan: bool = False
  remat: bool = False

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    is_token_BL: jax.Array,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Token vectors (B, L, D) to the same shape; padding is never seen."""
    positions_BL = np.arange(x_BLD.shape[1])[None]
    mask = masks.padding_mask(is_token_BL)
    if self.causal:
      mask = mask & masks.causal_mask(positions_BL, positions_BL)

    position_params = {}
    if self.position.has_parameters:
      position_params = self.param('position', self.position.init)
    P_BLD = self.position.embed(position_params, positions_BL)
    if P_BLD is not None:
      self.sow('intermediates', 'P', P_BLD)
      x_BLD = x_BLD + P_BLD.astype(x_BLD.dtype)
    x_BLD = drop(x_BLD, dropout, self.num_layers)

    shared = (mask, positions_BL, position_params, dropout, attention_dropout)
    x_BLD = self._run_blocks(x_BLD, shared)
    if self.norm == 'pre':
      x_BLD = nn.LayerNorm(dtype=self.dtype, name='norm_out')(x_BLD)
    return x_BLD

  def _run_blocks(self, x_BLD, shared):
    block = nn.remat(Block) if self.remat else Block
    fields = {
      'num_heads': self.num_heads,
      'mlp_dim': self.mlp_dim,
      'norm': self.norm,
      'activation': self.activation,
      'position': self.position,
      'backend': self.backend,
      'dtype': self.dtype,
    }
    # Initialisation always unrolls, which is what makes the tree the same.
    if not self.scan or self.is_initializing():
      for layer in range(self.num_layers):
        x_BLD, _ = block(**fields, name=f'block_{layer}')(x_BLD, layer, *shared)
      return x_BLD

    def scan_blocks(module, x_BLD):
      scanned = nn.scan(
        block,
        variable_axes={'params': 0, 'intermediates': 0},
        split_rngs={'params': False},
        in_axes=(0, *(nn.broadcast,) * len(shared)),
        length=self.num_layers,
      )(**fields, name='blocks', parent=module)
      return scanned(x_BLD, jnp.arange(self.num_layers), *shared)[0]

    return nn.map_variables(
      scan_blocks, 'params', trans_in_fn=self._stack_layers
    )(self, x_BLD)

  def _stack_layers(self, variables):
    layers = [
      variables['params'][f'block_{layer}'] for layer in range(self.num_layers)
    ]
    return {'params': {'blocks': jax.tree.map(_stack, *layers)}}


def _stack(*leaves):
  return jnp.stack(leaves)


class BagEncoder(nn.Module):
  """Nothing but the tokens themselves: with a symmetric pool, a bag of words.

  The baseline of Iyyer et al. 2015 (NBOW): blind to order by construction.
  """

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    is_token_BL: jax.Array,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
  ) -> jax.Array:
    """Returns x_BLD, dropped in training."""
    del is_token_BL, attention_dropout
    return drop(x_BLD, dropout, 0)


ENCODERS: dict[str, type[nn.Module]] = {
  'attention': AttentionEncoder,
  'bag': BagEncoder,
}
