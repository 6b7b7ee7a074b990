"""Token ids to logits: embedding, encoder, pool and head.

Or a head on each token in place of the pool and the head of a text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from selfattn.dropout import Bits, Dropout, drop
from selfattn.heads import Head, Linear
from selfattn.pools import Mean, Pool
from selfattn.positions.sampling import Consecutive
from selfattn.tokens import Tokens


def embed(params, tokens_BL: jax.Array) -> jax.Array:
  """Token embeddings (B, L, D), from the parameters of a TextClassifier."""
  return jnp.take(params['embed']['embedding'], tokens_BL, axis=0)


class TextClassifier(nn.Module):
  """A classifier of token sequences around any encoder.

  Attributes:
    vocab_size: V.
    num_classes: C.
    embed_dim: D; an encoder with another `token_dim` has embeddings that wide.
    encoder: a module of selfattn.encoders.
    pool: one of selfattn.pools. For one that uses_cls, a learned vector `cls`
      is put before the tokens. Windows and convolutions count columns, so that
      padding before the tokens is between the two.
    head: one of selfattn.heads.
    embed_init_std: standard deviation of embeddings at initialisation.
    sampling: one of selfattn.positions.sampling, for position ids.
    dtype: of the encoder and of a token_head; logits are float32.
    token_head: {name: module}, from vectors of tokens (B, L, D) of dtype, and
      the nn.Embed of the model to logits (B, L, ...), in place of pool and
      head, or None. Its parameters are under token_head_NAME.
    further: a module from vectors of tokens to several of each, (B, L, n, D),
      which a token_head then reads, such as heads.Further; None: there is none.
    has_mask_token: whether there is a token [MASK] of id V; its vector is the
      parameter `mask`.
    separator: the id of [SEP], which ends each text of a pair: a learned vector
      `token_type` of its text is added to each token, [CLS] and the first [SEP]
      included in the first one (Devlin et al. 2019, section 3). None: each row
      is one text.
    num_token_types: number of such vectors; tokens of a single text have the
      first one. 0: none; -1: two for pairs, none otherwise.
    restarts: whether the positions of the second text of a pair begin where
      those of the first do; False: they run on.

  Examples:
    >>> tokens_BL, mask_BL = jnp.ones((2, 5), int), jnp.ones((2, 5), bool)
    >>> sizes = {'vocab_size': 50, 'num_classes': 3, 'embed_dim': 12}
    >>> bow = selfattn.BowEncoder()
    >>> model = selfattn.TextClassifier(**sizes, encoder=bow)
    >>> variables = model.init(jax.random.key(0), tokens_BL, mask_BL)
    >>> model.apply(variables, tokens_BL, mask_BL).shape
    (2, 3)
  """

  vocab_size: int
  num_classes: int
  embed_dim: int
  encoder: nn.Module
  # parent=None: the classifier that has a pool or head becomes its parent.
  pool: Pool = dataclasses.field(default_factory=lambda: Mean(parent=None))
  head: Head = dataclasses.field(default_factory=lambda: Linear(parent=None))
  embed_init_std: float = 0.1
  sampling: Consecutive = Consecutive()
  dtype: jnp.dtype = jnp.float32
  token_head: Mapping[str, nn.Module] | None = None
  further: nn.Module | None = None
  has_mask_token: bool = False
  separator: int | None = None
  num_token_types: int = -1
  restarts: bool = False

  @property
  def has_cls(self) -> bool:
    """Whether [CLS] is put before the tokens."""
    return self.pool.uses_cls

  @nn.compact
  def __call__(
    self,
    tokens_BL: jax.Array,
    padding_mask_BL: jax.Array,
    dropout: Dropout | None = None,
    attention_dropout: Dropout | None = None,
    position_stream: Bits | None = None,
    *,
    is_right_padded: bool = False,
    token_types_BL: jax.Array | None = None,
    positions_BL: jax.Array | None = None,
    embedded_BLD: jax.Array | None = None,
    label_index_BN: jax.Array | None = None,
    **for_encoder,
  ) -> jax.Array:
    """Logits, float32 (B, C); of a head on each token, (B, L or N, C).

    Those of several vectors of each token are (B, L or N, n, C).

    Args:
      tokens_BL: ids of any integer type, each below vocab_size, or [MASK].
      padding_mask_BL: boolean, False at padding. What stands there changes no
        logit. Positions count from the first token of a row, and after it
        padding, too.
      dropout: on embeddings, branches, the pooled vector and in the head; None:
        evaluation.
      attention_dropout: on attention weights; None: none.
      position_stream: the random bits of `sampling`; None: evaluation.
      is_right_padded: whether padding stands after the tokens of each row, see
        Tokens.
      token_types_BL: the number of the vector `token_type` of each token; None:
        found by the separator.
      positions_BL: position ids; None: those of `sampling`.
      embedded_BLD: the result of `embed`, for gradients with respect to it;
        None: computed here.
      label_index_BN: indices of the tokens that the head reads; None: all L.
      for_encoder: further arguments of the encoder.
    """
    for name, kind in (('pool', Pool), ('head', Head)):
      module = getattr(self, name)
      if not isinstance(module, kind):
        raise TypeError(f'{name} = {module!r} must be a {kind.__name__}')
    tokens_BL = jnp.asarray(tokens_BL)
    if not jnp.issubdtype(tokens_BL.dtype, jnp.integer):
      raise ValueError(f'tokens_BL of {tokens_BL.dtype} must be integers')
    # Narrow types do not hold the ids of [MASK] and [CLS].
    tokens_BL = tokens_BL.astype(jnp.int32)
    # An id that is no row of the table would have a vector of NaN.
    tokens_BL = jnp.where(jnp.asarray(padding_mask_BL, bool), tokens_BL, 0)
    init = nn.initializers.normal(self.embed_init_std, jnp.float32)
    width = getattr(self.encoder, 'token_dim', 0) or self.embed_dim
    table = nn.Embed(self.vocab_size, width, embedding_init=init, name='embed')
    x_BLD = table(tokens_BL) if embedded_BLD is None else embedded_BLD
    length = x_BLD.shape[1]
    if self.has_mask_token:
      mask_D = self.param('mask', init, (width,))
      is_mask_BL = tokens_BL == self.vocab_size
      x_BLD = jnp.where(is_mask_BL[..., None], mask_D[None, None], x_BLD)
    has_cache = (
      self.is_mutable_collection('cache') and not self.is_initializing()
    )
    # [CLS] stands before all tokens, not before those of each call.
    is_later_call = has_cache and self.has_variable('cache', 'columns')
    num_added = int(self.has_cls and not is_later_call)
    if num_added:
      cls_D = self.param('cls', init, (width,))
      cls_B1D = jnp.broadcast_to(cls_D, (x_BLD.shape[0], 1, width))
      x_BLD = jnp.concatenate([cls_B1D, x_BLD], axis=1)
      padding_mask_BL = jnp.pad(
        padding_mask_BL, ((0, 0), (1, 0)), constant_values=True
      )
      tokens_BL = jnp.pad(
        tokens_BL, ((0, 0), (1, 0)), constant_values=self.vocab_size + 1
      )
    inner = None if dropout is None else dropout.at(0)

    def sampled(padding_mask_BL) -> Tokens:
      return self.sampling.tokens(padding_mask_BL, position_stream)

    if has_cache:
      tokens = sampled(padding_mask_BL)
      if positions_BL is None:
        self._check_cache(tokens)
      tokens = self._continued(tokens, num_added)
    elif is_right_padded:
      tokens = sampled(padding_mask_BL)
    else:
      tokens = _from_first_token(sampled, padding_mask_BL, num_added)
    if positions_BL is not None:
      tokens = tokens.replace(positions=positions_BL, is_consecutive=None)
    is_second_BL = None
    if self.separator is not None:
      is_second_BL = _is_second(tokens_BL, self.separator)
    count = self.num_token_types
    if count < 0:
      count = 0 if is_second_BL is None else 2
    if count:
      types = nn.Embed(count, width, embedding_init=init, name='token_type')
      type_BL = token_types_BL
      if type_BL is None and count > 1:
        type_BL = is_second_BL
      if type_BL is None:
        type_BL = jnp.zeros_like(tokens_BL)
      x_BLD += types(jnp.asarray(type_BL, jnp.int32))
    if self.restarts and is_second_BL is not None:
      first_B1 = num_added + _num_before(padding_mask_BL, num_added)
      tokens = _restarted(tokens, is_second_BL, first_B1)
    x_BLD = self.encoder(
      x_BLD.astype(self.dtype),
      tokens.replace(
        ids=tokens_BL,
        is_right_padded=is_right_padded
        and getattr(self.encoder, 'keeps_order', False)
        and tokens.padding_mask is padding_mask_BL,
      ),
      inner,
      attention_dropout,
      **for_encoder,
    )
    if self.token_head is not None:
      x_BLD = x_BLD[:, -length:]
      if label_index_BN is not None:
        x_BLD = jnp.take_along_axis(x_BLD, label_index_BN[..., None], axis=1)
      (head,) = self.token_head.values()
      if self.further is None:
        return head(x_BLD, table).astype(jnp.float32)
      vectors = self.further(x_BLD)
      *shape, D = vectors.shape
      logits = head(vectors.reshape(shape[0], -1, D), table)
      return logits.reshape(*shape, -1).astype(jnp.float32)
    pooled_BP = drop(self.pool(x_BLD, padding_mask_BL), dropout, 1)
    inner = None if dropout is None else dropout.at(2)
    return self.head(pooled_BP, self.num_classes, inner)

  def _continued(self, tokens: Tokens, num_added: int) -> Tokens:
    """Tokens whose positions begin at the first one of each row of all calls.

    The cache keeps the number of columns of earlier calls, and of those before
    the first token of each row.

    Args:
      num_added: columns of [CLS] in this call.
    """
    mask_BL = jnp.asarray(tokens.padding_mask)[:, num_added:]
    B, L = mask_BL.shape
    end = self.variable('cache', 'columns', jnp.zeros, (), jnp.int32)
    first = self.variable('cache', 'first', jnp.zeros, (B, 1), jnp.int32)
    begun_B1 = first.value < end.value
    is_first_BL = jnp.cumsum(mask_BL, axis=1) > 0
    before_B1 = L - is_first_BL.sum(axis=1, keepdims=True)
    begin = end.value + num_added
    first_B1 = jnp.where(begun_B1, first.value, begin + before_B1)
    column_1L = end.value + jnp.arange(num_added + L)[None]
    positions_BL = column_1L - first_B1 + int(self.has_cls)
    positions_BL = jnp.where(column_1L < begin, column_1L, positions_BL)
    first.value, end.value = first_B1, begin + L
    is_consecutive = None if num_added else True
    return tokens.replace(positions=positions_BL, is_consecutive=is_consecutive)

  def _check_cache(self, tokens: Tokens) -> None:
    """ValueError for what is not counted from the first call on."""
    if self.separator is not None:
      raise ValueError(
        f'separator = {self.separator} must be None with a cache: which text a '
        'token is of depends on tokens of earlier calls'
      )
    if tokens.positions is not None:
      raise ValueError(
        f'sampling = {self.sampling} chooses positions for the tokens of a '
        'call, and a cache has tokens of earlier ones'
      )


def _num_before(padding_mask_BL, num_added: int) -> jax.Array:
  """Columns of padding before the first token of each row, (B, 1).

  Args:
    num_added: columns of [CLS], which stands before them.
  """
  mask_BL = jnp.asarray(padding_mask_BL)[:, num_added:]
  return jnp.argmax(mask_BL, axis=1)[:, None]


def _from_first_token(
  sampled: Callable[[jax.Array], Tokens], padding_mask_BL, num_added: int
) -> Tokens:
  """Tokens whose positions begin at the first one of each row.

  Where padding is known to begin no row, nothing is traced.

  Args:
    sampled: Tokens of a sampling, from a padding mask.
    num_added: columns of [CLS], whose positions are those before the first.
  """
  mask_BL = jnp.asarray(padding_mask_BL)
  begins = mask_BL[:, num_added : num_added + 1]
  if not isinstance(begins, core.Tracer) and np.asarray(begins).all():
    return sampled(padding_mask_BL)
  length = mask_BL.shape[1]
  column_1L = jnp.arange(length)[None]
  before_B1 = _num_before(mask_BL, num_added)
  is_added_1L = column_1L < num_added
  index_BL = jnp.where(is_added_1L, column_1L, column_1L - before_B1)
  # Sampled as if the padding before a row stood after it.
  column_BL = jnp.where(is_added_1L, column_1L, column_1L + before_B1)
  moved_BL = jnp.take_along_axis(
    mask_BL, jnp.minimum(column_BL, length - 1), axis=1
  )
  tokens = sampled(moved_BL & (column_BL < length))
  positions_BL, is_consecutive = tokens.positions, tokens.is_consecutive
  if positions_BL is None:
    positions_BL, is_consecutive = index_BL, True
  else:
    positions_BL = jnp.broadcast_to(positions_BL, mask_BL.shape)
    positions_BL = jnp.take_along_axis(
      positions_BL, jnp.maximum(index_BL, 0), axis=1
    )
  tokens = tokens.replace(padding_mask=padding_mask_BL, positions=positions_BL)
  if not num_added:
    return tokens.replace(is_consecutive=is_consecutive)
  return tokens.replace(index=index_BL, is_consecutive=None)


def _is_second(tokens_BL, separator: int) -> jax.Array:
  """Whether each token stands after the first separator of its row."""
  is_separator_BL = tokens_BL == separator
  return jnp.cumsum(is_separator_BL, axis=1) - is_separator_BL > 0


def _restarted(tokens: Tokens, is_second_BL, first_B1) -> Tokens:
  """Tokens whose positions in the second text begin as those of the first.

  Args:
    tokens: as of a sampling.
    is_second_BL: whether each token is of the second text.
    first_B1: column of the first token of the first text.
  """
  index_BL = jnp.arange(is_second_BL.shape[1])[None]
  begin_B1 = is_second_BL.argmax(axis=1)[:, None]
  index_BL = jnp.where(is_second_BL, index_BL - begin_B1 + first_B1, index_BL)
  if tokens.positions is None:
    return tokens.replace(positions=index_BL)
  positions_BL = jnp.broadcast_to(tokens.positions, index_BL.shape)
  positions_BL = jnp.take_along_axis(positions_BL, index_BL, axis=1)
  return tokens.replace(positions=positions_BL, is_consecutive=None)
