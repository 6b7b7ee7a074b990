"""Classification heads, HEADS, and heads on each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.contract import Tokens, require
from selfattn.positions.local import ngrams


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


class Head(nn.Module):
  """The contract of a classification head: logits, float32 (B, C).

  The pooled vector of a text without tokens may be 0, and gradients must be
  finite there. Further fields are options, each with a default, and become keys
  of the config.

  Attributes:
    vocab_size: V, ids of tokens are below it; passed by keyword.
    token_params: names of parameters with a row for each token or n-gram, which
      belong to a vocabulary.
  """

  vocab_size: int | None = dataclasses.field(default=None, kw_only=True)

  token_params: ClassVar[tuple[str, ...]] = ()

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""

  def statistics(
    self, texts: Iterable[tuple], num_classes: int
  ) -> dict[str, np.ndarray]:
    """Parameters that are set once, before training, from its texts; by name.

    Each is a parameter of the head, as `self.param` makes it; one that training
    must not change is read through `jax.lax.stop_gradient`.

    Args:
      texts: tuples (tokens_BL, padding_mask_BL, labels_B) of arrays, as often
        as they are iterated over; a row without tokens is no text.
      num_classes: C.
    """
    del texts, num_classes
    return {}

  def __call__(
    self,
    pooled_BP: jax.Array,
    tokens_BL: jax.Array,
    padding_mask_BL: jax.Array,
    num_classes: int,
  ) -> jax.Array:
    """Logits of each class.

    Args:
      pooled_BP: the vectors of the texts, from the pool.
      tokens_BL: integer ids, without [CLS].
      padding_mask_BL: boolean, False at padding, which changes no logit.
      num_classes: C.
    """
    raise NotImplementedError


class Linear(Head):
  """An affine function of the pooled vector."""

  @nn.compact
  def __call__(self, pooled_BP, tokens_BL, padding_mask_BL, num_classes):
    """As of Head."""
    del tokens_BL, padding_mask_BL
    return self._of_pooled(pooled_BP, num_classes)

  def _of_pooled(self, pooled_BP, num_classes: int) -> jax.Array:
    shape = (pooled_BP.shape[-1], num_classes)
    kernel_PC = self.param('kernel', nn.initializers.lecun_normal(), shape)
    bias_C = self.param('bias', nn.initializers.zeros, (num_classes,))
    return pooled_BP @ kernel_PC + bias_C[None]


class WideAndDeep(Linear):
  """An affine function of the pooled vector and of the n-grams of the text.

  Adds to `Linear` a linear model of the n-grams of up to max_n tokens: each row
  of a table that one of them hashes to adds its logits once, zero at
  initialisation. Binary features of n-grams as of Wang and Manning (2012),
  trained with the encoder as in Wide & Deep (Cheng et al. 2016, section 3).

  Attributes:
    max_n: tokens of the longest n-gram.
    num_buckets: rows of the table, `embedding`; n-grams with equal hashes share
      a row, see selfattn.positions.local.ngrams.
    naive_bayes: whether rows are multiplied by log-count ratios of Naive Bayes,
      the `ratio` of each class to all others (Wang and Manning 2012, section
      2), which `statistics` counts in the training texts; 0 for what is not in
      them.
  """

  max_n: int = 2
  num_buckets: int = 100_000
  naive_bayes: bool = False

  token_params: ClassVar = ('embedding', 'ratio')

  def check(self) -> None:
    """As of Head."""
    require(self.max_n >= 1, 'max_n', self.max_n, 'at least 1')
    require(
      1 <= self.num_buckets < 2**31,
      'num_buckets',
      self.num_buckets,
      'at least 1 and below 2147483648',
    )

  def statistics(self, texts, num_classes):
    """As of Head."""
    if not self.naive_bayes:
      return {}
    # Of each n-gram and class, in how many texts; the last row is of none.
    counts = np.zeros((self.num_buckets + 1, num_classes), np.int64)
    rows_of = jax.jit(self._rows)
    for tokens_BL, padding_mask_BL, labels_B in texts:
      rows_BN = np.asarray(rows_of(tokens_BL, padding_mask_BL))
      np.add.at(counts, (rows_BN, np.asarray(labels_B)[:, None]), 1)
    return {'ratio': _log_count_ratios(counts[:-1]).astype(np.float32)}

  @nn.compact
  def __call__(self, pooled_BP, tokens_BL, padding_mask_BL, num_classes):
    """As of Head."""
    # First, so that its kernel is initialised as that of Linear.
    logits_BC = self._of_pooled(pooled_BP, num_classes)
    rows_BN = self._rows(tokens_BL, padding_mask_BL)
    shape = (self.num_buckets, num_classes)
    table = self.param('embedding', nn.initializers.zeros, shape)

    def of_rows(table):
      return jnp.take(table, rows_BN, axis=0, mode='fill', fill_value=0)

    found_BNC = of_rows(table)
    if self.naive_bayes:
      ratio = self.param('ratio', nn.initializers.ones, shape)
      found_BNC = found_BNC * of_rows(jax.lax.stop_gradient(ratio))
    return logits_BC + found_BNC.sum(axis=1)

  def _rows(self, tokens_BL, padding_mask_BL) -> jax.Array:
    """Rows of the table, each once; num_buckets, which is none, elsewhere."""
    tokens = Tokens(padding_mask=padding_mask_BL)
    rows = [
      jnp.where(is_there_BL, code_BL % self.num_buckets, self.num_buckets)
      for code_BL, is_there_BL in ngrams(tokens_BL, tokens, self.max_n)
    ]
    rows_BN = jnp.sort(jnp.concatenate(rows, axis=1).astype(jnp.int32), axis=1)
    is_first_BN = jnp.diff(rows_BN, axis=1, prepend=-1) > 0
    return jnp.where(is_first_BN, rows_BN, self.num_buckets)


def _log_count_ratios(counts_RC: np.ndarray) -> np.ndarray:
  """log(p / |p|) - log(q / |q|), p = 1 + counts of a class and q of all others.

  Wang and Manning (2012), section 2, with alpha = 1, over the rows that occur.
  """
  all_R1 = counts_RC.sum(axis=1, keepdims=True)
  is_there_R1 = all_R1 > 0
  p_RC, q_RC = (
    np.where(is_there_R1, 1 + each, 0)
    for each in (counts_RC, all_R1 - counts_RC)
  )
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio_RC = np.log(p_RC / p_RC.sum(axis=0)) - np.log(q_RC / q_RC.sum(axis=0))
  return np.where(is_there_R1, ratio_RC, 0)


HEADS: dict[str, type[Head]] = {'linear': Linear, 'wide_and_deep': WideAndDeep}
