"""Classification heads, HEADS, and heads on each token."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout, drop
from selfattn.feed_forward import FEED_FORWARDS, GATED
from selfattn.norms import NORMS
from selfattn.positions.contract import require, require_one_of
from selfattn.products import logits_of

ACTIVATIONS = {'tanh': nn.tanh} | {
  name: function
  for name, function in FEED_FORWARDS.items()
  if name not in GATED and not isinstance(function, type)
}


class VocabularyHead(nn.Module):
  """Logits over the vocabulary for each token.

  Attributes:
    transform: whether vectors first go through a dense layer, an activation
      and a norm (Devlin et al. 2019, section 3.1, and their code).
    activation: of the transform, one of ACTIVATIONS.
    norm: of the transform, one of selfattn.norms.
    eps: epsilon of that norm.
    transform_bias: whether its dense layer has a bias.
    tied: whether the embedding table is the last matrix (Press and Wolf 2017);
      False: one of its own.
    use_bias: whether each token of the vocabulary has a bias.
    scale: factor of the logits.
    softcap: bound c of the logits, as c tanh(logit / c); 0: none.
  """

  transform: bool = True
  activation: str = 'gelu_exact'
  norm: str = 'layer'
  eps: float = 1e-6
  transform_bias: bool = True
  tied: bool = True
  use_bias: bool = True
  scale: float = 1.0
  softcap: float = 0.0

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""
    require_one_of(ACTIVATIONS, 'activation', self.activation)
    require_one_of(NORMS, 'norm', self.norm)

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits (B, L, V).

    Args:
      x_BLD: vectors of the tokens that have a label.
      embed: the token embedding of the model.
    """
    dtype, V = x_BLD.dtype, embed.num_embeddings
    if self.transform:
      use_bias = self.transform_bias
      D = embed.features
      dense = nn.Dense(D, use_bias=use_bias, dtype=dtype, name='dense')
      x_BLD = ACTIVATIONS[self.activation](dense(x_BLD))
      norm = NORMS[self.norm](epsilon=self.eps, dtype=dtype, name='norm')
      x_BLD = norm(x_BLD)
    if self.tied:
      kernel_DV = embed.embedding.T
    else:
      shape, init = (x_BLD.shape[-1], V), nn.initializers.lecun_normal()
      kernel_DV = self.param('kernel', init, shape, jnp.float32)
    logits_BLV = logits_of(x_BLD, kernel_DV)
    if self.use_bias:
      zeros = nn.initializers.zeros
      bias_V = self.param('bias', zeros, (V,), jnp.float32)
      logits_BLV += bias_V[None, None]
    if self.scale != 1:
      logits_BLV *= self.scale
    if self.softcap:
      logits_BLV = self.softcap * jnp.tanh(logits_BLV / self.softcap)
    return logits_BLV


class TokenHead(nn.Module):
  """Logits of each token, an affine function of its vector.

  Attributes:
    size: number of logits.
  """

  size: int

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits (B, L, size).

    Args:
      x_BLD: vectors of the tokens that have a label.
      embed: the token embedding of the model, which is not used.
    """
    del embed

    def products(x_BLD, kernel_DV, *_, **__):
      return logits_of(x_BLD, kernel_DV)

    dtype = x_BLD.dtype
    return nn.Dense(self.size, dtype=dtype, dot_general=products, name='dense')(
      x_BLD
    )


class Further(nn.Module):
  """Vectors of tokens, from which tokens further ahead are predicted.

  For offset 1 it is the vector x itself; for each other one x + silu(W x + b)
  with a W and b of its own, as of Medusa (Cai et al. 2024), which is x at
  initialisation.

  Attributes:
    offsets: their number n.
  """

  offsets: int

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """Vectors (B, L, n, D)."""
    dense = functools.partial(
      nn.Dense,
      x_BLD.shape[-1],
      kernel_init=nn.initializers.zeros,
      dtype=x_BLD.dtype,
    )
    further = [
      x_BLD + nn.silu(dense(name=f'offset_{offset}')(x_BLD))
      for offset in range(2, self.offsets + 1)
    ]
    return jnp.stack([x_BLD, *further], axis=2)


class EmbeddingHead(nn.Module):
  """Logits of each token, its matmuls with the embeddings of some ids.

  Attributes:
    ids: of the tokens that are predicted.
  """

  ids: tuple[int, ...]

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits (B, L, ids).

    Args:
      x_BLD: vectors of the tokens that have a label.
      embed: the token embedding of the model.
    """
    ids = jnp.array(self.ids, jnp.int32)
    return logits_of(x_BLD, embed.embedding[ids].T)


class Head(nn.Module):
  """The contract of a classification head: logits, float32 (B, C).

  The pooled vector of a text without tokens may be 0, and gradients must be
  finite there. Fields are options, each with a default.

  Examples:
    >>> class First(selfattn.Head):
    ...   def __call__(self, pooled_BP, num_classes, dropout=None):
    ...     return pooled_BP[:, :num_classes]
    >>> First().apply({}, jnp.ones((2, 12)), num_classes=3).shape
    (2, 3)
  """

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""

  def __call__(
    self,
    pooled_BP: jax.Array,
    num_classes: int,
    dropout: Dropout | None = None,
  ) -> jax.Array:
    """Logits of each class.

    Args:
      pooled_BP: the vectors of the texts, from the pool, after dropout.
      num_classes: C.
      dropout: for layers inside the head; None: evaluation.
    """
    raise NotImplementedError


class Linear(Head):
  """A linear map of the pooled vector.

  Attributes:
    use_bias: whether each class has a bias.
  """

  use_bias: bool = True

  @nn.compact
  def __call__(self, pooled_BP, num_classes, dropout=None):
    """Logits, float32 (B, C)."""
    del dropout
    return _affine(self, pooled_BP, num_classes, self.use_bias)


class Identity(Head):
  """The pooled vector itself, as an embedding of the text."""

  def __call__(self, pooled_BP, num_classes, dropout=None):
    """Float32 (B, P)."""
    del num_classes, dropout
    return pooled_BP


class Mlp(Head):
  """A dense layer, an activation, dropout, and an affine function.

  RoBERTa (Liu et al. 2019, their code) and the SST-2 example of Flax have this
  head, with tanh. The pooler of BERT is its first part.

  Attributes:
    hidden_dim: width of the hidden layer.
    activation: its activation, one of ACTIVATIONS.
    use_bias: whether the hidden layer has a bias.
    norm: the norm after the activation, one of selfattn.norms; empty: none.
    eps: epsilon of that norm.
  """

  hidden_dim: int = 128
  activation: str = 'tanh'
  use_bias: bool = True
  norm: str = ''
  eps: float = 1e-6

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')
    require_one_of(ACTIVATIONS, 'activation', self.activation)
    require_one_of(['', *NORMS], 'norm', self.norm)

  @nn.compact
  def __call__(self, pooled_BP, num_classes, dropout=None):
    """Logits, float32 (B, C)."""
    to_hidden = nn.Dense(self.hidden_dim, use_bias=self.use_bias, name='dense')
    h_BS = ACTIVATIONS[self.activation](to_hidden(pooled_BP))
    if self.norm:
      h_BS = NORMS[self.norm](epsilon=self.eps, name='norm')(h_BS)
    return _affine(self, drop(h_BS, dropout, 0), num_classes)


def _affine(head: Head, x_BP, num_classes: int, use_bias=True) -> jax.Array:
  """An affine map by `kernel` and `bias`, parameters of the head."""
  shape = (x_BP.shape[-1], num_classes)
  init = nn.initializers.lecun_normal()
  kernel_PC = head.param('kernel', init, shape, jnp.float32)
  if not use_bias:
    return x_BP @ kernel_PC
  zeros = nn.initializers.zeros
  bias_C = head.param('bias', zeros, (num_classes,), jnp.float32)
  return x_BP @ kernel_PC + bias_C[None]


TOKEN_HEADS: dict[str, type[VocabularyHead]] = {'vocabulary': VocabularyHead}
HEADS: dict[str, type[Head]] = {'linear': Linear, 'mlp': Mlp}
"""Classification heads by name.

Examples:
  >>> pooled_BP = jnp.ones((2, 12))
  >>> head = selfattn.HEADS['mlp'](hidden_dim=7)
  >>> variables = head.init(jax.random.key(0), pooled_BP, num_classes=3)
  >>> head.apply(variables, pooled_BP, num_classes=3).shape
  (2, 3)
"""
