"""Blocks of self-attention and a feed-forward network, and stacks of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
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

  Attributes:
    attention: the layer of the first branch.
    mlp_dim: width of the hidden layer of the second.
    norm: 'pre' or 'post'.
    activation: of the hidden layer, a name of ACTIVATIONS.
    dtype: of the computation; parameters are float32.
    cache_len: tokens that the cache of keys holds; None: no cache.
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
    carry: tuple[jax.Array, Any],
    layer,
    tokens: Tokens,
    position_params,
    value_weights_N2: jax.Array | None,
    dropout: Dropout | None,
    attention_dropout: Dropout | None,
  ):
    """Returns (carry, None), as a scan over layers needs it.

    Args:
      carry: vectors (B, L, D), and values of the first layer (B, L, G, K),
        zeros before it; None without `value_weights_N2`.
      layer: its number, from 0; may be traced.
      value_weights_N2: of the first values and of its own, for each layer;
        None: its own alone.
    """
    x_BLD, first_BLGK = carry
    is_pre = self.norm == 'pre'
    if dropout is not None:
      dropout = dropout.at(layer)
    if attention_dropout is not None:
      attention_dropout = attention_dropout.at(layer)

    def mix(weights_N2, v_BLGK):
      nonlocal first_BLGK
      of_first, of_own = weights_N2[layer].astype(v_BLGK.dtype)
      mixed_BLGK = of_first * first_BLGK + of_own * v_BLGK
      first_BLGK = jnp.where(layer == 0, v_BLGK, first_BLGK)
      return mixed_BLGK

    mix_values = None
    if value_weights_N2 is not None:
      mix_values = functools.partial(mix, value_weights_N2)

    normalise = nn.LayerNorm(dtype=self.dtype, name='norm_attention')
    h_BLD = normalise(x_BLD) if is_pre else x_BLD
    h_BLD, _ = self.attention(
      h_BLD,
      query_tokens=tokens,
      position_params=position_params,
      mix_values=mix_values,
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
    x_BLD = x_BLD if is_pre else normalise(x_BLD)
    return (x_BLD, first_BLGK), None

  def _dense(self, name, features):
    return nn.Dense(
      features,
      dtype=self.dtype,
      kernel_init=nn.initializers.xavier_uniform(),
      name=name,
    )


def run_blocks(
  encoder: nn.Module,
  fields: Callable[[bool], dict],
  carry: tuple[jax.Array, jax.Array | None],
  shared: tuple,
  sow_layers: tuple[int, ...] | None,
) -> tuple[jax.Array, jax.Array | None]:
  """The carry after a stack of blocks; parameters are `block_0`, `block_1`, ...

  Args:
    encoder: the module that owns them, with num_layers, scan and remat.
    fields: those of a Block, by whether weights are sown.
    carry, shared: arguments of a Block before and after `layer`.
    sow_layers: see encoders.AttentionEncoder.

  Raises:
    ValueError: sow_layers is given with scan.
  """
  block = nn.remat(Block) if encoder.remat else Block
  # Initialisation always unrolls, so that the tree is the same.
  if not encoder.scan or encoder.is_initializing():
    for layer in range(encoder.num_layers):
      sows = sow_layers is None or layer in sow_layers
      run = block(**fields(sows), name=f'block_{layer}')
      carry, _ = run(carry, layer, *shared)
    return carry
  if sow_layers is not None:
    raise ValueError('sow_layers needs scan=False')

  def scan_blocks(module, carry):
    in_axes: Any = (0, *(nn.broadcast,) * len(shared))
    scanned = nn.scan(
      block,
      variable_axes={'params': 0, 'intermediates': 0},
      split_rngs={'params': False},
      in_axes=in_axes,
      length=encoder.num_layers,
    )(**fields(True), name='blocks', parent=module)
    return scanned(carry, jnp.arange(encoder.num_layers), *shared)[0]

  def stack_layers(variables):
    layers = [
      variables['params'][f'block_{layer}']
      for layer in range(encoder.num_layers)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return {'params': {'blocks': stacked}}

  return nn.map_variables(scan_blocks, 'params', trans_in_fn=stack_layers)(
    encoder, carry
  )
