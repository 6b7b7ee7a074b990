"""Blocks, the layers of a stack: attention and a feed-forward network.

To add one: a subclass of Block that implements `vectors`, a line in BLOCKS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout, drop
from selfattn.feed_forward import (
  FEED_FORWARDS,
  ExpertNetwork,
  Experts,
  Maps,
  network,
)
from selfattn.layers import Layer
from selfattn.norms import NORMS
from selfattn.positions.contract import require, require_one_of
from selfattn.projections import KERNEL_INITS
from selfattn.tokens import Tokens


class OfAllLayers(NamedTuple):
  """The arguments that every block of a stack gets.

  Attributes:
    tokens: of the text.
    position_params: of the model, from `init_model` of its position method.
    value_weights_N2: of the first layer's values and of its own, for each
      layer; None: its own alone.
    dropout, attention_dropout: on branches, and on attention weights.
  """

  tokens: Tokens
  position_params: Any
  value_weights_N2: Any
  dropout: Dropout | None
  attention_dropout: Dropout | None


class Block(nn.Module):
  """The contract of a block: `vectors` of a subclass, from vectors to vectors.

  The stack gives every block its caches, positions, masks, sown weights, scans
  over layers and rematerialisation.

  Attributes:
    feed_forward: the feed-forward network; the gated ones, with glu in their
      name, have a third matrix of the same size.
    use_bias: whether its maps have a bias.
    norm: the norm, one of selfattn.norms.
    eps: epsilon of the norms, those of attention included.
    residual_scale: factor of what a branch adds to the vectors.
    hidden_dropout: whether dropout acts on the hidden layer of the feed-forward
      network, too, and not on what branches add alone.
    kernel_init: initial values of kernels, those of attention included: as by
      Glorot and Bengio 2010, or as torch.nn.Linear has them, which are smaller.
    attention: an Attention, which the stack sets, as the following.
    experts: in place of the feed-forward network; None: it is dense.
    index: number of the layer; of a scan over layers, in its period.
    mlp_dim: F.
    dtype: of the computation; parameters are float32.
    num_layers: of the stack.
    cache_len: tokens that the cache of keys holds; None: no cache.
    normalises_output: whether the vectors are normalised last; the stack
      normalises them after its last block otherwise.
    Further fields are options; each needs a default.

  Examples:
    >>> class WithoutNorm(selfattn.Block):
    ...   def vectors(self, x_BLD, attend, dropout):
    ...     return self.added(x_BLD, attend(x_BLD), dropout, site=0)
    >>> WithoutNorm().vectors(jnp.ones((2, 5, 12)), jnp.tanh, None).shape
    (2, 5, 12)
  """

  feed_forward: str = 'gelu'
  use_bias: bool = True
  norm: str = 'layer'
  eps: float = 1e-6
  residual_scale: float = 1.0
  hidden_dropout: bool = True
  kernel_init: str = 'xavier'
  # The stack sets these fields before it calls the block.
  attention: Any = None
  experts: Any = None
  index: Any = None
  mlp_dim: Any = None
  dtype: Any = None
  num_layers: Any = None
  cache_len: Any = None

  normalises_output: ClassVar[bool] = False

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""
    require_one_of(FEED_FORWARDS, 'feed_forward', self.feed_forward)
    require_one_of(NORMS, 'norm', self.norm)
    require_one_of(KERNEL_INITS, 'kernel_init', self.kernel_init)
    require(0 < self.eps < 1, 'eps', self.eps, 'between 0 and 1')

  def vectors(
    self,
    x_BLD: jax.Array,
    attend: Callable[[jax.Array], jax.Array],
    dropout: Dropout | None,
  ) -> jax.Array:
    """Vectors after the block, (B, L, D); it may make submodules.

    Args:
      attend: attention of this layer, from (B, L, D) to the same; to be called
        once.
      dropout: on branches; None: evaluation.
    """
    raise NotImplementedError

  @nn.compact
  def __call__(self, carry: tuple, index, of_all: OfAllLayers):
    """Returns (carry, None), as a scan over layers needs it.

    Args:
      carry: vectors (B, L, D), and values of the first layer (B, L, G, K),
        zeros before it; None without `value_weights_N2`.
      index: number of the layer, from 0; may be traced.
      of_all: the same for all layers.
    """
    x_BLD, first_BLGK = carry
    dropout, attention_dropout = (
      stream if stream is None else stream.at(index)
      for stream in (of_all.dropout, of_all.attention_dropout)
    )
    weights_N2 = of_all.value_weights_N2

    def mix(v_BLGK):
      nonlocal first_BLGK
      of_first, of_this = weights_N2[index].astype(v_BLGK.dtype)
      mixed_BLGK = of_first * first_BLGK + of_this * v_BLGK
      first_BLGK = jnp.where(index == 0, v_BLGK, first_BLGK)
      return mixed_BLGK

    def attend(h_BLD):
      h_BLD, _ = self.attention(
        h_BLD,
        query_tokens=of_all.tokens,
        position_params=of_all.position_params,
        mix_values=None if weights_N2 is None else mix,
        dropout=attention_dropout,
        cache_len=self.cache_len,
        layer=Layer(index, self.num_layers),
      )
      return h_BLD

    return (self.vectors(x_BLD, attend, dropout), first_BLGK), None

  def normalised(self, name: str, x_BLD: jax.Array) -> jax.Array:
    """Vectors after the norm, a submodule of this name."""
    return NORMS[self.norm](epsilon=self.eps, dtype=self.dtype, name=name)(
      x_BLD
    )

  def added(self, x_BLD, h_BLD, dropout: Dropout | None, site: int):
    """Vectors and what a branch adds to them, after dropout at a site."""
    h_BLD = drop(h_BLD, dropout, site)
    if self.residual_scale != 1:
      h_BLD *= self.residual_scale
    return x_BLD + h_BLD

  def fed_forward(self, h_BLD: jax.Array, dropout: Dropout | None) -> jax.Array:
    """Vectors after the feed-forward network, submodules `mlp_...`.

    Experts are a submodule `experts`.

    Args:
      dropout: on the hidden layer of a dense network.
    """
    maps = Maps(
      self.feed_forward,
      self.use_bias,
      KERNEL_INITS[self.kernel_init],
      self.dtype,
    )
    experts: Experts | None = self.experts
    if experts is None or self.index in experts.dense_layers:
      dropout = dropout if self.hidden_dropout else None
      return network(maps, 'mlp', self.mlp_dim, h_BLD, dropout)
    dim = experts.dim or self.mlp_dim
    return ExpertNetwork(experts, maps, dim, name='experts')(h_BLD)


class PreNorm(Block):
  """Norms before each branch (Xiong et al. 2020, figure 1b).

  Attributes:
    norms_first: whether the first layer has a norm before attention.
      ModernBERT's has none (Warner et al. 2024), since its embeddings have one.
    Further fields are those of Block.
  """

  norms_first: bool = True

  def vectors(self, x_BLD, attend, dropout):
    h_BLD = x_BLD
    if self.norms_first or self.index != 0:
      h_BLD = self.normalised('norm_attention', x_BLD)
    x_BLD = self.added(x_BLD, attend(h_BLD), dropout, 0)
    h_BLD = self.fed_forward(self.normalised('norm_mlp', x_BLD), dropout)
    return self.added(x_BLD, h_BLD, dropout, 2)


class PostNorm(Block):
  """Norms after each sum (Vaswani et al. 2017, section 3.1)."""

  normalises_output = True

  def vectors(self, x_BLD, attend, dropout):
    x_BLD = self.added(x_BLD, attend(x_BLD), dropout, 0)
    x_BLD = self.normalised('norm_attention', x_BLD)
    x_BLD = self.added(x_BLD, self.fed_forward(x_BLD, dropout), dropout, 2)
    return self.normalised('norm_mlp', x_BLD)


class BranchNorm(Block):
  """Norms of what the branches add (OLMo 2, OLMo team 2024, section 3.1)."""

  def vectors(self, x_BLD, attend, dropout):
    h_BLD = self.normalised('norm_attention', attend(x_BLD))
    x_BLD = self.added(x_BLD, h_BLD, dropout, 0)
    h_BLD = self.normalised('norm_mlp', self.fed_forward(x_BLD, dropout))
    return self.added(x_BLD, h_BLD, dropout, 2)


class Sandwich(Block):
  """Norms before and after each branch (Ding et al. 2021, section 2.3)."""

  def vectors(self, x_BLD, attend, dropout):
    h_BLD = attend(self.normalised('norm_attention', x_BLD))
    h_BLD = self.normalised('norm_attention_out', h_BLD)
    x_BLD = self.added(x_BLD, h_BLD, dropout, 0)
    h_BLD = self.fed_forward(self.normalised('norm_mlp', x_BLD), dropout)
    h_BLD = self.normalised('norm_mlp_out', h_BLD)
    return self.added(x_BLD, h_BLD, dropout, 2)


class Parallel(Block):
  """Both branches read the same vectors (Wang and Komatsuzaki 2021).

  One norm before them, as in GPT-J and PaLM (Chowdhery et al. 2022, section 2).

  Attributes:
    separate_norms: whether each branch has its own, as in GPT-NeoX (Black et
      al. 2022, section 2.1).
    Further fields are those of Block.
  """

  separate_norms: bool = False

  def vectors(self, x_BLD, attend, dropout):
    if self.separate_norms:
      of_attention_BLD = self.normalised('norm_attention', x_BLD)
      h_BLD = self.normalised('norm_mlp', x_BLD)
    else:
      of_attention_BLD = h_BLD = self.normalised('norm', x_BLD)
    attended_BLD = attend(of_attention_BLD)
    x_BLD = self.added(x_BLD, attended_BLD, dropout, 0)
    return self.added(x_BLD, self.fed_forward(h_BLD, dropout), dropout, 2)


BLOCKS: dict[str, type[Block]] = {
  'pre': PreNorm,
  'post': PostNorm,
  'parallel': Parallel,
  'branch': BranchNorm,
  'sandwich': Sandwich,
}
"""Blocks by name.

Examples:
  >>> sorted(selfattn.BLOCKS)
  ['branch', 'parallel', 'post', 'pre', 'sandwich']
  >>> block = selfattn.BLOCKS['pre'](norm='rms', feed_forward='swiglu')
  >>> block.check()
"""
