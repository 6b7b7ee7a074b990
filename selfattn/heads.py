"""Classification heads, HEADS, and heads on each token."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout, drop
from selfattn.positions.contract import require


class TiedHead(nn.Module):
  """Logits over the vocabulary, from tied embeddings.

  A transform (dense, gelu, layer norm), a matmul with the embedding table, and
  a bias for each token of the vocabulary (Devlin et al. 2019, section 3.1, and
  their code; Press and Wolf 2017 on tied embeddings).
  """

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits (B, L, V).

    Args:
      x_BLD: vectors of the tokens that have a label.
      embed: the token embedding of the model.
    """
    dtype = x_BLD.dtype
    h_BLD = nn.Dense(x_BLD.shape[-1], dtype=dtype, name='dense')(x_BLD)
    h_BLD = nn.gelu(h_BLD, approximate=False)
    h_BLD = nn.LayerNorm(dtype=dtype, name='norm')(h_BLD)
    shape = (embed.num_embeddings,)
    bias_V = self.param('bias', nn.initializers.zeros, shape, jnp.float32)
    return _products(h_BLD, embed.embedding.T) + bias_V[None, None]


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
      return _products(x_BLD, kernel_DV)

    dtype = x_BLD.dtype
    return nn.Dense(self.size, dtype=dtype, dot_general=products, name='dense')(
      x_BLD
    )


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
    return _products(x_BLD, embed.embedding[ids].T)


def _products(x_BLD, kernel_DV) -> jax.Array:
  """Matmul of vectors and a kernel, float32 (B, L, V).

  Operands have the type of the vectors, in the gradient, too. Sums are float32:
  logits of bfloat16 would have ties.
  """
  kernel_DV = kernel_DV.astype(x_BLD.dtype)
  if x_BLD.dtype == jnp.float32:
    return x_BLD @ kernel_DV
  return _products_in_halves(x_BLD, kernel_DV)


@jax.custom_vjp
def _products_in_halves(x_BLD, kernel_DV):
  return jnp.matmul(x_BLD, kernel_DV, preferred_element_type=jnp.float32)


def _with_operands(x_BLD, kernel_DV):
  return _products_in_halves(x_BLD, kernel_DV), (x_BLD, kernel_DV)


def _gradients(operands, cotangent_BLV):
  x_BLD, kernel_DV = operands
  cotangent_BLV = cotangent_BLV.astype(x_BLD.dtype)
  of_kernel_DV = jnp.einsum('BLD,BLV->DV', x_BLD, cotangent_BLV)
  return cotangent_BLV @ kernel_DV.T, of_kernel_DV


_products_in_halves.defvjp(_with_operands, _gradients)


class Head(nn.Module):
  """The contract of a classification head: logits, float32 (B, C).

  The pooled vector of a text without tokens may be 0, and gradients must be
  finite there. Fields are options, each with a default.
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
  """An affine function of the pooled vector."""

  @nn.compact
  def __call__(self, pooled_BP, num_classes, dropout=None):
    """Logits, float32 (B, C)."""
    del dropout
    return _affine(self, pooled_BP, num_classes)


class Mlp(Head):
  """A dense layer with tanh, dropout, and an affine function.

  RoBERTa (Liu et al. 2019, their code) and the SST-2 example of Flax have this
  head.

  Attributes:
    hidden_dim: width of the hidden layer.
  """

  hidden_dim: int = 128

  def check(self) -> None:
    """Raises ValueError for a hidden_dim below 1."""
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')

  @nn.compact
  def __call__(self, pooled_BP, num_classes, dropout=None):
    """Logits, float32 (B, C)."""
    h_BS = nn.tanh(nn.Dense(self.hidden_dim, name='dense')(pooled_BP))
    return _affine(self, drop(h_BS, dropout, 0), num_classes)


def _affine(head: Head, x_BP, num_classes: int) -> jax.Array:
  """An affine map by `kernel` and `bias`, parameters of the head."""
  shape = (x_BP.shape[-1], num_classes)
  init = nn.initializers.lecun_normal()
  kernel_PC = head.param('kernel', init, shape, jnp.float32)
  zeros = nn.initializers.zeros
  bias_C = head.param('bias', zeros, (num_classes,), jnp.float32)
  return x_BP @ kernel_PC + bias_C[None]


HEADS: dict[str, type[Head]] = {'linear': Linear, 'mlp': Mlp}
